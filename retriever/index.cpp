#include "retriever/index.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/json.h"
#include "core/log.h"
#include "retriever/card.h"
#include "retriever/internal/parallel_for.h"
#include "retriever/internal/score.h"
#include "retriever/internal/state.h"

namespace contexture::retriever {
namespace {

using internal::Store;

// An id is written to a JSON file, so it has to be text.
void check_id(const std::string& id, int64_t row) {
  CONTEXTURE_DATA_REQUIRE(!id.empty(), "The id of row ", row, " is empty. Give every vector one.");
  if (std::all_of(id.begin(), id.end(), [](unsigned char c) { return c < 0x80; })) return;
  try {
    Json(id).dump();
  } catch (const Json::exception&) {
    throw DataError(concat("The id of row ", row, " is not valid UTF-8. Convert the ids first."));
  }
}

int64_t count_rows(std::span<const float> vectors, int64_t dim, const char* what) {
  CONTEXTURE_REQUIRE(vectors.size() % dim == 0, "Got ", vectors.size(), " numbers as ", what,
                     ", which is no multiple of the index's dimension ", dim,
                     ". Were they made by another encoder?");
  return static_cast<int64_t>(vectors.size()) / dim;
}

}  // namespace

Index::Index(std::unique_ptr<State> state) : state_(std::move(state)) {}
Index::Index(Index&&) noexcept = default;
Index& Index::operator=(Index&&) noexcept = default;
Index::~Index() = default;

// Checks, then (under cosine) normalises a copy; `names` are the ids of the rows, for messages.
std::vector<float> Index::State::prepare(std::span<const float> vectors,
                                         const std::function<std::string(int64_t)>& name_of) const {
  internal::check_vectors(vectors, dim, options.metric, name_of);
  std::vector<float> prepared(vectors.begin(), vectors.end());
  if (options.metric == Metric::kCosine) internal::normalise_rows(prepared, dim);
  return prepared;
}

std::unique_ptr<Store> Index::State::make_store(std::vector<float> prepared) {
  const int64_t n = static_cast<int64_t>(prepared.size()) / dim;
  built_factory = internal::without_id_map(options.factory);
  CONTEXTURE_REQUIRE(built_factory != "Flat" || options.search.empty(),
                     "An exact index (Flat) has no search parameters, but got '", options.search,
                     "'. Leave them empty, or choose another factory.");
  if (built_factory != "Flat") {
    const internal::TrainingNeed need = internal::training_need(built_factory, options.metric, dim);
    if (n < std::max<int64_t>(need.min_vectors, 1)) {
      const std::string fitting =
          n >= 78 ? concat("IVF", n / 39, ",Flat would fit, and ") : std::string();
      log::warn(
          "An index '{}' ({} lists) needs {} vectors to be trained, and there are {}: built as "
          "Flat, which is "
          "exact. {}Flat is fast at this size.",
          options.factory, need.num_lists, need.min_vectors, n, fitting);
      built_factory = "Flat";
    } else if (n < need.well_vectors) {
      log::warn(
          "An index '{}' is trained best on {} vectors or more (39 for each centroid), and there "
          "are {}: its "
          "clusters may be poor. Fewer lists or Flat would do better.",
          options.factory, need.well_vectors, n);
    }
  }
  if (built_factory == "Flat") {
    return internal::make_exact_store(options.metric, dim, std::move(prepared));
  }
  IndexOptions built = options;
  built.factory = built_factory;
  return internal::make_faiss_store(built, dim, prepared);
}

void Index::State::add_ids(std::vector<std::string> fresh) {
  const int64_t first = static_cast<int64_t>(ids.size());
  std::unordered_map<std::string_view, size_t> seen;
  seen.reserve(fresh.size());
  for (size_t i = 0; i < fresh.size(); ++i) {
    check_id(fresh[i], first + static_cast<int64_t>(i));
    const auto known = find(fresh[i]);
    CONTEXTURE_DATA_REQUIRE(!known, "The index already has the id '", fresh[i], "', at row ",
                            known.value_or(0), ", and it is number ", i,
                            " of those to add. Ids name documents: replace its vector, or use "
                            "another id.");
    const auto [met, is_new] = seen.emplace(fresh[i], i);
    CONTEXTURE_DATA_REQUIRE(is_new, "The id '", fresh[i], "' occurs twice, as number ", met->second,
                            " and number ", i, " (from 0). Ids name documents: rename one.");
  }
  ids.insert(ids.end(), std::make_move_iterator(fresh.begin()),
             std::make_move_iterator(fresh.end()));
  by_id.resize(ids.size());
  std::iota(by_id.begin() + first, by_id.end(), first);
  const auto less = [this](int64_t a, int64_t b) { return ids[a] < ids[b]; };
  std::sort(by_id.begin() + first, by_id.end(), less);
  std::inplace_merge(by_id.begin(), by_id.begin() + first, by_id.end(), less);
}

std::optional<int64_t> Index::State::find(const std::string& id) const {
  const auto found = std::lower_bound(
      by_id.begin(), by_id.end(), id,
      [this](int64_t row, const std::string& wanted) { return ids[row] < wanted; });
  if (found == by_id.end() || ids[*found] != id) return std::nullopt;
  return *found;
}

Index Index::build(const IndexOptions& options, int64_t dim, std::vector<std::string> ids,
                   std::span<const float> vectors) {
  CONTEXTURE_REQUIRE(dim >= 1 && dim <= kMaxDim, "An index of dimension ", dim,
                     " was asked for; possible are 1 to ", kMaxDim, ".");
  const int64_t n = count_rows(vectors, dim, "vectors");
  CONTEXTURE_REQUIRE(n == static_cast<int64_t>(ids.size()), "Got ", n, " vectors of dimension ",
                     dim, " and ", ids.size(), " ids: there must be one id for each vector.");
  auto state = std::make_unique<State>();
  state->options = options;
  state->dim = dim;
  state->add_ids(std::move(ids));
  std::vector<float> prepared = state->prepare(vectors, state->namer("The vector"));
  state->normalised = internal::all_unit_length(prepared, dim);
  state->store = state->make_store(std::move(prepared));
  return Index(std::move(state));
}

int64_t Index::size() const { return state_->store->size(); }
int64_t Index::dim() const { return state_->dim; }
const IndexOptions& Index::options() const { return state_->options; }
const std::string& Index::built_factory() const { return state_->built_factory; }
bool Index::normalised() const { return state_->normalised; }
std::optional<int64_t> Index::find(const std::string& id) const { return state_->find(id); }

const std::string& Index::id(int64_t row) const {
  CONTEXTURE_INVARIANT(row >= 0 && row < size(), "row ", row, " of ", size());
  return state_->ids[row];
}

std::vector<Ranking> Index::search(std::span<const float> queries, int64_t k) const {
  CONTEXTURE_REQUIRE(k >= 1, "A search for k=", k,
                     " documents was asked for; k must be at least 1.");
  const int64_t dim = state_->dim;
  const int64_t n = count_rows(queries, dim, "queries");
  const std::vector<float> prepared =
      state_->prepare(queries, [](int64_t row) { return concat("Query ", row, " of the batch"); });
  std::vector<Ranking> rankings(n);
  if (size() == 0) return rankings;
  const auto candidates = state_->store->candidates(prepared, k);
  int64_t num_pairs = 0;
  for (const auto& rows : candidates) num_pairs += static_cast<int64_t>(rows.size());
  internal::parallel_for(n, num_pairs * dim, [&](int64_t q) {
    Ranking& ranking = rankings[q];
    ranking.reserve(candidates[q].size());
    std::vector<float> buffer(dim);
    for (const int64_t row : candidates[q]) {
      const float* x = state_->store->vector(row, buffer.data());
      const double score =
          internal::pair_score(state_->options.metric, prepared.data() + q * dim, x, dim);
      CONTEXTURE_DATA_REQUIRE(std::isfinite(score), "The stored vector of '", state_->ids[row],
                              "' is not finite: the index is damaged. Build it again.");
      ranking.push_back({row, score});
    }
    const auto better = [&](const Hit& a, const Hit& b) {
      if (a.score != b.score) return a.score > b.score;
      return state_->ids[a.row] < state_->ids[b.row];
    };
    const int64_t kept = std::min<int64_t>(k, static_cast<int64_t>(ranking.size()));
    std::partial_sort(ranking.begin(), ranking.begin() + kept, ranking.end(), better);
    ranking.resize(kept);
    ranking.shrink_to_fit();
  });
  return rankings;
}

std::vector<float> Index::vector(int64_t row) const {
  CONTEXTURE_INVARIANT(row >= 0 && row < size(), "row ", row, " of ", size());
  std::vector<float> buffer(state_->dim);
  const float* x = state_->store->vector(row, buffer.data());
  if (x != buffer.data()) std::copy(x, x + state_->dim, buffer.begin());
  return buffer;
}

std::vector<float> Index::vectors() const {
  const int64_t dim = state_->dim;
  std::vector<float> all(size() * dim);
  for (int64_t row = 0; row < size(); ++row) {
    float* out = all.data() + row * dim;
    const float* x = state_->store->vector(row, out);
    if (x != out) std::copy(x, x + dim, out);
  }
  return all;
}

void Index::add(std::vector<std::string> ids, std::span<const float> vectors) {
  const int64_t n = count_rows(vectors, state_->dim, "vectors to add");
  CONTEXTURE_REQUIRE(n == static_cast<int64_t>(ids.size()), "Got ", n, " vectors and ", ids.size(),
                     " ids to add: there must be one id for each vector.");
  const std::vector<float> prepared = state_->prepare(vectors, [&](int64_t row) {
    return concat("The vector to add as '", ids[row], "' (row ", row, ")");
  });
  state_->add_ids(std::move(ids));
  state_->store->add(prepared);
  state_->normalised = state_->normalised && internal::all_unit_length(prepared, state_->dim);
}

void Index::replace(std::span<const int64_t> rows, std::span<const float> vectors) {
  const int64_t n = count_rows(vectors, state_->dim, "vectors to replace");
  CONTEXTURE_REQUIRE(n == static_cast<int64_t>(rows.size()), "Got ", n, " vectors for ",
                     rows.size(), " rows to replace.");
  for (const int64_t row : rows) {
    CONTEXTURE_INVARIANT(row >= 0 && row < size(), "row ", row, " of ", size());
  }
  const std::vector<float> prepared = state_->prepare(vectors, [&](int64_t i) {
    return concat("The new vector of '", state_->ids[rows[i]], "' (row ", rows[i], ")");
  });
  state_->store->replace(rows, prepared);
  state_->normalised = state_->normalised && internal::all_unit_length(prepared, state_->dim);
}

void Index::rebuild(std::span<const float> vectors, const std::string& encoder_hash) {
  const int64_t n = count_rows(vectors, state_->dim, "vectors");
  CONTEXTURE_REQUIRE(n == size(), "A rebuild needs a vector for each of the ", size(),
                     " rows, but got ", n, ".");
  std::vector<float> prepared = state_->prepare(vectors, state_->namer("The new vector"));
  const bool normalised = internal::all_unit_length(prepared, state_->dim);
  if (state_->built_factory == "Flat") {
    std::vector<int64_t> rows(n);
    std::iota(rows.begin(), rows.end(), int64_t{0});
    state_->store->replace(rows, prepared);
  } else {
    state_->store = state_->make_store(std::move(prepared));
  }
  state_->options.encoder_hash = encoder_hash;
  state_->normalised = normalised;
}

void Index::search_on(at::Device device, int64_t score_bytes) {
  state_->store->search_on(device, score_bytes);
}

void Index::set_search(const std::string& parameters) {
  state_->store->set_search(parameters);
  state_->options.search = parameters;
}

void Index::require_encoder(std::string_view hash) const {
  retriever::require_encoder(state_->options.encoder_hash, hash);
}

void require_encoder(std::string_view made_by, std::string_view hash) {
  CONTEXTURE_REQUIRE(made_by.empty() || made_by == hash, "The index was made by the encoder ",
                     made_by, ", the queries come from ", hash,
                     ": their vectors do not compare. Build the index again with this encoder.");
}

double overlap(const std::vector<Ranking>& approximate, const std::vector<Ranking>& exact) {
  CONTEXTURE_INVARIANT(approximate.size() == exact.size());
  double shared = 0, total = 0;
  for (size_t q = 0; q < exact.size(); ++q) {
    std::unordered_set<int64_t> found;
    for (const Hit& hit : approximate[q]) found.insert(hit.row);
    for (const Hit& hit : exact[q]) shared += static_cast<double>(found.count(hit.row));
    total += static_cast<double>(exact[q].size());
  }
  return total > 0 ? shared / total : 1.0;
}

}  // namespace contexture::retriever
