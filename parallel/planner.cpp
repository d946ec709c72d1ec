#include "parallel/planner.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "core/error.h"
#include "core/json.h"
#include "parallel/internal/layout_cost.h"

namespace contexture::parallel {
namespace {

const char* const kSchedules[] = {"1f1b", "zb_h1", "interleaved", "gpipe"};
const std::vector<int> kChunks = {2, 4};  // of interleaved
constexpr int kBlocksAStage =
    2;  // at least, with interleaved: shorter stages only multiply messages
constexpr int kMostTimesNodes = 1024;

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) out.push_back(d);
  }
  return out;
}

bool allows(int64_t fixed, int64_t value) { return fixed == 0 || fixed == value; }

// Layouts of one group are variations of one idea; the answer holds the best of each.
using Group = std::tuple<int, int, int, std::string>;
Group group_of(const Layout& l) { return {l.dp, l.tp, l.pp, l.schedule}; }

class Search {
 public:
  Search(const PlannedModel& model, const Cluster& cluster, const FixedLayout& fixed,
         int num_blocks)
      : model_(model), gpus_(cluster.num_gpus()), fixed_(fixed), num_blocks_(num_blocks) {
    require_consistent();
  }

  std::vector<Layout> layouts() {
    std::string refusal;
    for (const int64_t tp : divisors(gpus_)) {
      for (const int64_t pp : divisors(gpus_ / tp)) {
        const int64_t dp = gpus_ / tp / pp;
        if (!allows(fixed_.tp, tp) || !allows(fixed_.pp, pp) || !allows(fixed_.dp, dp)) continue;
        const std::string why =
            refuses(static_cast<int>(dp), static_cast<int>(pp), static_cast<int>(tp));
        if (!why.empty()) {
          refusal = why;
          continue;
        }
        add({.dp = static_cast<int>(dp), .pp = static_cast<int>(pp), .tp = static_cast<int>(tp)});
      }
    }
    CONTEXTURE_USAGE_REQUIRE(!layouts_.empty(), "no layout of ", gpus_, " GPUs is possible: ",
                             refusal.empty() ? concat("none has parallel.dp x pp x tp = ", gpus_,
                                                      " with ", in_words(), ".")
                                             : refusal);
    return std::move(layouts_);
  }

 private:
  std::string in_words() const {
    std::string out;
    for (const auto& [name, value] : {std::pair{"dp", int64_t{fixed_.dp}},
                                      {"pp", int64_t{fixed_.pp}},
                                      {"tp", int64_t{fixed_.tp}},
                                      {"microbatches", fixed_.microbatches}}) {
      if (value > 0) out += concat(out.empty() ? "" : ", ", "parallel.", name, "=", value);
    }
    if (!fixed_.schedule.empty())
      out += concat(out.empty() ? "" : ", ", "parallel.schedule=", fixed_.schedule);
    return out;
  }

  void require_consistent() const {
    int64_t product = 1;
    for (const int fixed : {fixed_.dp, fixed_.pp, fixed_.tp}) {
      CONTEXTURE_USAGE_REQUIRE(fixed >= 0, "parallel.dp=", fixed_.dp, ", pp=", fixed_.pp,
                               " and tp=", fixed_.tp, " must not be negative.");
      product *= std::max(1, fixed);
    }
    CONTEXTURE_USAGE_REQUIRE(gpus_ % product == 0, "the cluster has ", gpus_, " GPUs, which ",
                             in_words(), " do not divide.");
    CONTEXTURE_USAGE_REQUIRE(fixed_.dp == 0 || fixed_.pp == 0 || fixed_.tp == 0 || product == gpus_,
                             in_words(), " make ", product, " ranks, but the cluster has ", gpus_,
                             " GPUs. Leave one of them free, or change the cluster.");
    const bool known = fixed_.schedule.empty() ||
                       std::find(std::begin(kSchedules), std::end(kSchedules), fixed_.schedule) !=
                           std::end(kSchedules);
    CONTEXTURE_USAGE_REQUIRE(known, "parallel.schedule=", fixed_.schedule,
                             " cannot be planned. Use gpipe, 1f1b, interleaved or zb_h1.");
    CONTEXTURE_USAGE_REQUIRE(fixed_.zero <= 3, "parallel.zero=", fixed_.zero,
                             " is not known. Use 0, 1, 2 or 3.");
    CONTEXTURE_USAGE_REQUIRE(
        fixed_.chunks <= 1 || fixed_.schedule.empty() || fixed_.schedule == "interleaved",
        "parallel.chunks=", fixed_.chunks, " needs parallel.schedule=interleaved, not ",
        fixed_.schedule, ".");
  }

  std::string refuses(int dp, int pp, int tp) const {
    if (dp > model_.batch_size)
      return concat("train.batch_size=", model_.batch_size,
                    " has no input for each of parallel.dp=", dp, " replicas.");
    if (pp > num_blocks_)
      return concat("the model's ", num_blocks_, " blocks do not fill parallel.pp=", pp,
                    " stages.");
    return model_.refuses ? model_.refuses(dp, tp) : "";
  }

  // All that can still vary for a mesh.
  void add(Layout layout) {
    const int64_t share = (model_.batch_size + layout.dp - 1) / layout.dp;
    const std::vector<int64_t> counts =
        fixed_.microbatches > 0 ? std::vector<int64_t>{fixed_.microbatches} : divisors(share);
    for (const int64_t m : counts) {
      if (m > share) continue;
      layout.microbatches = m;
      for (const char* schedule : kSchedules) {
        if (!fixed_.schedule.empty() ? fixed_.schedule != schedule
                                     : layout.pp == 1 && schedule != kSchedules[0])
          continue;
        layout.schedule = schedule;
        const bool interleaved = layout.schedule == "interleaved" && layout.pp > 1;
        for (const int chunks : !interleaved        ? std::vector<int>{1}
                                : fixed_.chunks > 0 ? std::vector<int>{fixed_.chunks}
                                                    : kChunks) {
          const bool asked = fixed_.chunks == chunks;
          if (!allows(fixed_.chunks, chunks) || layout.pp * chunks > num_blocks_ ||
              (interleaved && m % layout.pp != 0))
            continue;
          if (interleaved && !asked && layout.pp * chunks * kBlocksAStage > num_blocks_) continue;
          layout.chunks = chunks;
          add_states(layout);
        }
      }
    }
  }

  void add_states(Layout layout) {
    for (int zero = 0; zero <= (layout.dp > 1 || fixed_.zero >= 0 ? 3 : 0); ++zero) {
      if (fixed_.zero >= 0 && zero != fixed_.zero) continue;
      layout.zero = zero;
      if (fixed_.recompute) {
        layout.recompute = *fixed_.recompute;
        layouts_.push_back(layout);
        continue;
      }
      for (const auto& recompute : model_.recompute) {
        layout.recompute = recompute;
        layouts_.push_back(layout);
      }
    }
  }

  const PlannedModel& model_;
  const int64_t gpus_;
  const FixedLayout& fixed_;
  const int num_blocks_;
  std::vector<Layout> layouts_;
};

bool better(const LayoutPlan& a, const LayoutPlan& b) {
  return std::tie(a.step_s, a.memory_bytes) < std::tie(b.step_s, b.memory_bytes);
}

}  // namespace

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
  for (Layout& layout : Search(model_, cluster_, fixed, costs_->num_blocks()).layouts()) {
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

LayoutPlan Planner::leanest(const FixedLayout& fixed) {
  struct Candidate {
    Layout layout;
    double bound = 0.0;
  };
  std::vector<Candidate> candidates;
  for (Layout& layout : Search(model_, cluster_, fixed, costs_->num_blocks()).layouts()) {
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
      if (!Planner(model_, larger, options_).search(fixed, 1).empty()) return larger.nodes;
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
  set("zero", l.zero);
  set("recompute", Json(l.recompute).dump());
  set("shared", "replicate");
  set("stages", Json(l.pp > 1 ? plan.cut.stage_of_block : std::vector<int>()).dump());
  return out;
}

}  // namespace contexture::parallel
