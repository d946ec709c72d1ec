// Published sentence encoders of the BERT family (arXiv:1810.04805; Sentence-BERT,
// arXiv:1908.10084), for inference: token lists in, one embedding each out. Rows are packed, so no
// padding is computed.
#pragma once
#include <ATen/ATen.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "model/foreign_weights.h"
#include "model/sentence_encoder_config.h"

namespace contexture::model {

enum class EncoderPrecision {
  kFp32,
  kBf16
};  // bf16: weights and states; sums, norms and pooling in fp32

// Safe from any number of threads; each call uses LibTorch's.
class SentenceEncoder {
 public:
  SentenceEncoder(const SentenceEncoderConfig& config, const ForeignWeights& weights,
                  EncoderPrecision precision);
  static SentenceEncoder load(const std::filesystem::path& folder, EncoderPrecision precision);

  const SentenceEncoderConfig& config() const { return config_; }
  int64_t dim() const { return config_.width; }
  // texts: token ids with [CLS] and [SEP], each 1 to max_tokens long. Computed at once: memory
  // grows with their sum. Returns [texts, dim()] fp32. A text's embedding does not depend on the
  // others, but for the products' last bits.
  at::Tensor embed(const std::vector<std::span<const int32_t>>& texts) const;

 private:
  // A weight [outputs, inputs] in the precision of the states, and its bias in fp32.
  struct Dense {
    at::Tensor weight, bias;
  };
  struct Norm {
    at::Tensor gain, bias;  // fp32
  };
  struct Layer {
    Dense qkv, out, up, down;
    Norm after_attention, after_mlp;
  };
  SentenceEncoderConfig config_;
  at::Tensor words_, positions_, type_;  // fp32
  Norm embedding_norm_;
  std::vector<Layer> layers_;
  at::ScalarType states_;
};

}  // namespace contexture::model
