// A published BERT-family encoder (arXiv:1810.04805) as blocks: what embeds queries and documents
// with model.text_encoder, trained further from its published weights. Post-norm layers with biases
// and exact GELU, then Sentence-BERT's pooling (arXiv:1908.10084) to unit length. The towers
// query.text and doc.text share all parameters ("retriever.*"); heads, feed-forward and vocabulary
// are split over tensor-parallel ranks, which hold all rows (sequence parallelism leaves these
// blocks as they are).
//
// Feeds of a tower t: t.token, t.position, t.row_key, t.row_sequence [N] int64; t.begin [S + 1]
// int64 CPU; t.self.* (ops::Segments).
#pragma once
#include "model/batch.h"
#include "model/sentence_encoder_config.h"
#include "model/tensor_parallel.h"
#include "parallel/block.h"

namespace contexture::model {

// Throws DataError when a sequence has no words, more than config.max_tokens, or one outside the
// vocabulary.
void add_text_feeds(const SentenceEncoderConfig& config, const std::string& tower,
                    const std::vector<const Sequence*>& sequences, at::Device device,
                    parallel::Feeds& feeds);

// Word, position and type embeddings, normed: wire `tower`.h.0 [N, D].
class TextEmbed : public parallel::Block {
 public:
  TextEmbed(parallel::ParameterStore& store, const SentenceEncoderConfig& config,
            const std::string& tower);
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override;
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override;
  double forward_flops(const parallel::Pass&) const override { return 0.0; }  // looked up

 private:
  std::string tower_;
  double eps_;
  tensor_parallel::Group group_;
  const parallel::Parameter *word_, *position_, *type_, *gain_, *bias_;
};

// Wire `tower`.h.{i} to `tower`.h.{i+1}: x = norm(x + attention(x)), then norm(x + mlp(x)). dropout
// is on both branches.
class TextLayer : public parallel::Block {
 public:
  TextLayer(parallel::ParameterStore& store, const SentenceEncoderConfig& config, double dropout,
            const std::string& tower, int64_t index);
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override;
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override;
  double forward_flops(const parallel::Pass& pass) const override;

 private:
  struct Affine {  // a matrix, or a norm's gain, and a bias
    const parallel::Parameter *weight, *bias;
  };
  std::string tower_;
  double dropout_, eps_;
  int64_t width_, heads_, head_width_;  // heads of this rank
  tensor_parallel::Group group_;
  Affine qkv_, out_, attention_norm_, up_, down_, mlp_norm_;
};

// Wire `tower`.h.{layers} to `wire` [S, D]: one unit-length embedding a text, fp32 or wider.
class TextPool : public parallel::Block {
 public:
  TextPool(const SentenceEncoderConfig& config, const std::string& tower, const std::string& wire,
           const parallel::Parameter& like);
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override;
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override;
  double forward_flops(const parallel::Pass&) const override { return 0.0; }

 private:
  std::string tower_;
  bool mean_;
  const parallel::Parameter* like_;  // tells the width and dtype of states
};

// The blocks that write `which`.embedding ("query" or "doc").
void add_text_tower(parallel::ParameterStore& store, const SentenceEncoderConfig& config,
                    double dropout, const std::string& which, parallel::BlockList& blocks);

}  // namespace contexture::model
