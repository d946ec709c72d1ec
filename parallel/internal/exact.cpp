#include "parallel/internal/exact.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "core/error.h"

namespace contexture::parallel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A stage between two downsets: what does not depend on its number.
struct Stage {
  double time_s = 0.0, activation_bytes = 0.0, fixed_bytes = 0.0;
  double forward_bytes = 0.0, backward_bytes = 0.0;  // received, returned
  int messages = 0;
  double replica_bytes = 0.0;
  int replica_messages = 0;

  double transfer_s(const Link& link) const {
    return messages * link.latency_s + (forward_bytes + backward_bytes) * link.s_per_byte;
  }
  double replica_s(const Link& link) const {
    return replica_messages * link.latency_s + replica_bytes * link.s_per_byte;
  }
  double memory(int in_flight) const { return fixed_bytes + in_flight * activation_bytes; }
};

// Enumerates the stages that can follow a downset. All costs of a stage grow with it, so that
// whatever is refused need not be extended.
class Stages {
 public:
  Stages(const CutGraph& graph, const Downsets& downsets)
      : graph_(graph), downsets_(downsets), seen_(downsets.size(), 0), stage_(downsets.size()) {
    for (const CutWire& wire : graph.wires)
      readers_.push_back(bits_of(wire.readers, downsets.num_words()));
    for (const CutShared& shared : graph.shared)
      users_.push_back(bits_of(shared.blocks, downsets.num_words()));
    for (int i = 0; i < downsets.size(); ++i) boundary_.push_back(!splits_a_pair(i));
  }

  // Calls visit(to, stage) for each downset `to` that contains `from` (but is larger), if
  // accept(to, stage) and so for one chain of subsets down to `from`; only for those where a stage
  // may end.
  template <typename Accept, typename Visit>
  void after(int from, const Accept& accept, const Visit& visit) {
    queue_.assign(1, from);
    ++visit_;
    stage_[from] = Stage{};
    for (size_t next = 0; next < queue_.size(); ++next) {
      const int at = queue_[next];
      for (const Downsets::Step& step : downsets_.steps(at)) {
        if (seen_[step.to] == visit_) continue;
        seen_[step.to] = visit_;
        stage_[step.to] = extend(stage_[at], from, at, step.block);
        if (!accept(step.to, stage_[step.to])) continue;
        queue_.push_back(step.to);
        if (boundary_[step.to]) visit(step.to, stage_[step.to]);
      }
    }
  }

 private:
  bool splits_a_pair(int downset) const {
    for (size_t p = 0; p < users_.size(); ++p) {
      if (graph_.shared[p].rule == SharedRule::kTogether &&
          downsets_.contains_any(downset, users_[p]) &&
          !downsets_.contains_all(downset, users_[p])) {
        return true;
      }
    }
    return false;
  }

  // Whether one of `set` lies in downset `at` but not in `from`.
  bool any_between(int from, int at, const std::vector<uint64_t>& set) const {
    const auto low = downsets_.bits(from), high = downsets_.bits(at);
    for (int w = 0; w < downsets_.num_words(); ++w) {
      if (set[w] & high[w] & ~low[w]) return true;
    }
    return false;
  }

  Stage extend(Stage stage, int from, int at, int block_index) const {
    const CutBlock& block = graph_.blocks[block_index];
    stage.time_s += block.time_s;
    stage.activation_bytes += block.activation_bytes;
    stage.fixed_bytes += block.fixed_bytes;
    for (const int w : block.reads) {
      const CutWire& wire = graph_.wires[w];
      if (!downsets_.contains(from, wire.producer) || any_between(from, at, readers_[w])) continue;
      stage.forward_bytes += wire.forward_bytes;
      stage.backward_bytes += wire.backward_bytes;
      stage.messages += wire.messages;
      stage.activation_bytes += wire.forward_bytes;
    }
    for (const int p : block.shared) {
      if (any_between(from, at, users_[p])) continue;
      const CutShared& shared = graph_.shared[p];
      stage.fixed_bytes += shared.fixed_bytes;
      if (shared.rule == SharedRule::kReplicated || !downsets_.contains_any(from, users_[p]))
        continue;
      stage.replica_bytes += 2 * shared.gradient_bytes;
      stage.replica_messages += 2;
    }
    return stage;
  }

  const CutGraph& graph_;
  const Downsets& downsets_;
  std::vector<std::vector<uint64_t>> readers_, users_;
  std::vector<bool> boundary_;
  int64_t visit_ = 0;
  std::vector<int64_t> seen_;  // the last call of after() that reached a downset
  std::vector<Stage> stage_;   // from there
  std::vector<int> queue_;
};

// A way to reach a downset with so many stages. Of two, neither is cheaper in both numbers.
struct Label {
  double cost = 0.0, slowest = 0.0;
  int from = -1, from_label = -1;
};

// Keeps labels by ascending slowest, descending cost. Returns whether the label was not beaten by
// one that stood there.
bool insert(std::vector<Label>& labels, const Label& label) {
  auto at = std::lower_bound(labels.begin(), labels.end(), label,
                             [](const Label& a, const Label& b) { return a.slowest < b.slowest; });
  if (at != labels.begin() && std::prev(at)->cost <= label.cost) return false;
  if (at != labels.end() && at->slowest == label.slowest && at->cost <= label.cost) return false;
  auto beaten = at;
  while (beaten != labels.end() && beaten->cost >= label.cost) ++beaten;
  if (beaten == at) {
    labels.insert(at, label);
  } else {
    *at = label;
    labels.erase(std::next(at), beaten);
  }
  return true;
}

class Search {
 public:
  Search(const CutGraph& graph, const CutCosts& costs, const Downsets& downsets, double below,
         bool any)
      : graph_(graph),
        costs_(costs),
        downsets_(downsets),
        stages_(graph, downsets),
        below_(below),
        any_(any),
        labels_(downsets.size(), std::vector<std::vector<Label>>(costs.num_stages + 1)) {
    time_.resize(downsets.size(), 0.0);
    for (int i = 0; i < downsets.size(); ++i) {
      for (const Downsets::Step& step : downsets.steps(i))
        time_[step.to] = time_[i] + graph.blocks[step.block].time_s;
    }
    for (const CutBlock& block : graph.blocks) longest_ = std::max(longest_, block.time_s);
  }

  SearchResult run() {
    if (!any_ && costs_.max_weight > 0) least_slowest_ = bound_slowest();
    labels_[0][0].push_back({0.0, least_slowest_, -1, -1});
    const int full = downsets_.size() - 1;
    for (int from = 0; from < full; ++from) {
      active_.clear();
      for (int k = 0; k < costs_.num_stages; ++k) {
        auto& labels = labels_[from][k];
        // The bound may have come down since these were found.
        if (std::any_of(labels.begin(), labels.end(), [&](const Label& label) {
              return promising(from, k, label.cost, label.slowest);
            })) {
          active_.push_back(k);
        }
      }
      if (active_.empty()) continue;
      stages_.after(
          from, [&](int to, const Stage& stage) { return acceptable(to, stage); },
          [&](int to, const Stage& stage) { extend(from, to, stage); });
    }
    return trace_back(full);
  }

 private:
  // Could a plan that reaches `downset` in k stages at this cost still beat the bound?
  bool promising(int downset, int k, double cost, double slowest) const {
    if (any_ || below_ == kInfinity) return true;
    const double left = time_.back() - time_[downset];
    const int stages = costs_.num_stages - k;
    if (stages > 0) slowest = std::max(slowest, left / stages);
    const double least = cost + costs_.sum_weight * left + costs_.max_weight * slowest;
    return least < below_ - 1e-12 * below_;
  }

  // A time that the slowest stage of any plan reaches. Labels start from it: below, differences do
  // not matter, and there are fewer of them.
  double bound_slowest() {
    double low = std::max(longest_, time_.back() / costs_.num_stages);
    double high = (below_ - costs_.sum_weight * time_.back()) / costs_.max_weight;
    // A pass costs about as much as one stage number of the search.
    for (int pass = std::min(8, costs_.num_stages / 8); pass > 0 && high < kInfinity && low < high;
         --pass) {
      const double middle = (low + high) / 2;
      (enough_stages(middle) ? high : low) = middle;
    }
    return low;
  }

  // Whether stages that take no longer than `slowest` can be few enough, each at the cheapest link.
  bool enough_stages(double slowest) {
    Link cheapest = costs_.ingress[0];
    for (const Link& link : costs_.ingress) {
      cheapest = {std::min(cheapest.latency_s, link.latency_s),
                  std::min(cheapest.s_per_byte, link.s_per_byte)};
    }
    std::vector<int> fewest(downsets_.size(), costs_.num_stages + 1);
    fewest[0] = 0;
    for (int from = 0; from + 1 < downsets_.size(); ++from) {
      if (fewest[from] >= costs_.num_stages) continue;
      stages_.after(
          from,
          [&](int, const Stage& stage) {
            return stage.time_s + stage.transfer_s(cheapest) <= slowest * (1 + 1e-12);
          },
          [&](int to, const Stage&) { fewest[to] = std::min(fewest[to], fewest[from] + 1); });
    }
    return fewest.back() <= costs_.num_stages;
  }

  // A block for each stage to come.
  bool leaves_enough(int downset, int k) const {
    return static_cast<int>(graph_.blocks.size()) - downsets_.num_blocks(downset) >=
           costs_.num_stages - k;
  }

  // The stage is possible at one active stage number at least, by caps and by the bound on the
  // slowest stage.
  bool acceptable(int to, const Stage& stage) const {
    const double base = costs_.sum_weight * time_.back();
    for (const int k : active_) {
      if (!leaves_enough(to, k + 1) || stage.memory(costs_.in_flight[k]) > costs_.caps[k]) continue;
      if (any_ || below_ == kInfinity) return true;
      const double transfer = stage.transfer_s(costs_.ingress[k]);
      const double least =
          base + costs_.sum_weight * transfer + costs_.byte_weight * stage.forward_bytes +
          stage.replica_s(costs_.ingress[k]) + costs_.max_weight * (stage.time_s + transfer);
      if (least < below_ - 1e-12 * below_) return true;
    }
    return false;
  }

  void extend(int from, int to, const Stage& stage) {
    const bool whole = to == downsets_.size() - 1;
    for (const int k : active_) {
      if ((k + 1 == costs_.num_stages) != whole || !leaves_enough(to, k + 1) ||
          stage.memory(costs_.in_flight[k]) > costs_.caps[k])
        continue;
      auto& reached = labels_[to][k + 1];
      if (any_) {
        if (reached.empty()) reached.push_back({0.0, 0.0, from, 0});
        continue;
      }
      const Link& link = costs_.ingress[k];
      const double time = stage.time_s + stage.transfer_s(link);
      const double cost = costs_.sum_weight * time + costs_.byte_weight * stage.forward_bytes +
                          stage.replica_s(link);
      const auto& labels = labels_[from][k];
      for (int i = 0; i < static_cast<int>(labels.size()); ++i) {
        Label label{labels[i].cost + cost, std::max(labels[i].slowest, time), from, i};
        if (!whole)
          label.slowest =
              std::max(label.slowest, (time_.back() - time_[to]) / (costs_.num_stages - k - 1));
        if (!promising(to, k + 1, label.cost, label.slowest) || !insert(reached, label)) continue;
        if (whole) below_ = std::min(below_, label.cost + costs_.max_weight * label.slowest);
      }
    }
  }

  SearchResult trace_back(int full) const {
    const auto& labels = labels_[full][costs_.num_stages];
    SearchResult result;
    result.objective = kInfinity;
    int best = -1;
    for (int i = 0; i < static_cast<int>(labels.size()); ++i) {
      const double objective = labels[i].cost + costs_.max_weight * labels[i].slowest;
      if (objective < result.objective) result.objective = objective, best = i;
    }
    if (best < 0) return result;
    result.found = true;
    result.stage_of_block.assign(graph_.blocks.size(), -1);
    for (int at = full, k = costs_.num_stages; k > 0; --k) {
      const Label& label = labels_[at][k][best];
      for (int b = 0; b < static_cast<int>(graph_.blocks.size()); ++b) {
        if (downsets_.contains(at, b) && !downsets_.contains(label.from, b))
          result.stage_of_block[b] = k - 1;
      }
      at = label.from;
      best = label.from_label;
    }
    return result;
  }

  const CutGraph& graph_;
  const CutCosts& costs_;
  const Downsets& downsets_;
  Stages stages_;
  double below_;
  const bool any_;
  double least_slowest_ = 0.0;
  std::vector<double> time_;                             // [downset] of its blocks
  double longest_ = 0.0;                                 // block
  std::vector<std::vector<std::vector<Label>>> labels_;  // [downset][stages so far]
  std::vector<int> active_;
};

}  // namespace

SearchResult search(const CutGraph& graph, const CutCosts& costs, const Downsets& downsets,
                    double below, bool any) {
  CONTEXTURE_INVARIANT(downsets.complete(), "the search needs all downsets");
  return Search(graph, costs, downsets, below, any).run();
}

std::vector<bool> feasible_stages(const CutGraph& graph, const Downsets& downsets, double cap,
                                  int microbatches, int max_stages) {
  // covered[i][j]: what lies outside downset i can be divided into j stages, the last j of any
  // plan.
  std::vector<std::vector<bool>> covered(downsets.size(), std::vector<bool>(max_stages + 1, false));
  covered.back()[0] = true;
  Stages stages(graph, downsets);
  for (int from = downsets.size() - 2; from >= 0; --from) {
    stages.after(
        from, [&](int, const Stage& stage) { return stage.memory(1) <= cap; },
        [&](int to, const Stage& stage) {
          for (int j = 1; j <= max_stages; ++j) {
            if (covered[to][j - 1] && stage.memory(std::min(microbatches, j)) <= cap)
              covered[from][j] = true;
          }
        });
  }
  return covered.front();
}

}  // namespace contexture::parallel
