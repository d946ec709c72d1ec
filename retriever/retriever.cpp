// U documents, E embedding width, B queries.
#include "retriever/retriever.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/log.h"

namespace contexture::retriever {
namespace {

std::span<const float> floats(const at::Tensor& t) { return {t.data_ptr<float>(), static_cast<size_t>(t.numel())}; }

at::Tensor to_float(const at::Tensor& t) { return t.to(at::kCPU, at::kFloat).contiguous(); }

}  // namespace

void RetrieverConfig::validate() const {
  CONTEXTURE_USAGE_REQUIRE(documents >= 0, "retriever.documents=", documents, " must not be negative.");
  CONTEXTURE_USAGE_REQUIRE(refresh_every >= 0, "retriever.refresh_every=", refresh_every, " must not be negative.");
  CONTEXTURE_USAGE_REQUIRE(refresh_lag >= 0 && (refresh_lag == 0 || refresh_lag <= refresh_every), "retriever.refresh_lag=",
                           refresh_lag, " must lie between 0 and retriever.refresh_every=", refresh_every,
                           ": one refresh must be swapped in before the next starts.");
}

Retriever::Retriever(const RetrieverConfig& config, const Documents& documents, const model::Model& model)
    : config_(config), documents_(&documents), model_(&model) {
  install(embed_all(model), 0);
}

Retriever::~Retriever() {
  if (pending_.valid()) pending_.wait();
}

at::Tensor Retriever::embed_all(const model::Model& model) const {
  // Sequences of like length share a pass; results do not depend on it.
  std::vector<const model::Sequence*> all = documents_->all();
  return to_float(model.embed("doc", all));
}

void Retriever::install(const at::Tensor& vectors_UE, int64_t step) {
  if (index_ == nullptr || index_->size() != vectors_UE.size(0)) {
    IndexOptions options;
    options.factory = config_.factory;
    options.metric = Metric::kInnerProduct;
    options.search = config_.search;
    index_ = std::make_unique<Index>(Index::build(options, vectors_UE.size(1), documents_->corpus().ids(), floats(vectors_UE)));
  } else {
    index_->rebuild(floats(vectors_UE), "");
  }
  // Training the index anew on its own decoded vectors would give another index than the one that a checkpoint saw.
  vectors_UE_ = index_->built_factory() == "Flat" ? at::Tensor() : vectors_UE;
  refreshed_at_ = step;
}

std::vector<Ranking> Retriever::search(const at::Tensor& query_BE, int64_t k) const {
  const at::Tensor queries = to_float(query_BE);
  if (queries.size(0) == 0 || k <= 0) return std::vector<Ranking>(queries.size(0));
  return index_->search(floats(queries), k);
}

void Retriever::refresh_now(int64_t step) { install(embed_all(*model_), step); }

void Retriever::start(std::unique_ptr<model::Model> snapshot, int64_t step) {
  snapshot_ = std::move(snapshot);
  pending_since_ = step;
  pending_ = std::async(std::launch::async, [this] { return embed_all(*snapshot_); });
}

bool Retriever::after_step(int64_t step) {
  bool changed = false;
  if (pending_since_ && step >= *pending_since_ + config_.refresh_lag) {
    install(pending_.get(), *pending_since_);  // waits if the thread is late: the step of the swap is fixed
    pending_since_.reset();
    snapshot_.reset();
    changed = true;
  }
  if (config_.refresh_every == 0 || step % config_.refresh_every != 0) return changed;
  if (config_.refresh_lag == 0) {
    refresh_now(step);
    return true;
  }
  auto snapshot = std::make_unique<model::Model>(model_->config());
  snapshot->materialise(model_->dtype(), model_->device(), 0);
  snapshot->parameters().copy_values_from(model_->parameters());
  start(std::move(snapshot), step);
  return changed;
}

void Retriever::update(int64_t row) {
  const at::Tensor vector = to_float(model_->embed("doc", {&documents_->sequence(row)}));
  index_->replace(std::span<const int64_t>(&row, 1), floats(vector));
  if (vectors_UE_.defined()) vectors_UE_.select(0, row).copy_(vector[0]);
}

Retriever::State Retriever::state() const {
  State state;
  state.refreshed_at = refreshed_at_;
  state.vectors_UE = vectors_UE_;
  if (!state.vectors_UE.defined()) {
    const std::vector<float> vectors = index_->vectors();
    state.vectors_UE = at::tensor(at::ArrayRef<float>(vectors), at::kFloat).view({index_->size(), index_->dim()});
  }
  state.pending_since = pending_since_;
  if (pending_since_) {
    for (const auto& p : snapshot_->parameters().all()) state.pending[p->name] = p->value.detach();
  }
  return state;
}

void Retriever::restore(const State& state) {
  if (pending_.valid()) pending_.wait();
  pending_since_.reset();
  install(state.vectors_UE, state.refreshed_at);
  if (!state.pending_since) return;
  auto snapshot = std::make_unique<model::Model>(model_->config());
  snapshot->materialise(model_->dtype(), model_->device(), 0);
  const at::NoGradGuard no_grad;
  for (const auto& [name, value] : state.pending) snapshot->parameters().at(name).value.copy_(value);
  start(std::move(snapshot), *state.pending_since);
}

}  // namespace contexture::retriever
