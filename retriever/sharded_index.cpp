#include "retriever/sharded_index.h"

#include <algorithm>
#include <unordered_map>

#include "core/error.h"
#include "core/files.h"
#include "core/format.h"
#include "core/json.h"
#include "retriever/rank_search.h"

namespace contexture::retriever {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnding = ".shards.json";
constexpr const char* kFormat = "contexture-index-shards";

fs::path shard_path(const fs::path& list, int64_t shard, int64_t num_shards) {
  std::string stem = list.string();
  stem.resize(stem.size() - kEnding.size());
  return stem + format(".{:05}-of-{:05}.faiss", shard, num_shards);
}

// "a and b differ in metric: cosine, l2"
void require_alike(const ShardedIndex& a, const ShardedIndex& b, const char* what) {
  const IndexOptions &x = a.options(), &y = b.options();
  CONTEXTURE_REQUIRE(x.metric == y.metric, what, ": one compares by ", metric_name(x.metric),
                     ", another by ", metric_name(y.metric), ". Build them with one --metric.");
  CONTEXTURE_REQUIRE(a.dim() == b.dim(), what, ": one has vectors of ", a.dim(),
                     " numbers, another of ", b.dim(), ". They come from different encoders.");
  CONTEXTURE_REQUIRE(x.encoder_hash == y.encoder_hash, what, ": one was made by the encoder '",
                     x.encoder_hash, "', another by '", y.encoder_hash,
                     "'. Their vectors do not compare: build them with one encoder.");
}

}  // namespace

bool is_shard_list(const fs::path& path) { return path.string().ends_with(kEnding); }

ShardedIndex::ShardedIndex(std::vector<Index> shards, std::vector<std::string> names)
    : shards_(std::move(shards)), names_(std::move(names)) {
  CONTEXTURE_INVARIANT(!shards_.empty() && names_.size() <= shards_.size());
  while (names_.size() < shards_.size()) names_.push_back(concat("shard ", names_.size()));
  first_row_.push_back(0);
  for (const Index& shard : shards_) first_row_.push_back(first_row_.back() + shard.size());
}

ShardList ShardList::read(const fs::path& path) {
  if (!is_shard_list(path)) return {path, {path}};
  const std::string where = path.string();
  const Json json = read_json_file(where);
  CONTEXTURE_DATA_REQUIRE(json.is_object() && json.value("format", Json()) == kFormat &&
                              json_get<int64_t>(json, "version", where) == 1,
                          where, ": is no list of shards (format \"", kFormat, "\", version 1).");
  ShardList list{path, {}, json_get<int64_t>(json, "count", where)};
  for (const std::string& name : json_get<std::vector<std::string>>(json, "shards", where)) {
    CONTEXTURE_DATA_REQUIRE(fs::path(name).filename() == name, where, ": '", name,
                            "' must be a file beside it.");
    list.shards.push_back(path.parent_path() / name);
  }
  CONTEXTURE_DATA_REQUIRE(!list.shards.empty(), where, ": lists no shard.");
  CONTEXTURE_DATA_REQUIRE(list.count >= 0, where, ": says it has ", list.count, " documents.");
  return list;
}

ShardedIndex ShardedIndex::load(const ShardList& list, int64_t begin, int64_t end, bool mapped) {
  const std::string where = list.path.string();
  std::vector<Index> shards;
  std::vector<std::string> names;
  for (int64_t s = begin; s < end; ++s) {
    shards.push_back(Index::load(list.shards[s], mapped));
    names.push_back(list.shards[s].string());
  }
  for (const Index& shard : shards) {
    CONTEXTURE_DATA_REQUIRE(
        shard.dim() == shards[0].dim() && shard.options().metric == shards[0].options().metric &&
            shard.options().encoder_hash == shards[0].options().encoder_hash,
        where,
        ": its shards differ in dimension, metric or encoder. Some belong to another index.");
  }
  ShardedIndex all(std::move(shards), std::move(names));
  require_distinct_ids({&all});
  return all;
}

ShardedIndex ShardedIndex::load(const fs::path& path, bool mapped) {
  const ShardList list = ShardList::read(path);
  ShardedIndex all = load(list, 0, static_cast<int64_t>(list.shards.size()), mapped);
  CONTEXTURE_DATA_REQUIRE(list.count < 0 || all.size() == list.count, path.string(),
                          ": says it has ", list.count, " documents, its shards have ", all.size(),
                          ". One of them was replaced.");
  return all;
}

std::pair<size_t, int64_t> ShardedIndex::place(int64_t row) const {
  CONTEXTURE_INVARIANT(row >= 0 && row < size(), "row ", row, " of ", size());
  const auto after = std::upper_bound(first_row_.begin(), first_row_.end(), row);
  const auto shard = static_cast<size_t>(after - first_row_.begin()) - 1;
  return {shard, row - first_row_[shard]};
}

const std::string& ShardedIndex::id(int64_t row) const {
  const auto [shard, within] = place(row);
  return shards_[shard].id(within);
}

std::string ShardedIndex::where(int64_t row) const {
  const auto [shard, within] = place(row);
  return concat(names_[shard], " (row ", within, ")");
}

std::vector<float> ShardedIndex::vector(int64_t row) const {
  const auto [shard, within] = place(row);
  return shards_[shard].vector(within);
}

std::optional<int64_t> ShardedIndex::find(const std::string& id) const {
  for (size_t s = 0; s < shards_.size(); ++s) {
    if (const auto row = shards_[s].find(id)) return first_row_[s] + *row;
  }
  return std::nullopt;
}

std::vector<Ranking> ShardedIndex::search(std::span<const float> queries, int64_t k) const {
  std::vector<Ranking> merged = shards_[0].search(queries, k);
  if (shards_.size() == 1) return merged;
  for (size_t s = 1; s < shards_.size(); ++s) {
    const std::vector<Ranking> more = shards_[s].search(queries, k);
    for (size_t q = 0; q < merged.size(); ++q) {
      for (const Hit& hit : more[q]) merged[q].push_back({first_row_[s] + hit.row, hit.score});
    }
  }
  for (Ranking& ranking : merged) {
    keep_best(ranking, k, [this](int64_t row) -> const std::string& { return id(row); });
  }
  return merged;
}

void ShardedIndex::set_search(const std::string& parameters) {
  for (Index& shard : shards_) shard.set_search(parameters);
}

void build_shards(const IndexOptions& options, int64_t dim, std::vector<std::string> ids,
                  std::span<const float> vectors, int64_t num_shards, const fs::path& path) {
  const auto n = static_cast<int64_t>(ids.size());
  CONTEXTURE_USAGE_REQUIRE(
      num_shards >= 1 && num_shards <= std::max<int64_t>(1, n), "Cutting ", n, " documents into ",
      num_shards, " shards was asked for; possible are 1 to ", std::max<int64_t>(1, n), ".");
  CONTEXTURE_USAGE_REQUIRE(is_shard_list(path),
                           "Shards are written beside a list of them: --output must end in ",
                           kEnding, ", but is ", path.string(), ".");
  CONTEXTURE_INVARIANT(static_cast<int64_t>(vectors.size()) == n * dim);
  std::unordered_map<std::string_view, int64_t> seen;
  for (int64_t row = 0; row < n; ++row) {
    const auto [met, is_new] = seen.emplace(ids[static_cast<size_t>(row)], row);
    CONTEXTURE_DATA_REQUIRE(
        is_new, twice_message(met->first, concat("row ", met->second), concat("row ", row)));
  }
  Json names = Json::array();
  for (int64_t shard = 0; shard < num_shards; ++shard) {
    const int64_t begin = n * shard / num_shards, end = n * (shard + 1) / num_shards;
    const fs::path file = shard_path(path, shard, num_shards);
    Index::build(
        options, dim, {ids.begin() + begin, ids.begin() + end},
        vectors.subspan(static_cast<size_t>(begin * dim), static_cast<size_t>((end - begin) * dim)))
        .save(file);
    names.push_back(file.filename().string());
  }
  const Json list{{"format", kFormat}, {"version", 1}, {"count", n}, {"shards", names}};
  write_file_atomic(path, std::string_view(list.dump(2) + "\n"));
}

std::string twice_message(std::string_view id, const std::string& a, const std::string& b) {
  return concat("The id '", id, "' is in ", a, " and in ", b,
                ". Ids name documents: rename one, or leave one out.");
}

void require_distinct_ids(const std::vector<const ShardedIndex*>& sources) {
  if (sources.size() == 1 && sources[0]->shards().size() == 1) return;  // an Index sees to its own
  std::unordered_map<std::string_view, std::pair<size_t, int64_t>> places;
  for (size_t s = 0; s < sources.size(); ++s) {
    for (int64_t row = 0; row < sources[s]->size(); ++row) {
      const auto [met, is_new] = places.emplace(sources[s]->id(row), std::pair(s, row));
      if (is_new) continue;
      const auto [source, first] = met->second;
      throw DataError(
          twice_message(met->first, sources[source]->where(first), sources[s]->where(row)));
    }
  }
}

void write_merged(const std::vector<const ShardedIndex*>& sources, const std::string& factory,
                  int64_t num_shards, const fs::path& path) {
  CONTEXTURE_INVARIANT(!sources.empty());
  IndexOptions options = sources[0]->options();
  if (!factory.empty() && factory != options.factory) {
    options.factory = factory;
    options.search.clear();
  }
  for (const ShardedIndex* source : sources)
    require_alike(*sources[0], *source, "The indexes do not fit together");
  require_distinct_ids(sources);
  std::vector<std::string> ids;
  std::vector<float> vectors;
  for (const ShardedIndex* source : sources) {
    for (const Index& shard : source->shards()) {
      for (int64_t row = 0; row < shard.size(); ++row) ids.push_back(shard.id(row));
      const std::vector<float> more = shard.vectors();
      vectors.insert(vectors.end(), more.begin(), more.end());
    }
  }
  const int64_t dim = sources[0]->dim();
  if (num_shards > 1) return build_shards(options, dim, std::move(ids), vectors, num_shards, path);
  CONTEXTURE_USAGE_REQUIRE(
      !is_shard_list(path), path.string(),
      " names a list of shards; give --shards, or another name for one index.");
  Index::build(options, dim, std::move(ids), vectors).save(path);
}

}  // namespace contexture::retriever
