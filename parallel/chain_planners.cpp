#include "parallel/chain_planners.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace contexture::parallel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> prefix_sums(const std::vector<double>& costs) {
  std::vector<double> sums(costs.size() + 1, 0.0);
  std::partial_sum(costs.begin(), costs.end(), sums.begin() + 1);
  return sums;
}

void require_enough(int num_items, int num_segments) {
  CONTEXTURE_USAGE_REQUIRE(num_segments >= 1 && num_items >= num_segments, num_items,
                           " blocks cannot fill ", num_segments, " stages. Ask for at most ",
                           num_items, " and at least one");
}

// The least-sum division of layers into stages none of which takes longer than `slowest`; total_s
// infinite when there is none.
ChainPlan cheapest_within(int num_layers, int num_devices, const std::vector<int>& widths,
                          double slowest, const std::function<double(int, int, int)>& time) {
  // best[l][d]: layers from l on, with d devices left
  struct Choice {
    double sum = kInfinity;
    int end = 0, width = 0;
  };
  std::vector<std::vector<Choice>> best(num_layers + 1, std::vector<Choice>(num_devices + 1));
  best[num_layers][0].sum = 0.0;
  for (int l = num_layers - 1; l >= 0; --l) {
    for (int end = l + 1; end <= num_layers; ++end) {
      for (const int width : widths) {
        const double t = time(l, end, width);
        if (!(t <= slowest)) continue;
        for (int d = width; d <= num_devices; ++d) {
          const double sum = t + best[end][d - width].sum;
          if (sum < best[l][d].sum) best[l][d] = {sum, end, width};
        }
      }
    }
  }
  ChainPlan plan;
  plan.total_s = best[0][num_devices].sum;
  if (plan.total_s == kInfinity) return plan;
  for (int l = 0, d = num_devices; l < num_layers;) {
    const Choice& choice = best[l][d];
    plan.stages.push_back({l, choice.end, choice.width});
    plan.slowest_s = std::max(plan.slowest_s, time(l, choice.end, choice.width));
    l = choice.end;
    d -= choice.width;
  }
  return plan;
}

}  // namespace

std::vector<int> balance_chain(const std::vector<double>& costs, int num_segments) {
  const int n = static_cast<int>(costs.size());
  require_enough(n, num_segments);
  const std::vector<double> sums = prefix_sums(costs);
  // largest[k][i]: the best largest segment of items i.. in k segments
  std::vector<std::vector<double>> largest(num_segments + 1, std::vector<double>(n + 1, kInfinity));
  largest[0][n] = 0.0;
  const auto with_first = [&](int k, int i, int end) {
    return std::max(sums[end] - sums[i], largest[k - 1][end]);
  };
  for (int k = 1; k <= num_segments; ++k) {
    for (int i = 0; i + k <= n; ++i) {
      for (int end = i + 1; end <= n; ++end)
        largest[k][i] = std::min(largest[k][i], with_first(k, i, end));
    }
  }
  // Sums of the same numbers differ in their last digits, which must not decide.
  const double allowed = largest[num_segments][0] + 1e-12 * sums[n];
  std::vector<int> positions = {0};
  for (int k = num_segments; k > 0; --k) {
    int end = positions.back() + 1;
    while (with_first(k, positions.back(), end) > allowed) ++end;
    positions.push_back(end);
  }
  return positions;
}

std::vector<int> dhondt(const std::vector<double>& costs, int num_seats) {
  CONTEXTURE_USAGE_REQUIRE(!costs.empty() || num_seats == 0, "seats need somebody to sit on them");
  std::vector<int> seats(costs.size(), 0), order;
  for (int seat = 0; seat < num_seats; ++seat) {
    size_t winner = 0;
    for (size_t i = 1; i < costs.size(); ++i) {
      const double ours = costs[i] / (seats[i] + 1), theirs = costs[winner] / (seats[winner] + 1);
      if (ours > theirs * (1 + 1e-12)) winner = i;
    }
    ++seats[winner];
    order.push_back(static_cast<int>(winner));
  }
  return order;
}

ChainPlan pipedream(const std::vector<ChainLayer>& layers, int num_devices, double bytes_per_s,
                    bool replicate) {
  const int n = static_cast<int>(layers.size());
  if (!replicate) require_enough(n, num_devices);
  CONTEXTURE_USAGE_REQUIRE(n >= 1 && num_devices >= 1 && bytes_per_s > 0,
                           "pipedream needs layers, devices and a bandwidth");
  std::vector<double> compute, weights;
  for (const ChainLayer& layer : layers)
    compute.push_back(layer.compute_s), weights.push_back(layer.weight_bytes);
  compute = prefix_sums(compute);
  weights = prefix_sums(weights);
  const auto stage_s = [&](int begin, int end, int m) {
    return std::max((compute[end] - compute[begin]) / m,
                    4.0 * (m - 1) * (weights[end] - weights[begin]) / (m * bytes_per_s));
  };
  struct Choice {
    double slowest = kInfinity;
    int begin = 0, replicas = 1;
  };
  std::vector<std::vector<Choice>> best(n + 1, std::vector<Choice>(num_devices + 1));
  best[0][0].slowest = 0.0;
  for (int j = 1; j <= n; ++j) {
    for (int m = 1; m <= num_devices; ++m) {
      for (int k = 0; k < j; ++k) {
        const double transfer = k == 0 ? 0.0 : 2 * layers[k - 1].activation_bytes / bytes_per_s;
        for (int own = 1; own <= (replicate ? m : 1); ++own) {
          const double slowest = std::max({best[k][m - own].slowest, transfer, stage_s(k, j, own)});
          if (slowest < best[j][m].slowest) best[j][m] = {slowest, k, own};
        }
      }
    }
  }
  ChainPlan plan;
  plan.slowest_s = best[n][num_devices].slowest;
  for (int j = n, m = num_devices; j > 0;) {
    const Choice& choice = best[j][m];
    plan.stages.insert(plan.stages.begin(), {choice.begin, j, choice.replicas});
    plan.total_s += stage_s(choice.begin, j, choice.replicas);
    j = choice.begin;
    m -= choice.replicas;
  }
  return plan;
}

ChainPlan alpa(int num_layers, int num_devices, const std::vector<int>& widths, int microbatches,
               const std::function<double(int begin, int end, int width)>& time) {
  CONTEXTURE_USAGE_REQUIRE(
      num_layers >= 1 && num_devices >= 1 && microbatches >= 1 && !widths.empty(),
      "alpa needs layers, devices, microbatches and stage widths");
  std::vector<double> bounds;
  for (int begin = 0; begin < num_layers; ++begin) {
    for (int end = begin + 1; end <= num_layers; ++end) {
      for (const int width : widths) {
        if (const double t = time(begin, end, width); t < kInfinity) bounds.push_back(t);
      }
    }
  }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  const auto within = [&](double bound) {
    return cheapest_within(num_layers, num_devices, widths, bound, time);
  };
  CONTEXTURE_REQUIRE(!bounds.empty() && !within(bounds.back()).stages.empty(), "no division of ",
                     num_layers, " layers over ", num_devices,
                     " devices fits. Allow other stage widths, or more devices");
  const double least_sum = within(bounds.back()).total_s;
  const auto first = std::partition_point(
      bounds.begin(), bounds.end(), [&](double bound) { return within(bound).stages.empty(); });
  ChainPlan best;
  best.total_s = kInfinity;
  for (auto bound = first; bound != bounds.end(); ++bound) {
    if (least_sum + (microbatches - 1) * *bound >= best.total_s) break;
    ChainPlan plan = within(*bound);
    plan.total_s += (microbatches - 1) * plan.slowest_s;
    if (plan.total_s < best.total_s) best = plan;
  }
  return best;
}

}  // namespace contexture::parallel
