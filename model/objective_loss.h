// The objectives (model/objectives.h) as blocks: the prior over an input's documents, and the
// weighted loss made of it and of the likelihoods that the head found for single documents. In a
// model's block list only when a run asks for such an objective.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "model/batch.h"
#include "model/objectives.h"
#include "parallel/block.h"

namespace contexture::model {

struct ObjectiveOptions {
  std::map<std::string, double> weights;  // by name, those of names() only; 0 or absent: off
  objectives::TargetOptions target;       // also: emdr2 per token or per sequence
  bool kl_mean = false;
  bool trains_retriever = true;  // false: the prior is taken as it is
  bool joint = true;             // the decoder reads all documents at once, too

  // rag_sequence, rag_token, realm: nats per target token (of an input's own, then per input, for
  // realm); emdr2: the same, to the retriever alone; pdist, loop, adist: KL per input.
  static const std::vector<std::string>& names();
  double weight(const std::string& name) const;
  std::vector<std::string> used() const;  // in the order of names()
  bool any() const { return !used().empty(); }
  Readings readings() const;
};

// Reads query.embedding and doc.embedding; writes candidate.log_prob [B * C]: log p(document | x)
// of each input's documents (and, if the objectives have one, of the null document, whose score is
// a parameter), objectives::kAbsent in cells without one. Its gradient is not scaled by
// score.attentive_weight.
class Candidates : public parallel::Block {
 public:
  Candidates(parallel::ParameterStore& store, const ModelConfig& config,
             const ObjectiveOptions& options);
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override;
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override;
  double forward_flops(const parallel::Pass&) const override { return 0.0; }  // a dot product each

 private:
  const parallel::ParameterStore* store_;  // its dtype is that of the scores
  double temperature_;
  bool trains_;
  const parallel::Parameter* null_score_ = nullptr;
};

// Reads target.log_prob and candidate.log_prob (and for adist the decoder's dec.mass wires, in
// token slices the parts of each); writes loss.objectives, the weighted sum, and objective.values
// [used()], unweighted. Both fp64 and divided by the global counts: sums over microbatches are the
// values of the step.
class ObjectiveLoss : public parallel::Block {
 public:
  ObjectiveLoss(const ObjectiveOptions& options, const std::vector<std::string>& mass_wires);
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override;
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override;
  double forward_flops(const parallel::Pass&) const override { return 0.0; }

 private:
  ObjectiveOptions options_;
};

}  // namespace contexture::model
