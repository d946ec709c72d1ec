#include "data/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/files.h"

namespace contexture::data {
namespace {

constexpr std::array<const char*, Tokenizer::kNumControl> kControlPieces = {
    "<pad>", "<unk>",   "<s>",        "</s>",   "<image>",
    "<sep>", "<query>", "<document>", "<mask>", "<null>"};

}  // namespace

struct Tokenizer::Impl {
  sentencepiece::SentencePieceProcessor processor;
  std::string model;
};

Tokenizer::Tokenizer(const std::string& path) {
  std::string model;
  try {
    model = read_file(path, uint64_t{1} << 30);
  } catch (const UserError& error) {
    throw DataError(error.what());
  }
  *this = from_bytes(std::move(model), path);
}

Tokenizer Tokenizer::from_bytes(std::string model, const std::string& name) {
  auto impl = std::make_shared<Impl>();
  CONTEXTURE_DATA_REQUIRE(!model.empty(), name, ": an empty file is no tokenizer model.");
  const auto status = impl->processor.LoadFromSerializedProto(model);
  CONTEXTURE_DATA_REQUIRE(status.ok(), name, ": no sentencepiece model (", status.message(),
                          "). Train one with `contexture tokenizer train`.");
  CONTEXTURE_DATA_REQUIRE(impl->processor.GetPieceSize() > kNumControl, name, ": only ",
                          impl->processor.GetPieceSize(), " pieces.");
  for (int32_t id = 0; id < kNumControl; ++id) {
    const std::string& found = impl->processor.IdToPiece(id);
    const bool reserved = impl->processor.IsControl(id) || impl->processor.IsUnknown(id);
    CONTEXTURE_DATA_REQUIRE(reserved && found == kControlPieces[static_cast<size_t>(id)], name,
                            ": piece ", id, " is '", found, "', not the control piece '",
                            kControlPieces[static_cast<size_t>(id)],
                            "'. This model was not trained with `contexture tokenizer train`.");
  }
  impl->model = std::move(model);
  return Tokenizer(std::move(impl));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int> ids;
  const auto status = impl_->processor.Encode(text, &ids);
  CONTEXTURE_INVARIANT(status.ok(), "sentencepiece can't encode: ", status.message());
  return ids;
}

std::vector<PieceSpan> Tokenizer::encode_with_offsets(std::string_view text) const {
  sentencepiece::ImmutableSentencePieceText encoded;
  const auto status = impl_->processor.Encode(text, encoded.mutable_proto());
  CONTEXTURE_INVARIANT(status.ok(), "sentencepiece can't encode: ", status.message());
  std::vector<PieceSpan> spans;
  spans.reserve(encoded.pieces_size());
  for (const auto& piece : encoded.pieces()) {
    spans.push_back({static_cast<int32_t>(piece.id()), piece.begin(), piece.end()});
  }
  return spans;
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids) const {
  std::vector<int> visible;
  visible.reserve(ids.size());
  for (const int32_t id : ids) {
    CONTEXTURE_REQUIRE(id >= 0 && id < vocab_size(), "token id ", id,
                       " is outside the vocabulary of ", vocab_size(), " pieces.");
    if (!is_control(id)) visible.push_back(id);
  }
  std::string text;
  const auto status = impl_->processor.Decode(visible, &text);
  CONTEXTURE_INVARIANT(status.ok(), "sentencepiece can't decode: ", status.message());
  return text;
}

int64_t Tokenizer::vocab_size() const { return impl_->processor.GetPieceSize(); }

std::string Tokenizer::piece(int32_t id) const {
  CONTEXTURE_REQUIRE(id >= 0 && id < vocab_size(), "token id ", id,
                     " is outside the vocabulary of ", vocab_size(), " pieces.");
  return impl_->processor.IdToPiece(id);
}

const std::string& Tokenizer::model_bytes() const { return impl_->model; }

}  // namespace contexture::data
