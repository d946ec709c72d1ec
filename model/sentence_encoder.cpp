// N rows (tokens of all texts), D width, H heads, K head width, F feed-forward width, S texts.
#include "model/sentence_encoder.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "model/bert_weights.h"
#include "model/internal/encoder_kernels.h"
#include "model/internal/op_dispatch.h"
#include "model/internal/product.h"
#include "model/ops.h"

namespace contexture::model {
namespace kernels = ops::internal;

SentenceEncoder SentenceEncoder::load(const std::filesystem::path& folder,
                                      EncoderPrecision precision) {
  return SentenceEncoder(SentenceEncoderConfig::read(folder), ForeignWeights::open(folder),
                         precision);
}

SentenceEncoder::SentenceEncoder(const SentenceEncoderConfig& config, const ForeignWeights& weights,
                                 EncoderPrecision precision)
    : config_(config), states_(precision == EncoderPrecision::kBf16 ? at::kBFloat16 : at::kFloat) {
  // By the names of the text tower's parameters, which model/bert_weights lists with the published
  // ones.
  std::map<std::string, TextParameter> parameters;
  for (TextParameter& parameter : text_parameters(config)) {
    const std::string name = parameter.name;
    parameters.emplace(name, std::move(parameter));
  }
  const auto get = [&](const std::string& name) {
    return published_value(weights, parameters.at("retriever." + name));
  };
  const auto norm = [&](const std::string& name) {
    return Norm{get(name + ".weight"), get(name + ".bias")};
  };
  const auto dense = [&](const std::string& name) {
    return Dense{get(name + ".weight").to(states_), get(name + ".bias")};
  };
  words_ = get("word");
  positions_ = get("position");
  type_ = get("type")[0].contiguous();
  embedding_norm_ = norm("norm");
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string at = concat("layer.", i, ".");
    layers_.push_back({dense(at + "attention.qkv"), dense(at + "attention.out"),
                       dense(at + "mlp.up"), dense(at + "mlp.down"), norm(at + "attention.norm"),
                       norm(at + "mlp.norm")});
  }
}

at::Tensor SentenceEncoder::embed(const std::vector<std::span<const int32_t>>& texts) const {
  const c10::InferenceMode no_gradient;
  const int64_t S = static_cast<int64_t>(texts.size()), D = config_.width, F = config_.ffn_width,
                H = config_.heads, K = D / H;
  at::Tensor pooled_SD = at::zeros({S, D}, at::kFloat);
  if (S == 0) return pooled_SD;
  const at::Tensor begin_S1 = at::zeros({S + 1}, at::kLong);
  int64_t* begin = begin_S1.data_ptr<int64_t>();
  std::vector<int32_t> ids, position;
  for (int64_t s = 0; s < S; ++s) {
    const int64_t length = static_cast<int64_t>(texts[s].size());
    CONTEXTURE_REQUIRE(length >= 1 && length <= config_.max_tokens, "Text ", s, " has ", length,
                       " tokens; the encoder reads 1 to ", config_.max_tokens, ".");
    for (int64_t i = 0; i < length; ++i) {
      CONTEXTURE_REQUIRE(texts[s][i] >= 0 && texts[s][i] < config_.vocab, "Text ", s,
                         " has the token id ", texts[s][i], ", and the encoder's vocabulary ",
                         config_.vocab, ". Is vocab.txt another model's?");
      position.push_back(static_cast<int32_t>(i));
    }
    ids.insert(ids.end(), texts[s].begin(), texts[s].end());
    begin[s + 1] = begin[s] + length;
  }
  const int64_t N = begin[S];
  const ops::Segments segments = ops::self_segments(begin_S1, /*causal=*/false);
  const float eps = static_cast<float>(config_.norm_eps);
  const auto floats = [](const at::Tensor& t) { return t.data_ptr<float>(); };
  const auto norm_of = [&](const Norm& norm) {
    return kernels::LayerNorm{floats(norm.gain), floats(norm.bias), eps};
  };
  const at::Tensor x_ND = at::empty({N, D}, states_);
  kernels::dispatch(states_, [&](auto in) {
    using In = decltype(in);
    if constexpr (!std::is_same_v<In, double>) {
      const auto data = [](const at::Tensor& t) { return kernels::data<In>(t); };
      kernels::embed_rows<In>(N, D, floats(words_), floats(positions_), floats(type_), ids.data(),
                              position.data(), norm_of(embedding_norm_), data(x_ND));
      for (const Layer& layer : layers_) {
        const at::Tensor qkv_N3D = kernels::product(x_ND, layer.qkv.weight.t());
        kernels::add_bias_rows<In>(N, 3 * D, floats(layer.qkv.bias), data(qkv_N3D));
        const auto qkv = qkv_N3D.view({N, 3, H, K}).unbind(1);
        const at::Tensor attended_ND =
            ops::attention(qkv[0], qkv[1], qkv[2], segments).view({N, D});
        const at::Tensor out_ND = kernels::product(attended_ND, layer.out.weight.t());
        kernels::add_norm_rows<In>(N, D, data(out_ND), floats(layer.out.bias),
                                   norm_of(layer.after_attention), data(x_ND));
        const at::Tensor up_NF = kernels::product(x_ND, layer.up.weight.t());
        kernels::gelu_rows<In>(N, F, floats(layer.up.bias), data(up_NF));
        const at::Tensor down_ND = kernels::product(up_NF, layer.down.weight.t());
        kernels::add_norm_rows<In>(N, D, data(down_ND), floats(layer.down.bias),
                                   norm_of(layer.after_mlp), data(x_ND));
      }
      kernels::pool_rows<In>(S, D, begin, config_.mean_pooling, data(x_ND), floats(pooled_SD));
    }
  });
  // As torch.nn.functional.normalize: a length below 1e-12 counts as that.
  if (config_.normalise) pooled_SD = pooled_SD / pooled_SD.norm(2, {1}, true).clamp_min(1e-12);
  return pooled_SD;
}

}  // namespace contexture::model
