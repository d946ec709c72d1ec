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

Retriever::Retriever(const RetrieverConfig& config, const Documents& documents, Embed embed, const model::Model* whole,
                     const std::optional<State>& state, bool holds_index)
    : config_(config), documents_(&documents), embed_(std::move(embed)), whole_(whole), holds_index_(holds_index) {
  if (!state) {
    install(embed_all(), 0);
    return;
  }
  install(state->vectors_UE, state->refreshed_at);
  pending_since_ = state->pending_since;
  if (!pending_since_) return;
  std::promise<at::Tensor> done;
  done.set_value(state->pending_UE);
  pending_ = done.get_future().share();
}

Retriever::~Retriever() {
  if (pending_.valid()) pending_.wait();
}

at::Tensor Retriever::embed_all() const { return to_float(embed_(documents_->all())); }

void Retriever::install(const at::Tensor& vectors_UE, int64_t step) {
  refreshed_at_ = step;
  if (!holds_index_) return;
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
}

std::vector<Ranking> Retriever::search(const at::Tensor& query_BE, int64_t k) const {
  const at::Tensor queries = to_float(query_BE);
  if (queries.size(0) == 0 || k <= 0) return std::vector<Ranking>(queries.size(0));
  return index_->search(floats(queries), k);
}

void Retriever::refresh_now(int64_t step) { install(embed_all(), step); }

bool Retriever::after_step(int64_t step) {
  bool changed = false;
  if (pending_since_ && step >= *pending_since_ + config_.refresh_lag) {
    install(pending_.get(), *pending_since_);  // waits if the thread is late: the step of the swap is fixed
    pending_since_.reset();
    pending_ = {};
    snapshot_.reset();
    changed = true;
  }
  if (config_.refresh_every == 0 || step % config_.refresh_every != 0) return changed;
  if (config_.refresh_lag == 0) {
    refresh_now(step);
    return true;
  }
  pending_since_ = step;
  if (whole_ == nullptr) {
    // A thread of its own would mix its collectives with those of training.
    std::promise<at::Tensor> done;
    done.set_value(embed_all());
    pending_ = done.get_future().share();
    return changed;
  }
  snapshot_ = std::make_unique<model::Model>(whole_->config());
  snapshot_->materialise(whole_->dtype(), whole_->device(), 0);
  snapshot_->parameters().copy_values_from(whole_->parameters());
  pending_ = std::async(std::launch::async, [this] { return to_float(snapshot_->embed("doc", documents_->all())); }).share();
  return changed;
}

void Retriever::update(int64_t row) {
  const at::Tensor vector = to_float(embed_({&documents_->sequence(row)}));
  index_->replace(std::span<const int64_t>(&row, 1), floats(vector));
  if (vectors_UE_.defined()) vectors_UE_.select(0, row).copy_(vector[0]);
}

Retriever::State Retriever::state() const {
  State state;
  state.refreshed_at = refreshed_at_;
  state.pending_since = pending_since_;
  if (pending_since_) state.pending_UE = pending_.get();
  state.vectors_UE = vectors_UE_;
  if (!state.vectors_UE.defined() && holds_index_) {
    const std::vector<float> vectors = index_->vectors();
    state.vectors_UE = at::tensor(at::ArrayRef<float>(vectors), at::kFloat).view({index_->size(), index_->dim()});
  }
  return state;
}

}  // namespace contexture::retriever
