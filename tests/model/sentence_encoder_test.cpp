// Published encoders: the reference's embeddings, both weight formats, and files that must be
// refused.
#include "model/sentence_encoder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "model/internal/pickled_tensors.h"

namespace contexture::model {
namespace {

namespace fs = std::filesystem;
const fs::path kGolden = fs::path(CONTEXTURE_SOURCE_DIR) / "tests/golden";

const fs::path kMiniLM = CONTEXTURE_MINILM;  // where tools/minilm puts it

template <typename Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

struct Golden {
  std::vector<std::vector<int32_t>> ids;
  at::Tensor embeddings;

  explicit Golden(const char* which) {
    const Json json = read_json_file((kGolden / "sentence_encoder.json").string());
    std::vector<at::Tensor> rows;
    for (const Json& entry : json[which]) {
      ids.push_back(entry["ids"].get<std::vector<int32_t>>());
      rows.push_back(at::tensor(entry["embedding"].get<std::vector<double>>()));
    }
    embeddings = at::stack(rows);
  }
  std::vector<std::span<const int32_t>> texts() const { return {ids.begin(), ids.end()}; }
};

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

double smallest_cosine(const at::Tensor& a, const at::Tensor& b) {
  return at::cosine_similarity(a.to(at::kDouble), b.to(at::kDouble), 1).min().item<double>();
}

class TinyFolder : public ::testing::Test {
 protected:
  void SetUp() override { fs::copy(kGolden / "tiny_bert", path(), fs::copy_options::recursive); }
  fs::path path() const { return folder_.path() / "model"; }
  std::string load_refusal() const {
    return refusal([&] { SentenceEncoder::load(path(), EncoderPrecision::kFp32); });
  }
  void change(const std::string& file, const std::string& from, const std::string& to) const {
    std::string text = read_file(path() / file);
    ASSERT_NE(text.find(from), std::string::npos);
    write_file_atomic(path() / file,
                      std::string_view(text.replace(text.find(from), from.size(), to)));
  }
  TempDir folder_;
};

// The goldens are fp32 sums in another order; states are of size 1.
TEST_F(TinyFolder, GivesTheReferencesEmbeddingsFromBothWeightFormats) {
  const Golden golden("tiny");
  const auto from_safetensors =
      SentenceEncoder::load(path(), EncoderPrecision::kFp32).embed(golden.texts());
  EXPECT_LT(largest_difference(from_safetensors, golden.embeddings), 1e-5);
  fs::remove(path() / "model.safetensors");
  const auto from_zip =
      SentenceEncoder::load(path(), EncoderPrecision::kFp32).embed(golden.texts());
  EXPECT_TRUE(at::equal(from_zip, from_safetensors));
}

TEST_F(TinyFolder, MeanPoolingAndNormalisationFollowTheModules) {
  change("1_Pooling/config.json",
         "\"pooling_mode_cls_token\": true, \"pooling_mode_mean_tokens\": false",
         "\"pooling_mode_cls_token\": false, \"pooling_mode_mean_tokens\": true");
  change(
      "modules.json", "}]",
      R"(}, {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])");
  const auto encoder = SentenceEncoder::load(path(), EncoderPrecision::kFp32);
  EXPECT_TRUE(encoder.config().mean_pooling);
  const Golden golden("tiny");
  const at::Tensor lengths = encoder.embed(golden.texts()).norm(2, {1});
  EXPECT_LT((lengths - 1).abs().max().item<double>(), 1e-6) << "fp32 rounding";
}

TEST(MiniLM, GivesTheReferencesEmbeddings) {
  if (!fs::exists(kMiniLM)) GTEST_SKIP() << "run tools/minilm first";
  const Golden golden("minilm");
  const auto encoder = SentenceEncoder::load(kMiniLM, EncoderPrecision::kFp32);
  EXPECT_EQ(encoder.config().max_tokens, 256);
  EXPECT_LT(largest_difference(encoder.embed(golden.texts()), golden.embeddings), 1e-5);
}

TEST(MiniLM, InBf16EmbeddingsPointTheSameWay) {
  if (!fs::exists(kMiniLM)) GTEST_SKIP() << "run tools/minilm first";
  const Golden golden("minilm");
  EXPECT_GT(
      smallest_cosine(SentenceEncoder::load(kMiniLM, EncoderPrecision::kBf16).embed(golden.texts()),
                      golden.embeddings),
      0.999);
}

TEST_F(TinyFolder, ATextsEmbeddingDoesNotDependOnItsNeighbours) {
  const auto encoder = SentenceEncoder::load(path(), EncoderPrecision::kFp32);
  const Golden golden("tiny");
  const at::Tensor together = encoder.embed(golden.texts());
  for (size_t i = 0; i < golden.ids.size(); ++i) {
    // A matrix product of other height may sum in another order; states are of size 1 to 5.
    EXPECT_LT(
        largest_difference(encoder.embed({golden.ids[i]})[0], together[static_cast<int64_t>(i)]),
        3e-6)
        << i;
  }
  EXPECT_EQ(encoder.embed({}).size(0), 0);
}

TEST_F(TinyFolder, TokensThatTheEncoderDoesNotKnowAreRefused) {
  const auto encoder = SentenceEncoder::load(path(), EncoderPrecision::kFp32);
  const std::vector<int32_t> unknown{2, 105, 3}, empty, too_long(49, 5);
  EXPECT_THROW(encoder.embed({unknown}), UserError);
  EXPECT_THROW(encoder.embed({empty}), UserError);
  EXPECT_THROW(encoder.embed({too_long}), UserError);
}

TEST_F(TinyFolder, DamagedWeightsAreRefused) {
  const std::string whole = read_file(path() / "model.safetensors");
  for (const size_t bytes :
       {size_t{0}, size_t{5}, size_t{200}, whole.size() / 2, whole.size() - 1}) {
    write_file_atomic(path() / "model.safetensors", std::string_view(whole).substr(0, bytes));
    EXPECT_NE(load_refusal().find("model.safetensors"), std::string::npos) << bytes;
  }
  write_file_atomic(path() / "model.safetensors",
                    std::string_view("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"));
  EXPECT_NE(load_refusal().find("LFS"), std::string::npos);
  fs::remove(path() / "model.safetensors");
  const std::string zip = read_file(path() / "pytorch_model.bin");
  for (const size_t bytes : {size_t{0}, size_t{3}, size_t{300}, zip.size() / 2, zip.size() - 1}) {
    write_file_atomic(path() / "pytorch_model.bin", std::string_view(zip).substr(0, bytes));
    EXPECT_NE(load_refusal().find("pytorch_model.bin"), std::string::npos) << bytes;
  }
  fs::remove(path() / "pytorch_model.bin");
  EXPECT_NE(load_refusal().find("has no weights"), std::string::npos);
}

// One byte changed anywhere in the zip: an error with a reason, or (in a weight; the reader checks
// no checksums) other weights; never a crash.
TEST_F(TinyFolder, AZipWithAChangedByteNeverCrashes) {
  fs::remove(path() / "model.safetensors");
  const std::string zip = read_file(path() / "pytorch_model.bin");
  int refused = 0;
  for (size_t at = 0; at < zip.size(); at += 331) {
    std::string changed = zip;
    changed[at] = static_cast<char>(changed[at] ^ 0x5a);
    write_file_atomic(path() / "pytorch_model.bin", std::string_view(changed));
    refused += load_refusal() != "no error" ? 1 : 0;
  }
  EXPECT_GT(refused, 10);
}

TEST_F(TinyFolder, AConfigurationThatDoesNotFitIsRefusedByKey) {
  change("config.json", "\"hidden_size\": 24", "\"hidden_size\": 27");
  EXPECT_NE(load_refusal().find("[105, 24]"), std::string::npos) << load_refusal();
  change("config.json", "\"hidden_size\": 27", "\"hidden_size\": 25");
  EXPECT_NE(load_refusal().find("num_attention_heads"), std::string::npos) << load_refusal();
  change("config.json", "\"hidden_size\": 25", "\"hidden_size\": 24");
  change("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  EXPECT_NE(load_refusal().find("encoder.layer.2"), std::string::npos) << load_refusal();
  change("config.json", "\"hidden_act\": \"gelu\"", "\"hidden_act\": \"relu\"");
  EXPECT_NE(load_refusal().find("hidden_act"), std::string::npos) << load_refusal();
  change("config.json", "\"model_type\": \"bert\"", "\"model_type\": \"mpnet\"");
  EXPECT_NE(load_refusal().find("mpnet"), std::string::npos) << load_refusal();
}

TEST_F(TinyFolder, ANaNInTheWeightsIsRefusedByName) {
  std::string bytes = read_file(path() / "model.safetensors");
  {
    const SafetensorsReader reader(as_bytes(bytes), "copy");
    const auto view = reader.get("encoder.layer.1.output.dense.bias").bytes;
    const float nan = std::nanf("");
    std::memcpy(bytes.data() + (reinterpret_cast<const char*>(view.data()) - bytes.data()), &nan,
                sizeof(nan));
  }
  write_file_atomic(path() / "model.safetensors", std::string_view(bytes));
  EXPECT_NE(load_refusal().find("encoder.layer.1.output.dense.bias"), std::string::npos);
}

TEST_F(TinyFolder, ShardsAreReadThroughTheirIndexAndAMissingOneIsNamed) {
  const Golden golden("tiny");
  const at::Tensor whole =
      SentenceEncoder::load(path(), EncoderPrecision::kFp32).embed(golden.texts());
  {
    const SafetensorsReader reader(path() / "model.safetensors");
    SafetensorsWriter first, second;
    Json map = Json::object();
    for (const std::string& name : reader.names()) {
      const bool early = name.find("layer.1") == std::string::npos;
      (early ? first : second)
          .add(name, reader.get(name).dtype, reader.get(name).shape, reader.get(name).bytes);
      map[name] = early ? "model-1.safetensors" : "model-2.safetensors";
    }
    first.write(path() / "model-1.safetensors");
    second.write(path() / "model-2.safetensors");
    write_file_atomic(path() / "model.safetensors.index.json",
                      std::string_view(Json{{"weight_map", map}}.dump()));
  }
  fs::remove(path() / "model.safetensors");
  EXPECT_TRUE(at::equal(
      SentenceEncoder::load(path(), EncoderPrecision::kFp32).embed(golden.texts()), whole));
  fs::remove(path() / "model-2.safetensors");
  EXPECT_NE(load_refusal().find("model-2.safetensors"), std::string::npos);
}

std::string pickle_refusal(const std::string& bytes) {
  return refusal([&] { internal::read_pickled_tensors(bytes, "weights"); });
}

// pickle.dumps of a class whose __reduce__ gives (os.system, ("true",)), protocol 2 and protocol 4.
TEST(Pickle, ACallIsRefusedByNameAndNotRun) {
  EXPECT_NE(pickle_refusal("\x80\x02"
                           "cposix\nsystem\nq\x01X\x04" +
                           std::string("\0\0\0true\x85R.", 10))
                .find("posix system"),
            std::string::npos);
  EXPECT_NE(pickle_refusal(std::string("\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."))
                .find("posix system"),
            std::string::npos);
}

TEST(Pickle, MalformedStreamsAreRefused) {
  for (const std::string& bytes :
       {std::string(), std::string("."), std::string("\x80\x02}"), std::string("t."),
        std::string("u."), std::string("R."), std::string("h\x01."),
        std::string("X\xff\xff\xff\x7f"
                    "a."),
        std::string("i."),
        std::string("}(X\x01\0\0\0a"
                    "u.",
                    11)}) {
    EXPECT_NE(pickle_refusal(bytes).find("weights"), std::string::npos) << bytes;
  }
  EXPECT_EQ(internal::read_pickled_tensors("\x80\x02}.", "weights").size(), 0u);
}

TEST(Pickle, AViewThatLeavesItsStorageIsRefused) {
  // _rebuild_tensor_v2(('storage', FloatStorage, '0', 'cpu', 4), offset, (rows,), (1,))
  const auto tensor = [](char offset, char rows) {
    std::string bytes = "}X\x01";
    bytes += std::string("\0\0\0a", 4) + "ctorch._utils\n_rebuild_tensor_v2\n(";
    bytes +=
        "(\x8c\x07storage"
        "ctorch\nFloatStorage\n\x8c\x01"
        "0\x8c\x03"
        "cpuK\x04tQ";
    bytes += std::string("K") + offset + "K" + rows + "\x85" + "K\x01\x85" + "tRs.";
    return bytes;
  };
  EXPECT_EQ(internal::read_pickled_tensors(tensor(1, 3), "weights").at("a").shape,
            std::vector<int64_t>{3});
  EXPECT_NE(pickle_refusal(tensor(2, 3)).find("leaves its storage"), std::string::npos);
}

}  // namespace
}  // namespace contexture::model
