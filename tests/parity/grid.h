// The grid of layouts: what a layout may differ in, and choices of cells that cover it.
#pragma once
#include <array>
#include <random>
#include <set>

#include "layouts.h"

namespace contexture::train {

// One choice of everything a layout may differ in, as indices into kFactors.
struct Factor {
  const char* name;
  std::vector<std::string> values;
};
inline const std::vector<Factor>& factors() {
  static const std::vector<Factor> all{
      {"layout",
       {"1,1,1", "2,1,1", "1,2,1", "1,1,2", "4,1,1", "1,4,1", "1,1,4", "2,2,1", "2,1,2", "1,2,2",
        "2,2,2", "4,2,1", "4,1,2", "2,4,1", "1,4,2", "2,1,4", "1,2,4"}},
      {"schedule", {"gpipe", "1f1b", "interleaved", "zb_h1", "list"}},
      {"zero", {"0", "1", "2", "3"}},
      {"recompute", {"", "all"}},
      {"fusion", {"memory", "fid", "prefix"}},
      {"towers", {"shared", "separate"}},
      {"shared", {"replicate", "colocate", "cheapest"}},
      {"dropout", {"0", "0.1"}},
      {"microbatches", {"1", "2", "3", "4"}},
      {"partitioner", {"uniform", "parameters", "exact", "tree"}},
      {"sequence", {"false", "true"}},
      {"token_slices", {"1", "3"}},
      {"encode_once", {"microbatch", "replica"}}};
  return all;
}
using Cell = std::array<uint8_t, 13>;

inline std::array<int, 3> layout_of(const Cell& cell) {
  const std::string& text = factors()[0].values[cell[0]];
  return {text[0] - '0', text[2] - '0', text[4] - '0'};
}

// Combinations that differ only in what has no effect are left out, and those that are refused.
inline bool is_valid(const Cell& cell) {
  const auto [dp, pp, tp] = layout_of(cell);
  const std::string& schedule = factors()[1].values[cell[1]];
  const int microbatches = cell[8] + 1;
  if (pp == 1 && (cell[1] != 1 || cell[6] != 0 || cell[9] != 0 || cell[11] != 0)) return false;
  if (dp == 1 && cell[2] != 0) return false;
  if (tp == 1 && cell[10] != 0) return false;
  if (schedule == "interleaved" && microbatches % pp != 0) return false;
  if (cell[6] == 1 && schedule != "list") return false;
  if (cell[12] == 1 && (cell[11] != 0 || microbatches == 1 || schedule == "interleaved"))
    return false;
  // The tree may give a rank several stages apart, and what must stay together may leave nothing to
  // cut.
  if (cell[9] == 3 && schedule != "list" && schedule != "gpipe") return false;
  if (cell[9] >= 2 && (cell[6] == 1 || schedule == "interleaved")) return false;
  return dp * microbatches <= 10;  // the batch
}

inline std::string name_of(const Cell& cell) {
  std::string out;
  for (size_t f = 0; f < cell.size(); ++f)
    out += std::string(f > 0 ? " " : "") + factors()[f].name + "=" + factors()[f].values[cell[f]];
  return out;
}

inline RunConfig configured(RunConfig config, const Cell& cell) {
  const auto value = [&](size_t f) { return factors()[f].values[cell[f]]; };
  const auto [dp, pp, tp] = layout_of(cell);
  parallel::ParallelConfig& p = config.parallel;
  p.dp = dp;
  p.pp = pp;
  p.tp = tp;
  p.schedule = value(1);
  p.chunks = p.schedule == "interleaved" ? 2 : 1;
  p.zero = std::stoi(value(2));
  if (!value(3).empty()) p.recompute = {value(3)};
  config.model.fusion = value(4);
  config.model.towers = value(5);
  p.shared = value(6);
  config.model.dropout = std::stod(value(7));
  p.microbatches = std::stoi(value(8));
  p.partitioner = value(9);
  p.sequence = value(10) == "true";
  p.token_slices = std::stoi(value(11));
  p.encode_once = value(12);
  return config;
}

// Valid cells that together hold every combination of `ways` factors' values that any valid cell
// holds, as few as a greedy search from `seed` finds, or as many as `limit` lets it.
inline std::vector<Cell> covering(int ways, size_t limit, uint64_t seed) {
  std::vector<Cell> valid;
  Cell cell{};
  const std::function<void(size_t)> enumerate = [&](size_t f) {
    if (f == cell.size()) {
      if (is_valid(cell)) valid.push_back(cell);
      return;
    }
    for (size_t v = 0; v < factors()[f].values.size(); ++v) {
      cell[f] = static_cast<uint8_t>(v);
      enumerate(f + 1);
    }
  };
  enumerate(0);
  std::vector<std::vector<size_t>> subsets;
  std::vector<size_t> subset;
  const std::function<void(size_t)> choose = [&](size_t from) {
    if (subset.size() == static_cast<size_t>(ways)) {
      subsets.push_back(subset);
      return;
    }
    for (size_t f = from; f < cell.size(); ++f) {
      subset.push_back(f);
      choose(f + 1);
      subset.pop_back();
    }
  };
  choose(0);
  const auto combinations = [&](const Cell& c) {
    std::vector<uint64_t> out;
    for (size_t s = 0; s < subsets.size(); ++s) {
      uint64_t code = s;
      for (const size_t f : subsets[s]) code = code * 32 + c[f];
      out.push_back(code);
    }
    return out;
  };
  std::set<uint64_t> left;
  for (const Cell& c : valid) {
    for (const uint64_t code : combinations(c)) left.insert(code);
  }
  std::mt19937_64 random(seed);
  std::vector<Cell> chosen;
  while (!left.empty() && chosen.size() < limit) {
    const Cell* best = nullptr;
    size_t most = 0;
    for (int attempt = 0; attempt < 200 || best == nullptr; ++attempt) {
      const Cell& c = valid[random() % valid.size()];
      size_t fresh = 0;
      for (const uint64_t code : combinations(c)) fresh += left.count(code);
      if (fresh > most) {
        most = fresh;
        best = &c;
      }
    }
    for (const uint64_t code : combinations(*best)) left.erase(code);
    chosen.push_back(*best);
  }
  return chosen;
}

// One-process outcomes, made once per model.
class References {
 public:
  explicit References(RunConfig base) : base_(std::move(base)) {}
  const Outcome& of(const Cell& cell) {
    Cell plain{};
    plain[1] = 1;
    for (const size_t f : {4, 5, 7}) plain[f] = cell[f];
    const auto known = outcomes_.find(plain);
    if (known != outcomes_.end()) return known->second;
    return outcomes_[plain] = outcome_of(configured(base_, plain), {}, kSteps);
  }
  Difference difference(const Cell& cell) {
    return compare(of(cell), train_threads(configured(base_, cell), kSteps));
  }
  static constexpr int64_t kSteps = 10;

 private:
  RunConfig base_;
  std::map<Cell, Outcome> outcomes_;
};

}  // namespace contexture::train
