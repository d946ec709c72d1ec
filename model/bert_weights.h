// The weights of BERT-family encoders by their names in Hugging Face folders, and which of them
// make up each parameter of the text tower (model/text_tower.h): one list for reading and for
// writing.
#pragma once
#include <string>
#include <vector>

#include "model/foreign_weights.h"
#include "model/sentence_encoder_config.h"

namespace contexture::model {

// A weight by its present name ("embeddings.LayerNorm.weight"). Found under "bert." too, where a
// model for another task has its encoder, and a LayerNorm's weight and bias as gamma and beta, as
// they were called once. Throws as ForeignWeights::get.
at::Tensor bert_weight(const ForeignWeights& weights, const std::string& name,
                       at::IntArrayRef shape);

// A parameter of the text tower: the published tensors, all of one shape, one below another.
struct TextParameter {
  std::string name;
  std::vector<std::string> published;
  std::vector<int64_t> published_shape;
  std::vector<int64_t> shape() const;  // of the parameter
};
std::vector<TextParameter> text_parameters(const SentenceEncoderConfig& config);

// The parameter's published value, fp32. Throws as ForeignWeights::get.
at::Tensor published_value(const ForeignWeights& weights, const TextParameter& parameter);

}  // namespace contexture::model
