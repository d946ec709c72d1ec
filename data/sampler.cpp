#include "data/sampler.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "core/error.h"
#include "core/rng.h"

namespace contexture::data {
namespace {

constexpr int64_t kMaxPeriod = 1000;
constexpr uint64_t kMixtureKey =
    0x6d6978;  // keeps the mixture's permutations apart from the datasets'
constexpr uint64_t kWindowKey = 0x77696e;  // and those of a window's steps

std::vector<std::vector<std::string>> first_gold_of(
    const std::vector<const ExampleSet*>& datasets) {
  std::vector<std::vector<std::string>> keys;
  for (const ExampleSet* set : datasets) {
    auto& of_set = keys.emplace_back();
    for (const Example& example : set->examples) {
      of_set.push_back(example.documents.empty() ? "" : example.documents.front());
    }
  }
  return keys;
}

// Slots per dataset out of `period`, in proportion to the weights, every positive weight at least
// one.
std::vector<int64_t> apportion(const std::vector<double>& weights, int64_t period) {
  std::vector<int64_t> slots(weights.size());
  std::vector<std::pair<double, size_t>> rest;
  int64_t given = 0;
  for (size_t d = 0; d < weights.size(); ++d) {
    const double exact = weights[d] * static_cast<double>(period);
    // 1e-9: a product such as 0.7 * 10 may come out a rounding below 7.
    slots[d] = std::max<int64_t>(static_cast<int64_t>(exact + 1e-9), weights[d] > 0 ? 1 : 0);
    given += slots[d];
    rest.emplace_back(static_cast<double>(slots[d]) - exact, d);
  }
  std::sort(rest.begin(), rest.end());  // the most short-changed first
  for (size_t i = 0; given < period; i = (i + 1) % rest.size()) {
    if (weights[rest[i].second] > 0) ++slots[rest[i].second], ++given;
  }
  while (given > period) {
    --*std::max_element(slots.begin(), slots.end());
    --given;
  }
  return slots;
}

double worst_error(const std::vector<double>& weights, const std::vector<int64_t>& slots,
                   int64_t period) {
  double worst = 0.0;
  for (size_t d = 0; d < weights.size(); ++d) {
    worst = std::max(
        worst, std::abs(static_cast<double>(slots[d]) / static_cast<double>(period) - weights[d]));
  }
  return worst;
}

// The shortest period that hits the weights to 1e-6, or else the best up to kMaxPeriod.
std::pair<int64_t, std::vector<int64_t>> best_period(const std::vector<double>& weights) {
  const auto active = static_cast<int64_t>(
      std::count_if(weights.begin(), weights.end(), [](double w) { return w > 0; }));
  int64_t best = 0;
  double best_error = 2.0;
  for (int64_t period = active; period <= std::max(kMaxPeriod, active); ++period) {
    const double error = worst_error(weights, apportion(weights, period), period);
    if (error < best_error - 1e-12) best = period, best_error = error;
    if (error < 1e-6) break;
  }
  return {best, apportion(weights, best)};
}

}  // namespace

Sampler::Sampler(const SamplerConfig& config, const std::vector<const ExampleSet*>& datasets)
    : Sampler(config, first_gold_of(datasets)) {}

Sampler::Sampler(const SamplerConfig& config,
                 const std::vector<std::vector<std::string>>& first_gold)
    : config_(config) {
  CONTEXTURE_REQUIRE(!first_gold.empty(), "there is no dataset to draw from.");
  CONTEXTURE_REQUIRE(
      config.batch_size > 0 && config.group_size > 0 && config.batch_size % config.group_size == 0,
      "batch_size=", config.batch_size, " is no multiple of group_size=", config.group_size, ".");
  CONTEXTURE_REQUIRE(config.weights.empty() || config.weights.size() == first_gold.size(),
                     config.weights.size(), " weights for ", first_gold.size(), " datasets.");
  std::vector<double> weights = config.weights;
  CONTEXTURE_REQUIRE(config.window > 0, "a window of ", config.window,
                     " steps must be at least 1.");
  if (config.window > 1) number_gold(first_gold);
  double total = 0.0;
  for (size_t d = 0; d < first_gold.size(); ++d) {
    CONTEXTURE_REQUIRE(!first_gold[d].empty(), "dataset ", d, " has no examples to draw from.");
    if (config.weights.empty()) weights.push_back(static_cast<double>(first_gold[d].size()));
    CONTEXTURE_REQUIRE(std::isfinite(weights[d]) && weights[d] >= 0.0, "weight ", weights[d],
                       " of dataset ", d, " is not a number of at least 0.");
    total += weights[d];
  }
  CONTEXTURE_REQUIRE(total > 0.0, "all weights are 0.");
  for (double& weight : weights) weight /= total;
  const auto [period, slots] = best_period(weights);
  period_ = period;
  int64_t first_slot = 0;
  for (size_t d = 0; d < first_gold.size(); ++d) {
    Dataset dataset;
    dataset.slots = slots[d];
    dataset.first_slot = first_slot;
    first_slot += slots[d];
    std::unordered_map<std::string, size_t> group_of;
    for (size_t i = 0; i < first_gold[d].size(); ++i) {
      const std::string& key = first_gold[d][i];
      const bool alone = key.empty() || config.group_size == 1;
      const auto found = alone ? group_of.end() : group_of.find(key);
      if (found != group_of.end()) {
        dataset.groups[found->second].push_back(static_cast<int64_t>(i));
        continue;
      }
      if (!alone) group_of.emplace(key, dataset.groups.size());
      dataset.groups.push_back({static_cast<int64_t>(i)});
    }
    for (size_t g = 0; g < dataset.groups.size(); ++g) {
      const auto members = static_cast<int64_t>(dataset.groups[g].size());
      const int64_t chunks = (members + config.group_size - 1) / config.group_size;
      for (int64_t c = 0; c < chunks; ++c) dataset.units.push_back({static_cast<int64_t>(g), c});
    }
    datasets_.push_back(std::move(dataset));
  }
}

void Sampler::number_gold(const std::vector<std::vector<std::string>>& first_gold) {
  std::unordered_map<std::string, int64_t> numbers;
  int64_t next = 0;
  for (const auto& keys : first_gold) {
    auto& of_set = gold_of_.emplace_back();
    for (const std::string& key : keys) {
      const auto [known, fresh] =
          key.empty() ? std::pair{numbers.end(), true} : numbers.emplace(key, next);
      of_set.push_back(fresh ? next++ : known->second);
    }
  }
}

void Sampler::add_group(int dataset, int64_t ordinal, std::vector<Pick>& picks) const {
  const Dataset& from = datasets_[static_cast<size_t>(dataset)];
  const auto n = static_cast<int64_t>(from.units.size());
  const int64_t epoch = ordinal / n;
  const uint64_t seed = config_.seed ^ (static_cast<uint64_t>(dataset) << 32);
  const auto unit_at = permutation_at(static_cast<uint64_t>(n), seed, static_cast<uint64_t>(epoch),
                                      static_cast<uint64_t>(ordinal % n));
  const Unit& unit = from.units[unit_at];
  const auto& members = from.groups[static_cast<size_t>(unit.group)];
  const auto m = static_cast<uint64_t>(members.size());
  // A group's own order changes with the epoch: its examples meet in different chunks.
  Stream stream(seed, "sampler group", static_cast<uint64_t>(epoch),
                static_cast<uint64_t>(unit.group));
  std::vector<int64_t> order = members;
  if (m > 1) stream.shuffle(order);
  for (int64_t i = 0; i < config_.group_size; ++i) {
    const auto at = static_cast<uint64_t>(unit.chunk * config_.group_size + i) % m;
    picks.push_back({dataset, order[at], epoch});
  }
}

std::vector<Pick> Sampler::batch_at(int64_t step) const {
  CONTEXTURE_INVARIANT(step >= 0, "step ", step);
  if (config_.window == 1) return drawn(step);
  const int64_t window = step / config_.window;
  std::vector<std::vector<Pick>> groups;
  for (int64_t s = window * config_.window; s < (window + 1) * config_.window; ++s) {
    const std::vector<Pick> picks = drawn(s);
    for (auto at = picks.begin(); at != picks.end(); at += config_.group_size)
      groups.emplace_back(at, at + config_.group_size);
  }
  const auto gold = [&](const Pick& pick) {
    return gold_of_[static_cast<size_t>(pick.dataset)][static_cast<size_t>(pick.index)];
  };
  std::stable_sort(groups.begin(), groups.end(),
                   [&](const auto& a, const auto& b) { return gold(a.front()) < gold(b.front()); });
  const uint64_t place =
      permutation_at(static_cast<uint64_t>(config_.window), config_.seed ^ kWindowKey,
                     static_cast<uint64_t>(window), static_cast<uint64_t>(step % config_.window));
  const size_t each = groups.size() / static_cast<size_t>(config_.window);
  std::vector<Pick> out;
  for (size_t g = place * each; g < (place + 1) * each; ++g)
    out.insert(out.end(), groups[g].begin(), groups[g].end());
  return out;
}

std::vector<Pick> Sampler::drawn(int64_t step) const {
  std::vector<Pick> picks;
  picks.reserve(static_cast<size_t>(config_.batch_size));
  const int64_t groups = config_.batch_size / config_.group_size;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t slot = step * groups + g;
    const int64_t round = slot / period_;
    // Every round of period_ slots is shuffled; a dataset's slots in it are numbered, so that its
    // own order is walked without gaps however the mixture falls.
    const auto place = static_cast<int64_t>(
        permutation_at(static_cast<uint64_t>(period_), config_.seed ^ kMixtureKey,
                       static_cast<uint64_t>(round), static_cast<uint64_t>(slot % period_)));
    size_t d = 0;
    while (place >= datasets_[d].first_slot + datasets_[d].slots) ++d;
    add_group(static_cast<int>(d), round * datasets_[d].slots + place - datasets_[d].first_slot,
              picks);
  }
  return picks;
}

int64_t Sampler::units(int dataset) const {
  return static_cast<int64_t>(datasets_.at(static_cast<size_t>(dataset)).units.size());
}

double Sampler::share(int dataset) const {
  return static_cast<double>(datasets_.at(static_cast<size_t>(dataset)).slots) /
         static_cast<double>(period_);
}

double Sampler::epochs_at(int dataset, int64_t step) const {
  const double drawn =
      static_cast<double>(step * (config_.batch_size / config_.group_size)) * share(dataset);
  return drawn / static_cast<double>(units(dataset));
}

std::span<const Pick> rank_share(std::span<const Pick> batch, int rank, int num_ranks) {
  CONTEXTURE_REQUIRE(num_ranks > 0 && rank >= 0 && rank < num_ranks, "rank ", rank, " of ",
                     num_ranks, ".");
  const auto ranks = static_cast<size_t>(num_ranks);
  CONTEXTURE_REQUIRE(!batch.empty() && batch.size() % ranks == 0, "a batch of ", batch.size(),
                     " examples can't be shared by ", num_ranks,
                     " ranks: make batch_size a multiple of ", num_ranks, ".");
  const size_t each = batch.size() / ranks;
  return batch.subspan(static_cast<size_t>(rank) * each, each);
}

std::vector<std::pair<int64_t, int64_t>> eval_batches(int64_t n, int64_t batch_size) {
  CONTEXTURE_REQUIRE(batch_size > 0, "batch_size=", batch_size, " must be positive.");
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t begin = 0; begin < n; begin += batch_size)
    ranges.emplace_back(begin, std::min(n, begin + batch_size));
  return ranges;
}

}  // namespace contexture::data
