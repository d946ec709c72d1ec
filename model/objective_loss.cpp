// B inputs, C candidates, T tokens of the longest target, M target rows of all readings.
#include "model/objective_loss.h"

#include <algorithm>

#include "core/error.h"

namespace contexture::model {

using parallel::Pass;
using parallel::Tensors;
using parallel::WireShape;

const std::vector<std::string>& ObjectiveOptions::names() {
  static const std::vector<std::string> all{"rag_sequence", "rag_token", "realm", "emdr2",
                                            "pdist",        "loop",      "adist"};
  return all;
}

double ObjectiveOptions::weight(const std::string& name) const {
  const auto it = weights.find(name);
  return it == weights.end() ? 0.0 : it->second;
}

std::vector<std::string> ObjectiveOptions::used() const {
  std::vector<std::string> out;
  std::copy_if(names().begin(), names().end(), std::back_inserter(out),
               [&](const std::string& name) { return weight(name) > 0; });
  return out;
}

Readings ObjectiveOptions::readings() const {
  Readings out;
  out.objectives = any();
  out.joint = joint;
  out.none = weight("realm") > 0;
  out.left_out = weight("loop") > 0;
  for (const char* name : {"rag_sequence", "rag_token", "realm", "emdr2", "pdist"}) {
    out.single = out.single || weight(name) > 0;
  }
  return out;
}

Candidates::Candidates(parallel::ParameterStore& store, const ModelConfig& config,
                       const ObjectiveOptions& options)
    : Block("candidates", {"query.embedding", "doc.embedding"}, {"candidate.log_prob"}),
      store_(&store),
      temperature_(config.score_temperature),
      trains_(options.trains_retriever) {
  if (!options.readings().none) return;
  null_score_ = &use(store, "score.null", {1}, parallel::Init::constant(0.0));
}

std::vector<WireShape> Candidates::shapes(const Pass& pass) const {
  const int64_t* shape = pass.feed("candidate.shape").data_ptr<int64_t>();
  return {
      {{shape[0] * shape[1]}, parallel::wide_dtype(store_->all().front()->value.scalar_type())}};
}

Tensors Candidates::forward(const Tensors& inputs, const Pass& pass) const {
  const int64_t* shape = pass.feed("candidate.shape").data_ptr<int64_t>();
  const at::Tensor score = (inputs[0].index_select(0, pass.feed("candidate.query")) *
                            inputs[1].index_select(0, pass.feed("candidate.doc")))
                               .sum(1);
  at::Tensor cells = at::full({shape[0] * shape[1]}, objectives::kAbsent, score.options())
                         .index_copy(0, pass.feed("candidate.cell"), score / temperature_);
  if (null_score_ != nullptr) {
    const at::Tensor null = null_score_->value.to(score.scalar_type()).expand({shape[0]});
    cells = cells.index_copy(0, pass.feed("candidate.null_cell"), null);
  }
  if (!trains_) cells = cells.detach();
  return {objectives::log_prior(cells.view({shape[0], shape[1]})).view(-1)};
}

ObjectiveLoss::ObjectiveLoss(const ObjectiveOptions& options,
                             const std::vector<std::string>& mass_wires)
    : Block("objectives",
            [&] {
              std::vector<std::string> in{"target.log_prob", "candidate.log_prob"};
              in.insert(in.end(), mass_wires.begin(), mass_wires.end());
              return in;
            }(),
            {"loss.objectives", "objective.values"}),
      options_(options) {}

std::vector<WireShape> ObjectiveLoss::shapes(const Pass&) const {
  return {{{}, at::kDouble}, {{static_cast<int64_t>(options_.used().size())}, at::kDouble}};
}

Tensors ObjectiveLoss::forward(const Tensors& inputs, const Pass& pass) const {
  const int64_t* shape = pass.feed("read.shape").data_ptr<int64_t>();
  const int64_t B = shape[0], C = shape[1], T = shape[2];
  const at::Tensor log_prob_M = inputs[0].to(at::kDouble);
  const at::Tensor with_null = inputs[1].to(at::kDouble).view({B, C});
  // Only REALM's candidates include the null document: it is the last column.
  const bool null = pass.feed("candidate.null_cell").numel() > 0;
  const int64_t K = null ? C - 1 : C;
  const at::Tensor prior_BK = null ? objectives::log_prior(with_null.narrow(1, 0, K)) : with_null;
  const auto likelihoods = [&](const char* row, const char* cell) {
    return at::zeros({B * C * T}, log_prob_M.options())
        .index_copy(0, pass.feed(cell), log_prob_M.index_select(0, pass.feed(row)))
        .view({B, C, T});
  };
  const at::Tensor single_BCT = likelihoods("read.single_row", "read.single_cell");
  const at::Tensor single_BKT = single_BCT.narrow(1, 0, K);
  const at::Tensor& tokens_B = pass.feed("read.tokens");
  const at::Tensor &per_token = pass.feed("loss.tokens"),
                   &per_input = pass.feed("loss.inputs");  // CPU scalars
  const auto distilled = [&](const at::Tensor& target_BK) {
    return objectives::kl_to_prior(target_BK, prior_BK, options_.kl_mean).sum() / per_input;
  };
  const auto value = [&](const std::string& name) {
    if (name == "rag_sequence") {
      return objectives::rag_sequence(prior_BK, single_BKT).sum() / per_token;
    }
    if (name == "rag_token") return objectives::rag_token(prior_BK, single_BKT).sum() / per_token;
    if (name == "realm") {
      return objectives::realm(with_null, single_BCT, tokens_B).sum() / per_input;
    }
    if (name == "emdr2") {
      return objectives::emdr2(prior_BK, single_BKT, options_.target.per_sequence).sum() /
             per_token;
    }
    if (name == "pdist") {
      return distilled(objectives::pdist_target(prior_BK, single_BKT, tokens_B, options_.target));
    }
    if (name == "loop") {
      const at::Tensor without =
          likelihoods("read.left_out_row", "read.left_out_cell").narrow(1, 0, K);
      return distilled(objectives::loop_target(prior_BK, without, tokens_B, options_.target));
    }
    CONTEXTURE_INVARIANT(name == "adist", "objective '", name, "'");
    at::Tensor mass = inputs.at(2);
    for (size_t i = 3; i < inputs.size(); ++i) mass = mass + inputs[i];
    const auto layers = static_cast<double>(inputs.size() - 2);
    const at::Tensor mass_BC =
        mass.to(at::kDouble).view({-1, B, C}).sum(0);  // of token slices, one after the other
    const at::Tensor mass_BK = mass_BC.narrow(1, 0, K) / layers;
    return distilled(objectives::adist_target(prior_BK, mass_BK, options_.target));
  };
  std::vector<at::Tensor> values;
  at::Tensor loss = at::zeros({}, log_prob_M.options());
  for (const std::string& name : options_.used()) {
    values.push_back(value(name));
    loss = loss + options_.weight(name) * values.back();
  }
  return {loss, at::stack(values).detach()};
}

}  // namespace contexture::model
