#include "retriever/spread_index.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/json.h"
#include "core/log.h"
#include "parallel/gather.h"
#include "parallel/parameters.h"

namespace contexture::retriever {
namespace {

at::Tensor tensor_of(std::span<const float> numbers, int64_t dim) {
  return at::tensor(at::ArrayRef<float>(numbers.data(), numbers.size()), at::kFloat)
      .view({-1, dim});
}

int64_t hash_of(const std::string& id) {
  return static_cast<int64_t>(std::hash<std::string>()(id));
}

// Throws DataError on rank 0 where two ranks hold an id. mine: null on a rank without shards. The
// ranks exchange hashes, 8 bytes a document, and ids only where hashes meet. Collective.
void require_distinct_ids(parallel::Communicator& world, const ShardedIndex* mine) {
  const int64_t own = mine == nullptr ? 0 : mine->size();
  at::Tensor hashes = at::empty({own, 1}, at::kLong);
  for (int64_t row = 0; row < own; ++row) hashes.data_ptr<int64_t>()[row] = hash_of(mine->id(row));
  hashes = parallel::gather_rows(&world, hashes);
  // Each rank looks through a share of them.
  std::vector<int64_t> some;
  for (int64_t i = 0; i < hashes.numel(); ++i) {
    const int64_t hash = hashes.data_ptr<int64_t>()[i];
    if (static_cast<int>(static_cast<uint64_t>(hash) % static_cast<uint64_t>(world.size())) ==
        world.rank())
      some.push_back(hash);
  }
  std::sort(some.begin(), some.end());
  std::vector<int64_t> twice;
  for (size_t i = 1; i < some.size(); ++i) {
    if (some[i] == some[i - 1]) twice.push_back(some[i]);
  }
  const at::Tensor met = parallel::gather_rows(
      &world, at::tensor(at::ArrayRef<int64_t>(twice), at::kLong).view({-1, 1}));
  const std::unordered_set<int64_t> suspect(met.data_ptr<int64_t>(),
                                            met.data_ptr<int64_t>() + met.numel());
  Json held = Json::array();
  for (int64_t row = 0; !suspect.empty() && row < own; ++row) {
    if (suspect.contains(hash_of(mine->id(row)))) held.push_back({mine->id(row), mine->where(row)});
  }
  const std::vector<std::string> texts = parallel::gather_texts(&world, held.dump());
  if (world.rank() != 0) return;
  std::unordered_map<std::string, std::string> places;
  for (const std::string& text : texts) {
    for (const Json& one : Json::parse(text)) {
      const auto [before, is_new] =
          places.emplace(one[0].get<std::string>(), one[1].get<std::string>());
      CONTEXTURE_DATA_REQUIRE(
          is_new, twice_message(before->first, before->second, one[1].get<std::string>()));
    }
  }
}

}  // namespace

SpreadIndex SpreadIndex::load(const std::filesystem::path& path, bool mapped,
                              std::shared_ptr<parallel::Communicator> world) {
  SpreadIndex out;
  out.world_ = std::move(world);
  if (out.world_ == nullptr) {
    out.mine_ = ShardedIndex::load(path, mapped);
    out.size_ = out.mine_->size();
    out.dim_ = out.mine_->dim();
    out.encoder_hash_ = out.mine_->options().encoder_hash;
    return out;
  }
  const int rank = out.world_->rank(), ranks = out.world_->size();
  const ShardList list = ShardList::read(path);
  const auto shards = static_cast<int64_t>(list.shards.size());
  const auto [begin, end] = parallel::part_of(shards, {rank, ranks});
  if (begin < end) out.mine_ = ShardedIndex::load(list, begin, end, mapped);
  if (rank == 0 && shards < ranks) {
    log::warn(
        "{} has {} shards, so {} of {} ranks have nothing to search. Cut it: contexture index "
        "merge {} --shards {} --output NAME.shards.json",
        path.string(), shards, ranks - shards, ranks, path.string(), ranks);
  }
  Json about = nullptr;
  if (out.mine_) {
    const IndexOptions& options = out.mine_->options();
    about = {{"size", out.mine_->size()},
             {"dim", out.mine_->dim()},
             {"metric", metric_name(options.metric)},
             {"encoder", options.encoder_hash}};
  }
  const std::vector<std::string> texts = parallel::gather_texts(out.world_.get(), about.dump());
  Json like = nullptr;
  for (int r = 0; r < ranks; ++r) {
    Json one = Json::parse(texts[static_cast<size_t>(r)]);
    if (one.is_null()) continue;
    if (r == rank) out.first_row_ = out.size_;
    out.size_ += one["size"].get<int64_t>();
    one.erase("size");
    if (like.is_null()) like = one;
    CONTEXTURE_DATA_REQUIRE(
        rank != 0 || one == like, path.string(),
        ": its shards differ in dimension, metric or encoder. Some belong to another index.");
  }
  CONTEXTURE_DATA_REQUIRE(rank != 0 || list.count < 0 || out.size_ == list.count, path.string(),
                          ": says it has ", list.count, " documents, its shards have ", out.size_,
                          ". One of them was replaced.");
  require_distinct_ids(*out.world_, out.mine_ ? &*out.mine_ : nullptr);
  out.dim_ = like["dim"].get<int64_t>();
  out.encoder_hash_ = like["encoder"].get<std::string>();
  return out;
}

void SpreadIndex::set_search(const std::string& parameters) {
  if (mine_) mine_->set_search(parameters);
}

void SpreadIndex::require_encoder(std::string_view hash) const {
  retriever::require_encoder(encoder_hash_, hash);
}

std::optional<std::vector<float>> SpreadIndex::vector_of(const std::string& id) const {
  std::vector<float> found;
  if (mine_) {
    if (const auto row = mine_->find(id)) found = mine_->vector(*row);
  }
  const at::Tensor all = parallel::gather_rows(world_.get(), tensor_of(found, dim_));
  if (all.size(0) == 0) return std::nullopt;
  return std::vector<float>(all.data_ptr<float>(), all.data_ptr<float>() + dim_);
}

std::optional<std::vector<std::vector<NamedHit>>> SpreadIndex::search_together(
    std::span<const float> queries, int64_t k) const {
  std::vector<std::string> ids;  // of what was found here
  std::vector<int64_t> rows;
  const auto search = [&](std::span<const float> all, int64_t most) {
    std::vector<Ranking> found(all.size() / static_cast<size_t>(dim_));
    if (mine_) found = mine_->search(all, most);
    for (Ranking& ranking : found) {
      for (Hit& hit : ranking) {
        ids.push_back(mine_->id(hit.row));
        rows.push_back(hit.row += first_row_);
      }
    }
    return found;
  };
  auto found = search_ranks(*world_, tensor_of(queries, dim_), k, search);
  if (!found) return std::nullopt;
  std::unordered_map<int64_t, std::string> names;
  for (const std::string& text : parallel::gather_texts(world_.get(), Json{rows, ids}.dump())) {
    const Json pair = Json::parse(text);
    for (size_t i = 0; i < pair[0].size(); ++i)
      names[pair[0][i].get<int64_t>()] = pair[1][i].get<std::string>();
  }
  std::vector<std::vector<NamedHit>> out(found->size());
  for (size_t q = 0; q < found->size(); ++q) {
    keep_best((*found)[q], k, [&](int64_t row) -> const std::string& { return names.at(row); });
    for (const Hit& hit : (*found)[q]) out[q].push_back({names.at(hit.row), hit.score});
  }
  return out;
}

std::vector<std::vector<NamedHit>> SpreadIndex::search(std::span<const float> queries,
                                                       int64_t k) const {
  CONTEXTURE_INVARIANT(k >= 1);
  std::vector<std::vector<NamedHit>> out;
  if (world_ == nullptr) {
    for (const Ranking& ranking : mine_->search(queries, k)) {
      out.emplace_back();
      for (const Hit& hit : ranking) out.back().push_back({mine_->id(hit.row), hit.score});
    }
    return out;
  }
  // Some at a time: every rank holds every rank's hits of these.
  const size_t at_once = 256 * static_cast<size_t>(dim_);
  for (size_t begin = 0; begin < queries.size(); begin += at_once) {
    auto some =
        *search_together(queries.subspan(begin, std::min(at_once, queries.size() - begin)), k);
    std::move(some.begin(), some.end(), std::back_inserter(out));
  }
  return out;
}

void SpreadIndex::assist() const {
  while (search_together({}, 0)) {
  }
}

void SpreadIndex::release() const {
  if (world_ != nullptr) search_together({}, 0);
}

}  // namespace contexture::retriever
