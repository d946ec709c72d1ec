// The decoder side: causal layers that read the documents' states, retrieval scores, and the head
// with its loss.
#pragma once
#include "model/tower.h"

namespace contexture::model {

// Retrieval scores to log-probabilities: reads query.embedding and doc.embedding, writes
// slot.log_prob [slots]: log softmax over each input's documents of cosine / score_temperature.
// fp32 or wider.
class Score : public parallel::Block {
 public:
  Score(const parallel::ParameterStore& store, const ModelConfig& config);
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override;
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override;
  double forward_flops(const parallel::Pass& pass) const override;

 private:
  const parallel::ParameterStore* store_;  // its dtype is that of the scores
  double temperature_;
};

// wire dec.h.{i} to dec.h.{i+1}; cross layers also read the memory wire and slot.log_prob. With
// attention mass wanted they write dec.mass.{i} [B * C], too: what each document receives of the
// joint readings' target rows, weighted by the norms of its values and averaged over heads and rows
// (of a token slice: its part of that mean); zero in cells without a document. No gradient. (Cells
// as in candidate.shape.) When decoding, dec.self.* counts rows of those kept (Pass::decoding), the
// memory wire is read by the first pass alone, and cross layers note, if asked, the share of
// cross-attention that each memory segment receives: [P]; no mass.
class DecoderLayer : public parallel::Block {
 public:
  DecoderLayer(parallel::ParameterStore& store, const ModelConfig& config, int64_t index,
               const std::string& memory_wire, bool writes_mass = false);
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override;
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override;
  double forward_flops(const parallel::Pass& pass) const override;
  bool by_rows() const override { return true; }

 private:
  bool reads_documents() const { return cross_norm_ != nullptr; }
  // Keys and values of the documents, with the learned null row appended: [M + 1, G, K] each.
  std::pair<at::Tensor, at::Tensor> project_memory(const at::Tensor& states_MD) const;
  // The same, once for all token slices of a microbatch, or for all passes of a decoding.
  std::pair<at::Tensor, at::Tensor> memory_of(const at::Tensor& states_MD,
                                              const parallel::Pass& pass) const;
  at::Tensor cross_query(const at::Tensor& x_ND, int64_t num_rows) const;  // [N, H, K]
  at::Tensor cross_branch(const at::Tensor& q_NHK, const at::Tensor& k, const at::Tensor& v,
                          const ops::Segments& memory, const at::Tensor& bias_P) const;
  at::Tensor mass(const at::Tensor& q_NHK, const at::Tensor& k, const at::Tensor& v,
                  const ops::Segments& memory, const at::Tensor& bias_P,
                  const parallel::Pass& pass) const;
  at::Tensor over_heads(const at::Tensor& mine) const;
  ModelConfig config_;
  std::string memory_tower_;
  bool writes_mass_;
  SelfAttention attention_;
  FeedForward mlp_;
  const parallel::Parameter *cross_norm_ = nullptr, *cross_q_ = nullptr, *cross_kv_ = nullptr,
                            *cross_out_ = nullptr, *null_k_ = nullptr, *null_v_ = nullptr;
};

// Logits at the target rows only, and the copy head: a pointer mixture (See et al.,
// arXiv:1704.04368) over the text tokens of the input's documents. A position whose predecessors
// are the tokens just written gets a learned bonus (an induction head by construction), so copying
// works for names never seen. What is pointed at also informs the generator and the gate: that is
// how the end of a copied name is seen. Reads dec.states and, with the copy head, the memory wire
// and slot.log_prob; writes loss.reader (sum of -log p(target) / loss.tokens over joint readings,
// fp64) and target.log_prob [M]. When decoding, that is of every piece, at every row of the pointer
// feeds: [B * T, vocab]; there is no loss, and the memory wire is read by the first pass alone.
class Head : public parallel::Block {
 public:
  Head(parallel::ParameterStore& store, const ModelConfig& config, const std::string& memory_wire);
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override;
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override;
  double forward_flops(const parallel::Pass& pass) const override;

 private:
  // What can be copied from: states [M, D], and the tokens there, before these, and before those
  // [M].
  struct Memory {
    at::Tensor state_MD, token_M, previous_M, before_M;
  };
  struct Pointed {
    at::Tensor weight_RL;   // attention over the keys, zero without documents; R = B * T rows
    at::Tensor context_RD;  // what is pointed at
    at::Tensor log_copy_R, log_generate_R;  // logs of the gate and of its complement
    at::Tensor token_RL;                    // the keys' tokens
  };
  Memory memory_of(const at::Tensor& state_MD, const parallel::Pass& pass) const;
  Pointed point(const at::Tensor& state_RD, const Memory& memory, const at::Tensor& slot_log_prob,
                const parallel::Pass& pass) const;
  at::Tensor log_probs(const parallel::Tensors& inputs, const parallel::Pass& pass) const;
  std::string memory_tower_;
  bool copies_;
  parallel::Communicator* tp_;
  const parallel::Parameter *weight_, *query_ = nullptr, *key_ = nullptr, *match_one_ = nullptr,
                                      *match_two_ = nullptr, *context_ = nullptr, *gate_ = nullptr,
                                      *gate_bias_ = nullptr;
};

// Adds slot.log_prob to its segments: [P] with zeros elsewhere (the null key, the decoder's own
// rows).
at::Tensor segment_bias(const at::Tensor& slot_log_prob, const at::Tensor& slot_segment,
                        int64_t num_segments);

}  // namespace contexture::model
