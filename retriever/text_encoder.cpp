#include "retriever/text_encoder.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/json.h"

namespace contexture::retriever {
namespace {

// Rows computed at a time: the widest state (feed-forward) of a small model stays in the last
// cache.
constexpr size_t kBatchTokens = 4096;

}  // namespace

TextEncoder::TextEncoder(TextReader reader, model::SentenceEncoder encoder, std::string hash)
    : reader_(std::move(reader)), encoder_(std::move(encoder)), hash_(std::move(hash)) {}

TextEncoder TextEncoder::load(const std::filesystem::path& folder,
                              model::EncoderPrecision precision, int64_t max_tokens) {
  const auto config = model::SentenceEncoderConfig::read(folder);
  const auto weights = model::ForeignWeights::open(folder);
  CONTEXTURE_USAGE_REQUIRE(
      max_tokens == 0 || (max_tokens >= 3 && max_tokens <= config.positions), "at most ",
      max_tokens, " tokens a text were asked for; the encoder reads 3 to ", config.positions, ".");
  auto reading = config;
  if (max_tokens > 0) reading.max_tokens = max_tokens;
  TextReader reader(folder, reading);
  const Json identity{{"weights", weights.hash()},
                      {"config", sha256_hex_of_file(folder / "config.json")},
                      {"vocabulary", sha256_hex_of_file(folder / "vocab.txt")},
                      {"lower_case", reader.tokenizer().options().lower_case},
                      {"mean_pooling", config.mean_pooling},
                      {"normalise", config.normalise},
                      {"max_tokens", reading.max_tokens}};
  return TextEncoder(std::move(reader), model::SentenceEncoder(reading, weights, precision),
                     sha256_hex(identity.dump()));
}

std::vector<float> TextEncoder::embed(std::span<const std::string> texts) const {
  std::vector<std::vector<int32_t>> ids;
  ids.reserve(texts.size());
  for (const std::string& text : texts) ids.push_back(reader_.read(text));
  std::vector<size_t> order(texts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return ids[a].size() > ids[b].size(); });
  const auto dim = static_cast<size_t>(encoder_.dim());
  std::vector<float> out(texts.size() * dim);
  for (size_t begin = 0; begin < order.size();) {
    std::vector<std::span<const int32_t>> batch;
    size_t end = begin, tokens = 0;
    while (end < order.size() &&
           (end == begin || tokens + ids[order[end]].size() <= kBatchTokens)) {
      tokens += ids[order[end]].size();
      batch.emplace_back(ids[order[end++]]);
    }
    const at::Tensor embedded = encoder_.embed(batch).contiguous();
    for (size_t i = begin; i < end; ++i) {
      std::copy_n(embedded.data_ptr<float>() + (i - begin) * dim, dim, out.data() + order[i] * dim);
    }
    tokens_embedded_ += static_cast<int64_t>(tokens);
    begin = end;
  }
  return out;
}

}  // namespace contexture::retriever
