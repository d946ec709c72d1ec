#include "parallel/token_slices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace contexture::parallel {
namespace {

using Row = std::array<double, 3>;

Row terms(int64_t tokens, double context) {
  const double l = static_cast<double>(tokens);
  return {1.0, l, l * (context + l / 2)};
}

double dot(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0.0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// Least squares over some columns, each of length 1 (modified Gram-Schmidt): their coefficients, in
// the columns' order. Empty when the columns do not tell them apart.
std::vector<double> least_squares(std::vector<std::vector<double>> columns,
                                  std::vector<double> target) {
  constexpr double kDependent = 1e-9;  // what is left of a column of length 1; far above rounding
  const size_t n = columns.size();
  std::vector<std::vector<double>> r(n, std::vector<double>(n));
  std::vector<double> projected(n);
  for (size_t j = 0; j < n; ++j) {
    r[j][j] = std::sqrt(dot(columns[j], columns[j]));
    if (!(r[j][j] > kDependent)) return {};
    for (double& x : columns[j]) x /= r[j][j];
    const auto take_out = [&](std::vector<double>* of) {
      const double share = dot(columns[j], *of);
      for (size_t i = 0; i < of->size(); ++i) (*of)[i] -= share * columns[j][i];
      return share;
    };
    for (size_t k = j + 1; k < n; ++k) r[j][k] = take_out(&columns[k]);
    projected[j] = take_out(&target);
  }
  std::vector<double> solution(n);
  for (size_t j = n; j-- > 0;) {
    double rest = projected[j];
    for (size_t k = j + 1; k < n; ++k) rest -= r[j][k] * solution[k];
    solution[j] = rest / r[j][j];
  }
  return solution;
}

}  // namespace

double SliceModel::operator()(int64_t tokens, double context) const {
  const Row row = terms(tokens, context);
  return a * row[0] + b * row[1] + g * row[2];
}

SliceModel fit_slice_model(const std::vector<SliceTime>& measured) {
  std::array<std::vector<double>, 3> columns;
  std::vector<double> seconds;
  for (const SliceTime& m : measured) {
    CONTEXTURE_REQUIRE(m.tokens >= 1 && 2 * m.context >= -m.tokens && std::isfinite(m.seconds),
                       "a slice of ", m.tokens, " tokens after ", m.context,
                       " was measured to take ", m.seconds, " s, which is impossible");
    const Row row = terms(m.tokens, m.context);
    for (size_t j = 0; j < 3; ++j) columns[j].push_back(row[j]);
    seconds.push_back(m.seconds);
  }
  Row length;
  for (size_t j = 0; j < 3; ++j) {
    length[j] = std::sqrt(dot(columns[j], columns[j]));
    for (double& x : columns[j]) x /= length[j];
  }
  CONTEXTURE_REQUIRE(
      measured.size() >= 3 && !least_squares({columns.begin(), columns.end()}, seconds).empty(),
      "these ", measured.size(),
      " slice measurements do not tell fixed, per-token and attention time apart. "
      "Measure three slices or more, of different lengths and after different contexts.");

  // With three coefficients, the best non-negative fit is the best among the non-negative fits of
  // all subsets.
  Row best{};
  double best_error = dot(seconds, seconds);  // all coefficients zero
  for (unsigned subset = 1; subset < 8; ++subset) {
    std::vector<std::vector<double>> chosen;
    for (unsigned j = 0; j < 3; ++j) {
      if (subset >> j & 1) chosen.push_back(columns[j]);
    }
    const std::vector<double> solution = least_squares(chosen, seconds);
    if (*std::min_element(solution.begin(), solution.end()) < 0.0) continue;
    std::vector<double> residual = seconds;
    Row fitted{};
    for (unsigned j = 0, k = 0; j < 3; ++j) {
      if (!(subset >> j & 1)) continue;
      for (size_t i = 0; i < residual.size(); ++i) residual[i] -= solution[k] * columns[j][i];
      fitted[j] = solution[k++] / length[j];
    }
    const double error = dot(residual, residual);
    if (error < best_error) {
      best_error = error;
      best = fitted;
    }
  }
  return {best[0], best[1], best[2]};
}

namespace {

// t(from, to) of the slice between two cuts, numbered 0 .. n.
class CostTable {
 public:
  CostTable(int64_t tokens, int64_t multiple_of, const SliceCost& cost)
      : num_cuts_((tokens - 1) / multiple_of + 2) {
    for (int64_t cut = 0; cut < num_cuts_; ++cut)
      position_.push_back(std::min(cut * multiple_of, tokens));
    costs_.resize(num_cuts_ * num_cuts_);
    for (int64_t from = 0; from + 1 < num_cuts_; ++from) {
      for (int64_t to = from + 1; to < num_cuts_; ++to) {
        const double time = cost(length(from, to), position_[from]);
        CONTEXTURE_REQUIRE(std::isfinite(time) && time >= 0.0, "a slice of ", length(from, to),
                           " tokens after ", position_[from], " is said to cost ", time,
                           ", which is impossible");
        costs_[from * num_cuts_ + to] = time;
        all_.push_back(time);
      }
    }
    std::sort(all_.begin(), all_.end());
    all_.erase(std::unique(all_.begin(), all_.end()), all_.end());
  }
  int64_t num_cuts() const { return num_cuts_; }
  int64_t length(int64_t from, int64_t to) const { return position_[to] - position_[from]; }
  double at(int64_t from, int64_t to) const { return costs_[from * num_cuts_ + to]; }
  const std::vector<double>& all() const { return all_; }  // ascending, each once

 private:
  int64_t num_cuts_;
  std::vector<int64_t> position_;
  std::vector<double> costs_, all_;
};

// The cheapest cut in slices of at most `bound` each: its cuts without 0, empty when there is none.
std::vector<int64_t> cheapest_cuts(const CostTable& table, double bound) {
  const int64_t last = table.num_cuts() - 1;
  std::vector<double> best(last + 1, std::numeric_limits<double>::infinity());
  std::vector<int64_t> previous(last + 1, -1);
  best[0] = 0.0;
  for (int64_t to = 1; to <= last; ++to) {
    for (int64_t from = 0; from < to; ++from) {
      const double time = table.at(from, to);
      if (time > bound || best[from] + time >= best[to]) continue;
      best[to] = best[from] + time;
      previous[to] = from;
    }
  }
  std::vector<int64_t> cuts;
  if (previous[last] < 0) return cuts;
  for (int64_t cut = last; cut > 0; cut = previous[cut]) cuts.push_back(cut);
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace

SlicePlan plan_token_slices(int64_t tokens, int num_stages, const SliceCost& cost, double gap,
                            int64_t multiple_of) {
  CONTEXTURE_USAGE_REQUIRE(tokens >= 1 && num_stages >= 1 && multiple_of >= 1 && gap >= 0.0,
                           "token slices of ", tokens, " tokens for ", num_stages,
                           " stages, in multiples of ", multiple_of, ", with gap ", gap,
                           ": the first three must be at least 1, the gap at least 0");
  constexpr int64_t kMostCuts = 4096;  // a quarter of a gigabyte of costs
  CONTEXTURE_USAGE_REQUIRE(tokens / multiple_of < kMostCuts, tokens, " tokens in multiples of ",
                           multiple_of, " are more than ", kMostCuts,
                           " places to cut at. Take multiples of ", tokens / kMostCuts + 1,
                           " or more.");
  const CostTable table(tokens, multiple_of, cost);
  const std::vector<double>& bounds = table.all();
  SlicePlan plan;
  plan.total = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < bounds.size();) {
    if (num_stages * bounds[i] >= plan.total)
      break;  // a slice of this cost takes that long by itself
    // The largest bound within the gap stands for all between: it allows whatever they allow.
    const double bound = *(std::upper_bound(bounds.begin() + i, bounds.end(), bounds[i] + gap) - 1);
    i = std::upper_bound(bounds.begin() + i, bounds.end(), bound) - bounds.begin();
    double sum = 0.0, longest = 0.0;
    std::vector<int64_t> lengths;
    int64_t from = 0;
    for (const int64_t to : cheapest_cuts(table, bound)) {
      sum += table.at(from, to);
      longest = std::max(longest, table.at(from, to));
      lengths.push_back(table.length(from, to));
      from = to;
    }
    const double total = sum + (num_stages - 1) * longest;
    if (lengths.empty() || total >= plan.total) continue;
    plan = {std::move(lengths), total};
  }
  return plan;
}

}  // namespace contexture::parallel
