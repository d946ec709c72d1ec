// LayoutCosts::price: the step time of one layout, from its cut and its simulated schedule. Its
// memory and traffic are in files of their own.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "parallel/internal/layout_cost.h"
#include "parallel/internal/sliced_step.h"

namespace contexture::parallel {
namespace {

constexpr double kWorthMoving =
    1.5;  // a cut that needs more than this times the memory is not moved to fit

// The shortest time of saving against losing work (Daly): M mean time between interruptions, C time
// of a save.
double daly_interval(double C, double M) {
  const double x = std::sqrt(C / (2 * M));
  return C < 2 * M ? std::sqrt(2 * C * M) * (1 + x / 3 + x * x / 9) - C : M;
}

double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

}  // namespace

class LayoutPricing {
 public:
  LayoutPricing(LayoutCosts& costs, const Layout& layout, Plan cut)
      : costs_(costs),
        model_(costs.model_),
        cluster_(costs.cluster_),
        plan_(named(costs, layout, std::move(cut))),
        placed_(model_, cluster_, plan_.layout, plan_.cut, costs.links(layout), costs.trace(layout),
                costs.inputs(layout)),
        t_(placed_.trace) {}

  LayoutPlan run() {
    const SimulatedStep whole = whole_step(placed_);
    plan_.times = whole.times;
    const TokenSlices slices = token_slices_of(placed_);
    plan_.step = slices.rows.size() == 1 ? whole : sliced_step(placed_, whole, slices);
    if (plan_.layout.token_slices != 1) plan_.slice_rows = slices.rows;
    plan_.tensor_s = tensor_s(placed_, slices);
    const ScheduleReport report = simulate(plan_.step.graph, plan_.step.schedule, plan_.step.times);
    pipeline(report, slices.rows.size());
    reduction(report);
    shared_parameters();
    offload();
    forward_work();
    plan_.memory = memory_of(placed_, whole.schedule, [&](double parameters) {
      return costs_.states_of(parameters, plan_.layout);
    });
    for (const MemoryParts& parts : plan_.memory)
      plan_.memory_bytes = std::max(plan_.memory_bytes, parts.total());
    const LayoutTraffic traffic = traffic_of(placed_, slices.rows.size());
    plan_.inside = traffic.inside;
    plan_.across = traffic.across;
    totals();
    return std::move(plan_);
  }

 private:
  static LayoutPlan named(const LayoutCosts& costs, const Layout& layout, Plan cut) {
    LayoutPlan plan;
    plan.layout = layout;
    plan.layout.order = costs.order(layout);
    plan.layout.assembly = costs.assembly(layout);
    plan.documents = costs.documents(layout);
    plan.remark = cut.remark;
    plan.cut = std::move(cut);
    return plan;
  }

  // The schedule, or what the fullest links need for all microbatches, whichever is longer: the
  // simulation lets messages overlap.
  void pipeline(const ScheduleReport& report, size_t num_slices) {
    std::vector<double> received(plan_.layout.pp, 0.0);
    for (size_t s = 0; s < plan_.cut.stages.size(); ++s)
      received[placed_.rank_of(static_cast<int>(s))] += placed_.m * plan_.cut.stages[s].transfer_s;
    // What is written in slices comes in as many messages.
    for (const TraceWire& wire : t_.wires) {
      const int home = placed_.rank_of_block(wire.producer);
      if (t_.blocks[wire.producer].rows == 0) continue;
      std::set<int> ranks;
      for (const int reader : wire.readers) ranks.insert(placed_.rank_of_block(reader));
      ranks.erase(home);
      for (const int to : ranks)
        received[to] += placed_.m * (static_cast<double>(num_slices) - 1.0) *
                        (wire.gradient ? 2.0 : 1.0) * placed_.link(home, to).latency_s;
    }
    plan_.pipeline_s = std::max(report.makespan, largest(received));
    double busy = 0.0;
    for (const double b : report.busy) busy += b;
    plan_.idle = 1.0 - busy / (plan_.pipeline_s * plan_.layout.pp);
  }

  // Gradients over the replicas (ZeRO 0 and 1: once a step, from when the last backward begins;
  // ZeRO 2 and 3: in the stages' times), and the new values back (1 and 2).
  void reduction(const ScheduleReport& report) {
    const Layout& l = plan_.layout;
    if (l.dp == 1) return;
    const RankGroup& replicas = placed_.links.data;
    const StageTimes& times = plan_.step.times;
    double end = plan_.pipeline_s;
    for (int r = 0; r < l.pp; ++r) {
      const double bytes = placed_.rank_bytes[r], gradients = placed_.wide(bytes);
      if (l.zero < 2) {
        const double seconds =
            l.zero == 0 ? all_reduce_s(replicas, gradients) : reduce_scatter_s(replicas, gradients);
        const double buckets = std::max(1.0, std::ceil(gradients / model_.bucket_bytes));
        const Action& last = plan_.step.schedule.by_rank[r].back();
        const double begin = report.start[r].back();
        const double finish =
            begin + (last.work == Work::kWeightGrad ? 0.0 : times.input_grad[last.stage]) +
            times.weight_grad[last.stage];
        plan_.reduce_s = std::max(plan_.reduce_s, seconds);
        end = std::max({end, finish + seconds / buckets, begin + seconds});
      }
      if (l.zero == 1 || l.zero == 2)
        plan_.publish_s = std::max(plan_.publish_s, all_gather_s(replicas, bytes));
    }
    plan_.exposed_reduce_s = end - plan_.pipeline_s;
  }

  void shared_parameters() {
    const Layout& l = plan_.layout;
    std::vector<double> seconds(l.pp, 0.0);
    placed_.for_each_shared([&](double bytes, const std::vector<int>& ranks) {
      Link slowest = cluster_.inside;
      for (const int a : ranks) {
        for (const int b : ranks) {
          if (placed_.links.crosses[a][b]) slowest = cluster_.across;
        }
      }
      const double share = placed_.wide(bytes) / (l.zero >= 1 ? l.dp : 1);
      for (const int r : ranks)
        seconds[r] += best_all_reduce(static_cast<int>(ranks.size()), share, slowest).seconds;
    });
    plan_.shared_s = largest(seconds);
  }

  void offload() {
    double all = 0.0;
    for (int r = 0; r < plan_.layout.pp; ++r) all += placed_.parameters_of(r);
    plan_.offload_s =
        costs_.offload_s(largest(placed_.rank_bytes) / model_.weight_bytes, all, plan_.layout);
  }

  void forward_work() {
    const Layout& l = plan_.layout;
    if (model_.search_s > 0) plan_.forward_work_s["search"] = model_.search_s;
    for (const ForwardWork& work : model_.forward_work) {
      const double passes = costs_.passes(work, l);
      std::vector<double> seconds(l.pp, 0.0);
      const std::vector<bool>& behind = costs_.behind(work);
      double all = 0.0;
      for (size_t b = 0; b < t_.blocks.size(); ++b) {
        if (!behind[b]) continue;
        const double forward = t_.blocks[b].forward_s + placed_.gather_s(b);
        seconds[placed_.rank_of_block(b)] += forward;
        all += forward;
        plan_.recomputed_flops += passes * placed_.runs * placed_.traced.forward_flops[b];
      }
      const double slowest = largest(seconds);
      if (all * passes > 0)
        plan_.forward_work_s[work.name] = passes * (placed_.m * slowest + all - slowest);
    }
  }

  void totals() {
    const Layout& l = plan_.layout;
    plan_.step_s = plan_.pipeline_s + plan_.exposed_reduce_s + plan_.shared_s + plan_.publish_s +
                   plan_.offload_s;
    for (const auto& [name, seconds] : plan_.forward_work_s) plan_.step_s += seconds;
    for (size_t b = 0; b < t_.blocks.size(); ++b) {
      plan_.executed_flops += 3 * placed_.runs * placed_.traced.forward_flops[b];
      if (t_.blocks[b].recompute)
        plan_.recomputed_flops += placed_.runs * placed_.traced.forward_flops[b];
    }
    const double peak = l.gpus() * cluster_.peak(model_.dtype),
                 batch = static_cast<double>(model_.batch_size);
    plan_.mfu = model_flops_utilisation(plan_.executed_flops, plan_.step_s, peak);
    plan_.logical_mfu =
        model_flops_utilisation(model_.logical_flops_per_input * batch, plan_.step_s, peak);
    plan_.samples_per_s = batch / plan_.step_s;
    const auto usd = [&](double per_gpu_hour) {
      return l.gpus() * per_gpu_hour / 3600.0 / plan_.samples_per_s * 1000.0;
    };
    if (cluster_.usd_per_gpu_hour > 0) plan_.usd_per_1k_samples = usd(cluster_.usd_per_gpu_hour);
    if (cluster_.spot_usd_per_gpu_hour <= 0) return;
    SpotPlan& spot = plan_.spot.emplace();
    double bytes = 0.0;
    for (const TraceParameter& p : t_.parameters)
      bytes += 3 * placed_.wide(static_cast<double>(p.bytes)) *
               (p.split ? l.tp : 1);  // master, two moments
    spot.checkpoint_s =
        bytes / (cluster_.storage_bytes_per_s > 0 ? cluster_.storage_bytes_per_s : kAssumedStorage);
    if (cluster_.spot_interruptions_per_hour > 0) {
      const double between_s = 3600.0 / cluster_.spot_interruptions_per_hour;
      spot.young_s = std::sqrt(2 * spot.checkpoint_s * between_s);
      spot.checkpoint_every_s = daly_interval(spot.checkpoint_s, between_s);
      spot.overhead = spot.checkpoint_s / spot.checkpoint_every_s +
                      (spot.checkpoint_every_s / 2 + spot.checkpoint_s) / between_s;
      spot.interruptions =
          static_cast<double>(model_.steps) * plan_.step_s * (1 + spot.overhead) / between_s;
    }
    spot.usd_per_1k_samples = usd(cluster_.spot_usd_per_gpu_hour) * (1 + spot.overhead);
  }

  LayoutCosts& costs_;
  const PlannedModel& model_;
  const Cluster& cluster_;
  LayoutPlan plan_;
  const PlacedLayout placed_;
  const Trace& t_;
};

std::optional<LayoutPlan> LayoutCosts::price(const Layout& layout, bool must_fit) {
  const bool slices = layout.token_slices != 1;
  CONTEXTURE_USAGE_REQUIRE(!slices || (layout.pp > 1 && rows() > 0 &&
                                       (layout.schedule == "1f1b" || layout.schedule == "gpipe")),
                           "parallel.token_slices=", layout.token_slices,
                           " can be planned for a pipeline with schedule=1f1b or gpipe, of a model "
                           "with blocks that run by "
                           "rows, but parallel.pp=",
                           layout.pp, " and schedule=", layout.schedule, ".");
  const double usable = options_.usable_memory * cluster_.memory_bytes;
  std::optional<Plan> found = cut(layout, {});
  CONTEXTURE_USAGE_REQUIRE(found || must_fit, "partitioner ", to_string(options_.partitioner),
                           " makes no cut into ", layout.stages(), " stages of one rank each.");
  if (!found) return std::nullopt;
  LayoutPlan plan = LayoutPricing(*this, layout, std::move(*found)).run();
  if (!must_fit || plan.memory_bytes <= usable) return plan;
  const bool heeds_caps =
      options_.partitioner == Partitioner::kExact || options_.partitioner == Partitioner::kLinear;
  if (layout.pp == 1 || layout.chunks > 1 || !heeds_caps ||
      plan.memory_bytes > kWorthMoving * usable)
    return std::nullopt;
  std::vector<double> caps;
  for (const MemoryParts& parts : plan.memory)
    caps.push_back(usable - parts.working - parts.inputs - parts.index);
  if (*std::min_element(caps.begin(), caps.end()) <= 0) return std::nullopt;
  found = cut(layout, caps);
  if (!found) return std::nullopt;
  plan = LayoutPricing(*this, layout, std::move(*found)).run();
  if (plan.memory_bytes > usable) return std::nullopt;
  return plan;
}

}  // namespace contexture::parallel
