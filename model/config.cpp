#include "model/config.h"

#include <algorithm>

#include "core/error.h"

namespace contexture::model {

void ModelConfig::validate() const {
  const auto one_of = [](const std::string& key, const std::string& value,
                         const std::vector<std::string>& allowed) {
    std::string list;
    for (const auto& a : allowed) list += (list.empty() ? "" : ", ") + a;
    CONTEXTURE_USAGE_REQUIRE(std::find(allowed.begin(), allowed.end(), value) != allowed.end(), key,
                             "=", value, " is not known. Use one of: ", list, ".");
  };
  const auto positive = [](const std::string& key, int64_t value) {
    CONTEXTURE_USAGE_REQUIRE(value > 0, key, "=", value, " must be at least 1.");
  };
  positive("model.vocab", vocab);
  positive("model.width", width);
  positive("model.heads", heads);
  positive("model.kv_heads", kv_heads);
  positive("model.ffn_width", ffn_width);
  positive("model.encoder_layers", encoder_layers);
  positive("model.decoder_layers", decoder_layers);
  positive("model.patch_size", patch_size);
  positive("model.embedding_width", embedding_width);
  CONTEXTURE_USAGE_REQUIRE(
      heads % kv_heads == 0, "model.kv_heads=", kv_heads, " does not divide model.heads=", heads,
      ". Grouped-query attention gives every key head the same number of query heads.");
  CONTEXTURE_USAGE_REQUIRE(head_width > 0 && head_width % 2 == 0, "model.head_width=", head_width,
                           " must be even and positive: rotary positions turn pairs of numbers.");
  CONTEXTURE_USAGE_REQUIRE(image_size > 0 && image_size % patch_size == 0,
                           "model.patch_size=", patch_size,
                           " does not divide model.image_size=", image_size, ".");
  one_of("model.fusion", fusion, {"memory", "fid", "prefix"});
  one_of("model.towers", towers, {"shared", "separate"});
  one_of("model.pooling", pooling, {"cls", "mean", "patches"});
  CONTEXTURE_USAGE_REQUIRE(
      text_encoder.empty() || towers == "shared", "model.towers=", towers,
      ", but model.text_encoder is one encoder for queries and documents. Use towers=shared.");
  CONTEXTURE_USAGE_REQUIRE(!text_encoder.empty() || text || pooling != "patches" ||
                               embedding_width == num_patches() * patch_projection,
                           "model.embedding_width=", embedding_width,
                           " but model.pooling=patches makes ", num_patches(),
                           " patches x model.patch_projection=", patch_projection, " = ",
                           num_patches() * patch_projection, " numbers. Set one to fit the other.");
  CONTEXTURE_USAGE_REQUIRE(score_temperature > 0, "model.score_temperature=", score_temperature,
                           " must be positive.");
  CONTEXTURE_USAGE_REQUIRE(dropout >= 0 && dropout < 1, "model.dropout=", dropout,
                           " must lie in [0, 1).");
  for (const int64_t layer : cross_layers) {
    CONTEXTURE_USAGE_REQUIRE(
        layer >= 0 && layer < decoder_layers, "model.cross_layers names layer ", layer,
        " of a decoder with model.decoder_layers=", decoder_layers, " (they count from 0).");
  }
}

void ModelConfig::validate_split(int64_t tp) const {
  const auto nearest = [tp](int64_t n) {
    return concat(std::max(tp, n / tp * tp), " or ", (n + tp - 1) / tp * tp);
  };
  CONTEXTURE_USAGE_REQUIRE(heads % tp == 0, "parallel.tp=", tp,
                           " does not divide model.heads=", heads, ". Use ", nearest(heads),
                           " heads, or another tp.");
  CONTEXTURE_USAGE_REQUIRE(kv_heads % tp == 0, "parallel.tp=", tp,
                           " does not divide model.kv_heads=", kv_heads, ". Use ",
                           nearest(kv_heads), " key-value heads, or another tp.");
  CONTEXTURE_USAGE_REQUIRE(ffn_width >= tp, "parallel.tp=", tp,
                           " is more than model.ffn_width=", ffn_width, ".");
  CONTEXTURE_USAGE_REQUIRE(!text || text->heads >= tp, "parallel.tp=", tp, " is more than the ",
                           text ? text->heads : 0, " heads of model.text_encoder=", text_encoder,
                           ".");
}

void ModelConfig::read_text_encoder(const std::filesystem::path& folder) {
  text = SentenceEncoderConfig::read(folder);
  CONTEXTURE_USAGE_REQUIRE(text_encoder_tokens == 0 ||
                               (text_encoder_tokens >= 3 && text_encoder_tokens <= text->positions),
                           "model.text_encoder_tokens=", text_encoder_tokens,
                           ", but the encoder of ", folder.string(), " reads 3 to ",
                           text->positions, " tokens.");
  if (text_encoder_tokens > 0) text->max_tokens = text_encoder_tokens;
}

bool ModelConfig::reads_documents(int64_t decoder_layer) const {
  if (fusion == "prefix") return false;
  return cross_layers.empty() ||
         std::find(cross_layers.begin(), cross_layers.end(), decoder_layer) != cross_layers.end();
}

}  // namespace contexture::model
