#include "parallel/planner.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "core/error.h"
#include "core/json.h"
#include "parallel/internal/layout_space.h"

namespace contexture::parallel {
namespace {

constexpr int kMostTimesNodes = 1024;

// Layouts of one group are variations of one idea; the answer holds the best of each.
using Group = std::tuple<int, int, int, std::string>;
Group group_of(const Layout& l) { return {l.dp, l.tp, l.pp, l.schedule}; }

// Of equals the one without token slices: planned ones may come out as one.
bool better(const LayoutPlan& a, const LayoutPlan& b) {
  const auto rank = [](const LayoutPlan& plan) {
    return std::tuple(plan.step_s, plan.memory_bytes, plan.layout.token_slices != 1);
  };
  return rank(a) < rank(b);
}

}  // namespace

MemoryParts states_of(double parameters, double weight_bytes, double wide_bytes, int zero, int dp,
                      bool offload) {
  const double master = weight_bytes < wide_bytes ? wide_bytes : 0.0;
  const auto kept = [&](int from_stage, double bytes) {
    return bytes * parameters / (zero >= from_stage ? dp : 1);
  };
  MemoryParts out;
  out.weights = kept(3, weight_bytes);
  out.gradients = kept(2, wide_bytes);
  out.optimizer = offload ? 0.0 : kept(1, master + 2 * wide_bytes);
  return out;
}

Planner::Planner(PlannedModel model, Cluster cluster, SearchOptions options)
    : model_(std::move(model)),
      cluster_(std::move(cluster)),
      options_(options),
      costs_(std::make_unique<LayoutCosts>(model_, cluster_, options_)) {}

Planner::~Planner() = default;

std::vector<LayoutPlan> Planner::search(const FixedLayout& fixed, int top) {
  struct Candidate {
    Layout layout;
    double bound = 0.0;
  };
  std::vector<Candidate> candidates;
  possible_ = priced_ = 0;
  for (Layout& layout : layout_space(*costs_, model_, cluster_, fixed)) {
    ++possible_;
    const LayoutCosts::Bounds bounds = costs_->bounds(layout);
    if (options_.prune && bounds.memory_bytes > usable_bytes()) continue;
    candidates.push_back({std::move(layout), bounds.step_s});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.bound < b.bound; });
  std::map<Group, LayoutPlan> best;
  // The time that a layout of a group not seen yet must beat.
  const auto threshold = [&] {
    std::vector<double> times;
    for (const auto& [group, plan] : best) times.push_back(plan.step_s);
    if (static_cast<int>(times.size()) < top) return std::numeric_limits<double>::infinity();
    std::nth_element(times.begin(), times.begin() + top - 1, times.end());
    return times[top - 1];
  };
  for (const Candidate& candidate : candidates) {
    const auto known = best.find(group_of(candidate.layout));
    if (options_.prune) {
      const double limit = threshold();
      if (candidate.bound > limit) break;
      if (known != best.end() && candidate.bound > known->second.step_s) continue;
    }
    ++priced_;
    std::optional<LayoutPlan> plan = costs_->price(candidate.layout, /*must_fit=*/true);
    if (!plan) continue;
    CONTEXTURE_INVARIANT(candidate.bound <= plan->step_s * (1 + 1e-9), "a layout takes ",
                         plan->step_s, " s, less than its bound ", candidate.bound);
    if (known == best.end()) {
      best.emplace(group_of(candidate.layout), std::move(*plan));
    } else if (better(*plan, known->second)) {
      known->second = std::move(*plan);
    }
  }
  std::vector<LayoutPlan> plans;
  for (auto& [group, plan] : best) plans.push_back(std::move(plan));
  std::stable_sort(plans.begin(), plans.end(), better);
  if (static_cast<int>(plans.size()) > top) plans.resize(top);
  return plans;
}

LayoutPlan Planner::price(const Layout& layout) {
  return *costs_->price(layout, /*must_fit=*/false);
}

namespace {

// What memory does not depend on is not varied where memory is all that counts.
FixedLayout for_memory(FixedLayout fixed, const PlannedModel& model) {
  if (fixed.order.empty()) fixed.order = model.order;
  if (fixed.token_slices < 0) fixed.token_slices = 1;
  return fixed;
}

}  // namespace

LayoutPlan Planner::leanest(const FixedLayout& fixed) {
  struct Candidate {
    Layout layout;
    double bound = 0.0;
  };
  std::vector<Candidate> candidates;
  for (Layout& layout : layout_space(*costs_, model_, cluster_, for_memory(fixed, model_))) {
    candidates.push_back({layout, costs_->bounds(layout).memory_bytes});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.bound < b.bound; });
  std::optional<LayoutPlan> least;
  for (const Candidate& candidate : candidates) {
    if (least && candidate.bound >= least->memory_bytes) break;
    LayoutPlan plan = price(candidate.layout);
    if (!least || plan.memory_bytes < least->memory_bytes) least = std::move(plan);
  }
  return std::move(*least);
}

int Planner::nodes_that_fit(const FixedLayout& fixed) {
  for (int times = 2; times <= kMostTimesNodes; times *= 2) {
    Cluster larger = cluster_;
    larger.nodes *= times;
    try {
      if (!Planner(model_, larger, options_).search(for_memory(fixed, model_), 1).empty())
        return larger.nodes;
    } catch (const UsageError&) {
      continue;  // no layout of so many GPUs is possible
    }
  }
  return 0;
}

Schedule schedule_of(const StageGraph& graph, const Layout& layout) {
  const int m = static_cast<int>(layout.microbatches);
  if (graph.num_stages == 1 || layout.schedule == "1f1b") return make_1f1b(graph, m);
  if (layout.schedule == "gpipe") return make_gpipe(graph, m);
  return layout.schedule == "zb_h1" ? make_zb_h1(graph, m) : make_interleaved(graph, m);
}

std::vector<std::string> settings_of(const LayoutPlan& plan) {
  const Layout& l = plan.layout;
  std::vector<std::string> out;
  const auto set = [&](const char* name, const auto& value) {
    out.push_back(concat("parallel.", name, "=", value));
  };
  set("dp", l.dp);
  set("pp", l.pp);
  set("tp", l.tp);
  set("schedule", l.schedule);
  set("chunks", l.chunks);
  set("microbatches", l.microbatches);
  set("token_slices", l.token_slices);
  set("order", l.order);
  set("zero", l.zero);
  set("recompute", Json(l.recompute).dump());
  set("shared", "replicate");
  out.push_back(concat("data.assembly=", l.assembly));
  set("stages", Json(l.pp > 1 ? plan.cut.stage_of_block : std::vector<int>()).dump());
  return out;
}

}  // namespace contexture::parallel
