#include "model/bert_weights.h"

#include "core/error.h"

namespace contexture::model {

at::Tensor bert_weight(const ForeignWeights& weights, const std::string& name,
                       at::IntArrayRef shape) {
  std::string found = weights.contains("embeddings.word_embeddings.weight") ? name : "bert." + name;
  if (!weights.contains(found) && found.find("LayerNorm.") != std::string::npos) {
    const size_t end = found.rfind('.');
    const std::string old =
        found.substr(0, end) + (found.substr(end) == ".weight" ? ".gamma" : ".beta");
    if (weights.contains(old)) found = old;
  }
  return weights.get(found, shape);
}

std::vector<int64_t> TextParameter::shape() const {
  std::vector<int64_t> out = published_shape;
  out[0] *= static_cast<int64_t>(published.size());
  return out;
}

std::vector<TextParameter> text_parameters(const SentenceEncoderConfig& config) {
  const int64_t D = config.width, F = config.ffn_width;
  std::vector<TextParameter> out;
  const auto norm = [&](const std::string& name, const std::string& published) {
    out.push_back({name + ".weight", {published + ".LayerNorm.weight"}, {D}});
    out.push_back({name + ".bias", {published + ".LayerNorm.bias"}, {D}});
  };
  const auto dense = [&](const std::string& name, const std::string& folder,
                         const std::vector<std::string>& parts, int64_t outputs, int64_t inputs) {
    std::vector<std::string> weights, biases;
    for (const std::string& part : parts) {
      weights.push_back(folder + part + ".weight");
      biases.push_back(folder + part + ".bias");
    }
    out.push_back({name + ".weight", weights, {outputs, inputs}});
    out.push_back({name + ".bias", biases, {outputs}});
  };
  out.push_back({"retriever.word", {"embeddings.word_embeddings.weight"}, {config.vocab, D}});
  out.push_back(
      {"retriever.position", {"embeddings.position_embeddings.weight"}, {config.positions, D}});
  out.push_back({"retriever.type", {"embeddings.token_type_embeddings.weight"}, {config.types, D}});
  norm("retriever.norm", "embeddings");
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string name = concat("retriever.layer.", i, "."),
                      folder = concat("encoder.layer.", i, ".");
    dense(name + "attention.qkv", folder + "attention.self.", {"query", "key", "value"}, D, D);
    dense(name + "attention.out", folder + "attention.output.", {"dense"}, D, D);
    norm(name + "attention.norm", folder + "attention.output");
    dense(name + "mlp.up", folder, {"intermediate.dense"}, F, D);
    dense(name + "mlp.down", folder, {"output.dense"}, D, F);
    norm(name + "mlp.norm", folder + "output");
  }
  return out;
}

at::Tensor published_value(const ForeignWeights& weights, const TextParameter& parameter) {
  std::vector<at::Tensor> parts;
  for (const std::string& name : parameter.published)
    parts.push_back(bert_weight(weights, name, parameter.published_shape));
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

}  // namespace contexture::model
