#include "retriever/choose_index.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "core/format.h"

namespace contexture::retriever {
namespace {

constexpr int64_t kIdBytes = 64;    // of a document's id and its place in the order of ids
constexpr int64_t kListBytes = 16;  // of a vector's entry in an inverted list and in the map back
constexpr int64_t kExactAlways =
    50'000;  // vectors below which reading them all is as fast as any index

std::string size_text(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) bytes /= 1024, ++unit;
  return format(bytes < 10 && unit > 0 ? "{:.1f} {}" : "{:.0f} {}", bytes, units[unit]);
}

// A power of two near 2 sqrt(n): a query then reads about as many centroids as a probed list holds
// vectors, and k-means stays short; never so many that a centroid has fewer than 39 vectors to
// learn from.
int64_t num_lists(int64_t count) {
  const double wanted = 2 * std::sqrt(static_cast<double>(count));
  int64_t lists = int64_t{1} << std::lround(std::log2(wanted));
  while (lists > 1 && lists * 39 > count) lists /= 2;
  return lists;
}

}  // namespace

IndexChoice choose_index(int64_t count, int64_t dim, uint64_t memory_bytes, double recall) {
  CONTEXTURE_USAGE_REQUIRE(recall > 0 && recall <= 1, "--recall ", recall,
                           " must be above 0 and at most 1.");
  struct Option {
    std::string factory;
    int64_t vector_bytes;
    std::string what;
  };
  const int64_t lists = num_lists(count);
  std::vector<Option> options{{"Flat", 4 * dim, "the vectors themselves: exact"}};
  const bool exact = count <= kExactAlways || recall >= 1;
  if (!exact) {
    const std::string ivf = concat("IVF", lists, ",");
    options[0] = {ivf + "Flat", 4 * dim + kListBytes,
                  "the vectors themselves in lists, of which a query reads some"};
    options.push_back({ivf + "SQ8", dim + kListBytes,
                       "a byte a number, in lists; loses about a hundredth of the recall"});
    for (const int64_t share : {2, 4, 8, 16}) {
      if (dim % share == 0) {
        options.push_back({concat(ivf, "PQ", dim / share), dim / share + kListBytes,
                           concat("a byte for ", share, " numbers, in lists; loses recall")});
      }
    }
  }
  const auto needs = [&](const Option& option) {
    const double bytes =
        static_cast<double>(count) * static_cast<double>(option.vector_bytes + kIdBytes);
    return bytes + (option.factory == "Flat" ? 0.0 : static_cast<double>(lists * dim) * 4);
  };
  IndexChoice choice;
  choice.explained = format(
      "{} vectors of {}, at most {} for searching, recall {:.4g} of the exact first ten wanted.",
      count, dim, size_text(static_cast<double>(memory_bytes)), recall);
  if (count <= kExactAlways) {
    choice.explained +=
        format("\nUp to {} vectors the exact index is as fast as any.", kExactAlways);
  } else if (recall >= 1) {
    choice.explained += "\nA recall of 1 is what the exact index alone promises.";
  }
  for (const Option& option : options) {
    const double bytes = needs(option);
    const bool fits = bytes <= static_cast<double>(memory_bytes);
    choice.explained += format("\n{} takes {} ({}): {}.", option.factory, size_text(bytes),
                               option.what, fits ? "chosen" : "too much");
    if (!fits) continue;
    choice.factory = option.factory;
    choice.bytes = static_cast<int64_t>(bytes);
    return choice;
  }
  throw UserError(concat(choice.explained, "\nNothing fits: give --memory ",
                         size_text(needs(options.back())), " or more",
                         exact ? ", or a lower --recall" : "",
                         ", or cut the corpus into shards for several machines."));
}

uint64_t parse_bytes(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(end, text.data() + text.size());
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const char* ending : {"IB", "B"}) {
    if (unit.ends_with(ending)) unit.resize(unit.size() - std::strlen(ending));
  }
  const std::string units = "KMGT";
  const size_t power = unit.empty() ? 0 : units.find(unit[0]) + 1;
  CONTEXTURE_USAGE_REQUIRE(error == std::errc() && unit.size() <= 1 &&
                               (unit.empty() || power >= 1) && value > 0 && value < 1e15,
                           "'", text, "' is no amount of memory. Write it as in 16G or 500M.");
  return static_cast<uint64_t>(value * std::pow(1024.0, static_cast<double>(power)));
}

std::vector<Ranking> exact_search(Metric metric, int64_t dim, std::span<const float> vectors,
                                  std::span<const float> queries, int64_t k) {
  constexpr int64_t kBlock = 100'000;
  const int64_t n = static_cast<int64_t>(vectors.size()) / dim;
  IndexOptions options;
  options.metric = metric;
  std::vector<Ranking> best(queries.size() / static_cast<size_t>(dim));
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = std::min(kBlock, n - first);
    std::vector<std::string> ids;
    for (int64_t row = 0; row < count; ++row) ids.push_back(std::to_string(row));
    const auto block = Index::build(
        options, dim, std::move(ids),
        vectors.subspan(static_cast<size_t>(first * dim), static_cast<size_t>(count * dim)));
    const std::vector<Ranking> found = block.search(queries, k);
    for (size_t q = 0; q < best.size(); ++q) {
      for (const Hit& hit : found[q]) best[q].push_back({first + hit.row, hit.score});
      std::stable_sort(best[q].begin(), best[q].end(),
                       [](const Hit& a, const Hit& b) { return a.score > b.score; });
      if (static_cast<int64_t>(best[q].size()) > k) best[q].resize(k);
    }
  }
  return best;
}

RecallProbe::RecallProbe(Metric metric, int64_t dim, std::span<const float> vectors) {
  const int64_t count = static_cast<int64_t>(vectors.size()) / dim,
                n = std::min<int64_t>(256, count);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = i * count / n;
    rows_.push_back(row);
    queries_.insert(queries_.end(), vectors.begin() + row * dim, vectors.begin() + (row + 1) * dim);
  }
  exact_ = without_self(exact_search(metric, dim, vectors, queries_, kFound + 1));
}

std::vector<Ranking> RecallProbe::without_self(std::vector<Ranking> rankings) const {
  for (size_t q = 0; q < rankings.size(); ++q) {
    std::erase_if(rankings[q], [&](const Hit& hit) { return hit.row == rows_[q]; });
    if (rankings[q].size() > static_cast<size_t>(kFound)) rankings[q].resize(kFound);
  }
  return rankings;
}

double tune_search(Index& index, const RecallProbe& probe, double recall) {
  const std::string& factory = index.built_factory();
  const bool graph =
      factory.find("HNSW") != std::string::npos && factory.find("IVF") == std::string::npos;
  const size_t ivf = factory.find("IVF");
  if (!graph && ivf == std::string::npos) return probe.measure(index);
  int64_t most = 4096;
  if (!graph) std::from_chars(factory.data() + ivf + 3, factory.data() + factory.size(), most);
  double reached = 0;
  for (int64_t effort = graph ? 16 : 1;; effort *= 2) {
    effort = std::min(effort, most);
    index.set_search(concat(graph ? "efSearch=" : "nprobe=", effort));
    reached = probe.measure(index);
    if (reached >= recall || effort == most) return reached;
  }
}

}  // namespace contexture::retriever
