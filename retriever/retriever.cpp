// U documents, E embedding width, B queries.
#include "retriever/retriever.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/fault_point.h"
#include "core/log.h"
#include "parallel/device.h"
#include "parallel/gather.h"
#include "retriever/rank_search.h"

namespace contexture::retriever {
namespace {

std::span<const float> floats(const at::Tensor& t) {
  return {t.data_ptr<float>(), static_cast<size_t>(t.numel())};
}

at::Tensor to_float(const at::Tensor& t) { return t.to(at::kCPU, at::kFloat).contiguous(); }

}  // namespace

Retriever::Retriever(const RetrieverConfig& config, const Documents& documents, Embed embed,
                     const model::Model* whole, const parallel::Groups& groups,
                     const std::optional<State>& state, RefreshRanks* refresh_ranks,
                     at::Device device)
    : config_(config),
      documents_(&documents),
      embed_(std::move(embed)),
      whole_(whole),
      groups_(groups),
      refresh_ranks_(refresh_ranks),
      device_(device),
      schedule_(config.schedule()) {
  if (counts()) retrieved_U_ = at::zeros({documents.size()}, at::kLong);
  if (!state) {
    install(embed_kept(), 0);
    return;
  }
  const Rows mine = kept();
  for (const parallel::RowPieces* pieces : {&state->vectors, &state->pending}) {
    CONTEXTURE_DATA_REQUIRE(pieces->empty() || pieces->rows() == documents.size(),
                            "The checkpoint holds vectors of ", pieces->rows(),
                            " documents, data.corpus has ", documents.size(),
                            ". Resume with the corpus that the run began with.");
  }
  install(state->vectors.slice(mine.begin, mine.end), state->refreshed_at);
  if (counts() && state->retrieved_U.defined() && state->retrieved_U.numel() == documents.size())
    retrieved_U_.copy_(state->retrieved_U);
  pending_since_ = state->pending_since;
  if (!pending_since_) return;
  std::promise<at::Tensor> done;
  done.set_value(state->pending.slice(mine.begin, mine.end));
  pending_ = done.get_future().share();
}

Retriever::~Retriever() {
  // The thread uses what is destroyed here; what refresh ranks embedded nobody has to fetch any
  // more.
  if (refresh_ranks_ == nullptr) await_pending();
}

Rows Retriever::embedded() const {
  const auto [begin, end] =
      parallel::part_of(documents_->size(), {groups_.dp_rank(), groups_.dp_size()});
  return {begin, end};
}

Rows Retriever::kept() const {
  if (!sharded()) return {0, documents_->size()};
  const parallel::Communicator* replica = groups_.replica.get();
  return kept_rows(documents_->size(), {groups_.dp_rank(), groups_.dp_size()},
                   replica ? parallel::Part{replica->rank(), replica->size()} : parallel::Part());
}

at::Tensor Retriever::embed_kept() const {
  // In parts, the same number on all replicas, so that nobody holds many vectors more than he
  // keeps.
  constexpr int64_t kMostAtOnce = 1 << 16;
  const int64_t most = (documents_->size() + groups_.dp_size() - 1) / groups_.dp_size();
  const auto parts = static_cast<int>(std::max<int64_t>(1, (most + kMostAtOnce - 1) / kMostAtOnce));
  const Rows replica = embedded();
  const Rows mine = sharded() ? kept() : replica;
  std::vector<at::Tensor> vectors;
  for (int p = 0; p < parts; ++p) {
    const auto [begin, end] = parallel::part_of(replica.end - replica.begin, {p, parts});
    std::vector<const model::Sequence*> some;
    for (int64_t row = replica.begin + begin; row < replica.begin + end; ++row)
      some.push_back(&documents_->sequence(row));
    const at::Tensor embedded = to_float(embed_(some));
    const int64_t from = std::max(mine.begin, replica.begin + begin),
                  to = std::max(from, std::min(mine.end, replica.begin + end));
    vectors.push_back(
        embedded.narrow(0, std::min(from - replica.begin - begin, embedded.size(0)), to - from)
            .clone());
  }
  fault_point("refresh");
  const at::Tensor all = at::cat(vectors);
  return sharded() ? all : parallel::gather_rows(groups_.dp.get(), all);
}

at::Tensor Retriever::embed_some(const std::vector<const model::Sequence*>& sequences) const {
  const auto [begin, end] = parallel::part_of(static_cast<int64_t>(sequences.size()),
                                              {groups_.dp_rank(), groups_.dp_size()});
  return parallel::gather_rows(
      groups_.dp.get(), to_float(embed_({sequences.begin() + begin, sequences.begin() + end})));
}

void Retriever::install(const at::Tensor& vectors_UE, int64_t step) {
  refreshed_at_ = step;
  if (!holds_index()) return;
  if (index_ == nullptr || index_->size() != vectors_UE.size(0)) {
    IndexOptions options;
    options.factory = config_.factory;
    options.metric = Metric::kInnerProduct;
    options.search = config_.search;
    std::vector<std::string> ids;
    for (int64_t row = kept().begin; row < kept().end; ++row)
      ids.push_back(documents_->corpus().document(row).id);
    index_ = std::make_unique<Index>(
        Index::build(options, vectors_UE.size(1), std::move(ids), floats(vectors_UE)));
    if (!device_.is_cpu()) index_->search_on(device_);
  } else {
    index_->rebuild(floats(vectors_UE), "");
  }
  // Training the index anew on its own decoded vectors would give another index than the one that a
  // checkpoint saw.
  vectors_UE_ = index_->built_factory() == "Flat" ? at::Tensor() : vectors_UE;
}

std::optional<std::vector<Ranking>> Retriever::search_all_ranks(const at::Tensor& query_BE,
                                                                int64_t k) const {
  const int64_t first = kept().begin;
  auto found =
      search_ranks(*groups_.world, query_BE, k, [&](std::span<const float> queries, int64_t most) {
        std::vector<Ranking> mine = index_->search(queries, most);
        for (Ranking& ranking : mine) {
          for (Hit& hit : ranking) hit.row += first;
        }
        return mine;
      });
  if (!found) return found;
  const Corpus& corpus = documents_->corpus();
  for (Ranking& ranking : *found)
    keep_best(ranking, k,
              [&corpus](int64_t row) -> const std::string& { return corpus.document(row).id; });
  return found;
}

std::vector<Ranking> Retriever::search(const at::Tensor& query_BE, int64_t k) const {
  const at::Tensor queries = to_float(query_BE);
  if (k <= 0) return std::vector<Ranking>(queries.size(0));
  if (sharded()) return *search_all_ranks(queries, k);
  if (queries.size(0) == 0) return {};
  return index_->search(floats(queries), k);
}

std::vector<Ranking> Retriever::look_up(const at::Tensor& query_BE, int64_t k) {
  probe_BE_ = query_BE;
  return search(query_BE, k);
}

void Retriever::count(const at::Tensor& rows) {
  const at::Tensor found = rows.reshape(-1).masked_select(rows.reshape(-1).ge(0));
  retrieved_U_.index_add_(0, found, at::ones_like(found));
}

at::Tensor Retriever::stored() const {
  if (vectors_UE_.defined()) return vectors_UE_;
  const std::vector<float> vectors = index_->vectors();
  return at::tensor(at::ArrayRef<float>(vectors), at::kFloat).view({index_->size(), index_->dim()});
}

void Retriever::measured(const std::vector<int64_t>* rows, const at::Tensor& fresh_RE,
                         int64_t steps, const std::function<void()>& change) {
  if (!holds_index()) return change();
  Staleness found;
  found.steps = steps;
  at::Tensor old_RE = stored();
  if (rows != nullptr)
    old_RE = old_RE.index_select(0, at::tensor(at::ArrayRef<int64_t>(*rows), at::kLong));
  // Embeddings have unit length.
  const at::Tensor cosines =
      at::tensor({(old_RE.to(at::kDouble) * fresh_RE.to(at::kDouble)).sum().item<double>(),
                  static_cast<double>(old_RE.size(0))},
                 at::kDouble);
  if (sharded()) groups_.world->all_reduce(cosines).wait();
  found.cosine = cosines[0].item<double>() / cosines[1].item<double>();
  const int64_t k = std::max<int64_t>(1, config_.documents);
  const bool probe = probe_BE_.defined() && (sharded() || probe_BE_.size(0) > 0);
  const std::vector<Ranking> before =
      probe ? search(probe_BE_, std::max(k, config_.overretrieve)) : std::vector<Ranking>();
  change();
  if (probe) found.recall = overlap(before, search(probe_BE_, k));
  staleness_ = found;
}

void Retriever::refresh_now(int64_t step) {
  const at::Tensor fresh = embed_kept();
  measured(nullptr, fresh, step - refreshed_at_, [&] { install(fresh, step); });
}

void Retriever::refresh_partly(int64_t step) {
  // The most retrieved first; of equals, the one that stands first in the corpus.
  const at::Tensor order = std::get<1>(retrieved_U_.sort(/*stable=*/true, 0, /*descending=*/true));
  const Rows mine = kept();
  std::vector<int64_t> rows,
      places;  // of those kept here, and where they stand among all that are embedded
  std::vector<const model::Sequence*> sequences;
  for (int64_t i = 0; i < std::min(config_.partial_documents, order.numel()); ++i) {
    const int64_t row = order.data_ptr<int64_t>()[i];
    if (retrieved_U_.data_ptr<int64_t>()[row] == 0) break;
    if (mine.has(row)) {
      rows.push_back(row - mine.begin);
      places.push_back(static_cast<int64_t>(sequences.size()));
    }
    sequences.push_back(&documents_->sequence(row));
  }
  retrieved_U_.zero_();
  if (sequences.empty()) return;
  const at::Tensor fresh_RE =
      embed_some(sequences).index_select(0, at::tensor(at::ArrayRef<int64_t>(places), at::kLong));
  measured(&rows, fresh_RE, step - refreshed_at_, [&] {
    if (!holds_index() || rows.empty()) return;
    if (!vectors_UE_.defined()) return index_->replace(rows, floats(fresh_RE));
    // Trained anew, as after a resume: the index is a function of its vectors.
    const at::Tensor all = vectors_UE_.clone();
    all.index_copy_(0, at::tensor(at::ArrayRef<int64_t>(rows), at::kLong), fresh_RE);
    install(all, refreshed_at_);
  });
}

bool Retriever::after_step(int64_t step) {
  bool changed = false;
  if (pending_since_ && step >= *pending_since_ + config_.refresh_lag) {
    const at::Tensor fresh =
        pending_.get();  // waits if the thread is late: the step of the swap is fixed
    measured(nullptr, fresh, *pending_since_ - refreshed_at_,
             [&] { install(fresh, *pending_since_); });
    pending_since_.reset();
    pending_ = {};
    snapshot_.reset();
    changed = true;
  }
  if (!schedule_.due(step)) {
    if (!counts() || step % config_.partial_every != 0) return changed;
    refresh_partly(step);
    return true;
  }
  if (config_.refresh_lag == 0) {
    refresh_now(step);
    return true;
  }
  pending_since_ = step;
  if (refresh_ranks_ != nullptr) {
    refresh_ranks_->start();
    pending_ = std::async(std::launch::deferred, [this] {
                 return refresh_ranks_->fetch(holds_index() ? kept() : Rows());
               }).share();
    return changed;
  }
  if (whole_ == nullptr) {
    // A thread of its own would mix its collectives with those of training.
    std::promise<at::Tensor> done;
    done.set_value(embed_kept());
    pending_ = done.get_future().share();
    return changed;
  }
  snapshot_ =
      std::make_unique<model::Model>(whole_->config(), nullptr, false, whole_->objectives());
  snapshot_->materialise(whole_->dtype(), whole_->device(), 0);
  snapshot_->parameters().copy_values_from(whole_->parameters());
  pending_ =
      std::async(std::launch::async, [this, copied = parallel::StreamMark(whole_->device())] {
        copied.pass();
        return to_float(snapshot_->embed("doc", documents_->all()));
      }).share();
  return changed;
}

void Retriever::update(int64_t row) {
  const at::Tensor vector = embed_some({&documents_->sequence(row)});
  if (!holds_index() || !kept().has(row)) return;
  const int64_t mine = row - kept().begin;
  index_->replace(std::span<const int64_t>(&mine, 1), floats(vector));
  if (vectors_UE_.defined()) vectors_UE_.select(0, mine).copy_(vector[0]);
}

void Retriever::await_pending() const {
  if (pending_.valid()) pending_.wait();
}

Retriever::State Retriever::state() const {
  const auto pieces = [this](const at::Tensor& vectors) {
    return sharded() ? parallel::RowPieces(kept().begin, vectors) : parallel::RowPieces(vectors);
  };
  State state;
  state.refreshed_at = refreshed_at_;
  state.pending_since = pending_since_;
  if (pending_since_) state.pending = pieces(pending_.get());
  if (holds_index()) state.vectors = pieces(stored());
  if (retrieved_U_.defined())
    state.retrieved_U = retrieved_U_.clone();  // a save may still read it when counts go on
  return state;
}

}  // namespace contexture::retriever
