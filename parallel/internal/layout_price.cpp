// LayoutCosts::price: the time, memory and bytes of one layout, from its cut and its simulated
// schedule.
#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "parallel/internal/layout_cost.h"

namespace contexture::parallel {
namespace {

constexpr double kWorthMoving =
    1.5;  // a cut that needs more than this times the memory is not moved to fit
// Gradients inside a layer at their most, relative to what the layer keeps: of a transformer's encoder layer (width D, heads' width D, hidden
// width F) 3 F + 2 D of 3 F + 8 D numbers a row.
constexpr double kGradientsInside = 0.65;
constexpr double kAssumedStorage = 1e9;  // bytes a second, where the cluster file says nothing

// The shortest time of saving against losing work (Daly): M mean time between interruptions, C time
// of a save.
double daly_interval(double C, double M) {
  const double x = std::sqrt(C / (2 * M));
  return C < 2 * M ? std::sqrt(2 * C * M) * (1 + x / 3 + x * x / 9) - C : M;
}

}  // namespace

class LayoutPricing {
 public:
  LayoutPricing(LayoutCosts& costs, const Layout& layout, Plan cut)
      : costs_(costs),
        model_(costs.model_),
        cluster_(costs.cluster_),
        mesh_(costs.mesh(layout)),
        traced_(costs.trace(layout)),
        t_(traced_.trace),
        m_(static_cast<double>(layout.microbatches)),
        runs_(m_ * layout.dp) {
    plan_.layout = layout;
    plan_.cut = std::move(cut);
    plan_.remark = plan_.cut.remark;
    own_bytes_per_stage();
  }

  LayoutPlan run() {
    stage_times();
    const Schedule schedule = schedule_of(plan_.graph, plan_.layout);
    const ScheduleReport report = simulate(plan_.graph, schedule, plan_.times);
    pipeline(report);
    reduction(schedule, report);
    shared_parameters();
    forward_work();
    memory(schedule);
    traffic();
    totals();
    return std::move(plan_);
  }

 private:
  int rank_of(int stage) const { return plan_.cut.device_of_stage[stage]; }
  int num_stages() const { return static_cast<int>(plan_.cut.stages.size()); }
  double per_rank_max(const std::vector<double>& values) const {
    return *std::max_element(values.begin(), values.end());
  }
  double parameters_of(int rank) const { return rank_bytes_[rank] / model_.weight_bytes; }

  // Bytes of parameters that no earlier block of the same rank has, by block: what a rank holds and
  // reduces, each once.
  void own_bytes_per_stage() {
    const Layout& l = plan_.layout;
    rank_bytes_.resize(l.pp, 0.0);
    own_bytes_.resize(t_.blocks.size(), 0.0);
    block_bytes_.resize(t_.blocks.size(), 0.0);
    std::vector<std::set<int>> seen(l.pp);
    for (size_t b = 0; b < t_.blocks.size(); ++b) {
      const int rank = rank_of(plan_.cut.stage_of_block[b]);
      for (const int p : t_.blocks[b].parameters) {
        const auto bytes = static_cast<double>(t_.parameters[p].bytes);
        block_bytes_[b] += bytes;
        if (seen[rank].insert(p).second) own_bytes_[b] += bytes;
      }
      rank_bytes_[rank] += own_bytes_[b];
    }
  }

  double wide(double weight_bytes) const {
    return weight_bytes / model_.weight_bytes * model_.wide_bytes;
  }

  void stage_times() {
    const Layout& l = plan_.layout;
    plan_.graph.num_stages = num_stages();
    plan_.graph.num_ranks = l.pp;
    plan_.graph.rank_of = plan_.cut.device_of_stage;
    StageTimes& times = plan_.times;
    times.forward.resize(num_stages(), 0.0);
    times.input_grad = times.weight_grad = times.forward;
    block_forward_.resize(t_.blocks.size(), 0.0);
    const RankGroup replicas = costs_.group_along(l, Axis::kDp);
    std::vector<double> waits(l.pp, 0.0);
    for (size_t b = 0; b < t_.blocks.size(); ++b) {
      const TraceBlock& block = t_.blocks[b];
      const int s = plan_.cut.stage_of_block[b];
      const double gather =
          l.zero == 3 && block_bytes_[b] > 0 ? all_gather_s(replicas, block_bytes_[b]) : 0.0;
      block_forward_[b] = block.forward_s + gather;
      times.forward[s] += block_forward_[b];
      times.input_grad[s] +=
          block.input_grad_s + (block.recompute ? block.forward_s : 0.0) + gather;
      times.weight_grad[s] += block.weight_grad_s;
      if (l.zero >= 2 && own_bytes_[b] > 0)
        times.weight_grad[s] += reduce_scatter_s(replicas, wide(own_bytes_[b]));
      waits[rank_of(s)] += m_ * traced_.tensor_s[b];
    }
    plan_.tensor_s = per_rank_max(waits);
    const auto between = costs_.links_between(l);
    std::map<std::pair<int, int>, double> edges;
    for (const TraceWire& wire : t_.wires) {
      const int from = plan_.cut.stage_of_block[wire.producer];
      std::set<int> readers;
      for (const int reader : wire.readers) readers.insert(plan_.cut.stage_of_block[reader]);
      readers.erase(from);
      for (const int to : readers) {
        edges[{from, to}] +=
            rank_of(from) == rank_of(to)
                ? 0.0
                : between[rank_of(from)][rank_of(to)].seconds(wire.forward_bytes());
      }
    }
    for (const auto& [edge, seconds] : edges) {
      plan_.graph.edges.push_back(edge);
      times.transfer.push_back(seconds);
    }
  }

  // The schedule, or what the fullest links need for all microbatches, whichever is longer: the
  // simulation lets messages overlap.
  void pipeline(const ScheduleReport& report) {
    std::vector<double> received(plan_.layout.pp, 0.0);
    for (int s = 0; s < num_stages(); ++s)
      received[rank_of(s)] += m_ * plan_.cut.stages[s].transfer_s;
    plan_.pipeline_s = std::max(report.makespan, per_rank_max(received));
    double busy = 0.0;
    for (const double b : report.busy) busy += b;
    plan_.idle = 1.0 - busy / (plan_.pipeline_s * plan_.layout.pp);
  }

  // Gradients over the replicas (ZeRO 0 and 1: once a step, from when the last backward begins;
  // ZeRO 2 and 3: in the stages' times), and the new values back (1 and 2).
  void reduction(const Schedule& schedule, const ScheduleReport& report) {
    const Layout& l = plan_.layout;
    if (l.dp == 1) return;
    const RankGroup replicas = costs_.group_along(l, Axis::kDp);
    double end = plan_.pipeline_s;
    for (int r = 0; r < l.pp; ++r) {
      const double gradients = wide(rank_bytes_[r]);
      if (l.zero < 2) {
        const double seconds =
            l.zero == 0 ? all_reduce_s(replicas, gradients) : reduce_scatter_s(replicas, gradients);
        const double buckets = std::max(1.0, std::ceil(gradients / model_.bucket_bytes));
        const Action& last = schedule.by_rank[r].back();
        const double begin = report.start[r].back();
        const double finish =
            begin + (last.work == Work::kWeightGrad ? 0.0 : plan_.times.input_grad[last.stage]) +
            plan_.times.weight_grad[last.stage];
        plan_.reduce_s = std::max(plan_.reduce_s, seconds);
        end = std::max({end, finish + seconds / buckets, begin + seconds});
      }
      if (l.zero == 1 || l.zero == 2)
        plan_.publish_s = std::max(plan_.publish_s, all_gather_s(replicas, rank_bytes_[r]));
    }
    plan_.exposed_reduce_s = end - plan_.pipeline_s;
  }

  // Calls visit(parameter, ranks) for each parameter that several ranks have.
  template <typename Visit>
  void for_each_shared(const Visit& visit) const {
    for (size_t p = 0; p < plan_.cut.parameters.size(); ++p) {
      const ParameterPlace& place = plan_.cut.parameters[p];
      if (place.replica_stages.empty()) continue;
      std::vector<int> ranks = {rank_of(place.owner_stage)};
      for (const int s : place.replica_stages) ranks.push_back(rank_of(s));
      visit(static_cast<double>(t_.parameters[p].bytes), ranks);
    }
  }

  void shared_parameters() {
    const Layout& l = plan_.layout;
    const auto between = costs_.links_between(l);
    std::vector<double> seconds(l.pp, 0.0);
    for_each_shared([&](double bytes, const std::vector<int>& ranks) {
      Link slowest = cluster_.inside;
      for (const int a : ranks) {
        for (const int b : ranks) {
          if (between[a][b] == cluster_.across) slowest = cluster_.across;
        }
      }
      const double share = wide(bytes) / (l.zero >= 1 ? l.dp : 1);
      for (const int r : ranks)
        seconds[r] += best_all_reduce(static_cast<int>(ranks.size()), share, slowest).seconds;
    });
    plan_.shared_s = per_rank_max(seconds);
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
        seconds[rank_of(plan_.cut.stage_of_block[b])] += block_forward_[b];
        all += block_forward_[b];
        plan_.recomputed_flops += passes * runs_ * traced_.forward_flops[b];
      }
      const double slowest = per_rank_max(seconds);
      if (all * passes > 0)
        plan_.forward_work_s[work.name] = passes * (m_ * slowest + all - slowest);
    }
  }

  // What a rank holds at one moment beside weights and optimizer state.
  struct Held {
    double activations = 0.0, gradients = 0.0;
    double working = 0.0;  // for this moment alone
    double total() const { return activations + gradients + working; }
  };

  // The fullest moment of a step, walking through the rank's order. Gradients are there from a block's first backward on: the first
  // backward may well begin before any of them is.
  Held fullest(const Schedule& schedule, int rank) const {
    const Layout& l = plan_.layout;
    const bool reduced_at_once = l.dp > 1 && l.zero >= 2;
    Held now, most;
    const auto look = [&](double working) {
      now.working = working;
      if (now.total() > most.total()) most = now;
    };
    std::vector<bool> has_gradient(t_.blocks.size(), false);
    for (const Action& action : schedule.by_rank[rank]) {
      const StageCost& stage = plan_.cut.stages[action.stage];
      if (action.work == Work::kForward) {
        now.activations += stage.forward_bytes_in;
        for (const int b : stage.blocks) {
          now.activations += kept(b);
          look(gathered(b));
        }
        continue;
      }
      for (size_t i = stage.blocks.size(); i-- > 0;) {
        const int b = stage.blocks[i];
        const bool weights = action.work != Work::kInputGrad;
        if (action.work != Work::kWeightGrad) {
          // Recomputed, and the gradients inside the block.
          const double inside = traced_.full_activations[b] * (1 + kGradientsInside) - kept(b);
          look((t_.blocks[b].recompute ? inside : kGradientsInside * traced_.full_activations[b]) + gathered(b) +
               (weights ? fresh_gradients(b, has_gradient[b]) : 0.0));
          now.activations -= kept(b);
          // Inputs of matrices and gradients of their outputs, until the weight gradients run.
          if (!weights) now.activations += traced_.full_activations[b];
        } else {
          look(fresh_gradients(b, has_gradient[b]));
          now.activations -= traced_.full_activations[b];
        }
        if (!weights || has_gradient[b]) continue;
        has_gradient[b] = true;
        now.gradients += wide(own_bytes_[b]) / (reduced_at_once ? l.dp : 1);
      }
      if (action.work != Work::kWeightGrad) now.activations -= stage.forward_bytes_in;
    }
    if (l.dp > 1 && l.zero < 2) look(std::min(model_.bucket_bytes, wide(rank_bytes_[rank])));
    return most;
  }

  double kept(int block) const { return static_cast<double>(t_.blocks[block].activation_bytes); }
  // ZeRO 3: a block's weights as they came and in their place.
  double gathered(int block) const { return plan_.layout.dp > 1 && plan_.layout.zero == 3 ? 2 * block_bytes_[block] : 0.0; }
  // A block's gradients as computed, before they are added to the sum (in fp32 the first of them become the sum); and, where they are
  // reduced at once, as they are summed and laid out for that.
  double fresh_gradients(int block, bool has_sum) const {
    const bool become_sum = !has_sum && model_.weight_bytes == model_.wide_bytes;
    const bool reduced_at_once = plan_.layout.dp > 1 && plan_.layout.zero >= 2;
    return (become_sum ? 0.0 : block_bytes_[block]) + (reduced_at_once ? 2 * wide(own_bytes_[block]) : 0.0);
  }

  void memory(const Schedule& schedule) {
    const Layout& l = plan_.layout;
    for (int r = 0; r < l.pp; ++r) {
      MemoryParts parts = costs_.states_of(parameters_of(r), l);
      const Held most = fullest(schedule, r);
      // Of the gradients that count in full, those that are not there at that moment leave their room.
      parts.activations = std::max(0.0, most.activations + most.gradients - parts.gradients);
      parts.working = std::max(0.0, most.total() - parts.gradients - parts.activations);
      const double on_first = r == 0 ? model_.index_bytes : 0.0;
      parts.index = model_.index_sharded ? model_.index_bytes / (l.dp * l.pp * l.tp) : on_first;
      parts.inputs = model_.input_bytes * static_cast<double>(model_.batch_size) / l.dp;
      for (const StageCost& stage : plan_.cut.stages) {
        if (stage.device != r) continue;
        for (const int b : stage.blocks)
          parts.index += static_cast<double>(t_.blocks[b].resident_bytes);
      }
      plan_.memory.push_back(parts);
      plan_.memory_bytes = std::max(plan_.memory_bytes, parts.total());
    }
  }

  void add(double LinkBytes::*kind, double bytes, double crossing) {
    plan_.across.*kind += bytes * crossing;
    plan_.inside.*kind += bytes * (1.0 - crossing);
  }

  void traffic() {
    const Layout& l = plan_.layout;
    const auto between = costs_.links_between(l);
    const auto crosses = [&](int a, int b) {
      return cluster_.nodes > 1 && between[a][b] == cluster_.across ? 1.0 : 0.0;
    };
    for (const TraceWire& wire : t_.wires) {
      const int home = rank_of(plan_.cut.stage_of_block[wire.producer]);
      std::set<int> ranks;
      for (const int reader : wire.readers) ranks.insert(rank_of(plan_.cut.stage_of_block[reader]));
      ranks.erase(home);
      for (const int to : ranks)
        add(&LinkBytes::pipeline, (wire.forward_bytes() + wire.backward_bytes()) * runs_ * l.tp,
            crosses(home, to));
    }
    double tensor = 0.0;
    for (const double bytes : traced_.tensor_bytes) tensor += bytes;
    add(&LinkBytes::tensor, tensor * runs_ * l.tp,
        crossing_hops(mesh_, Axis::kTp, cluster_.gpus_per_node));
    const double half = (l.dp - 1.0) / l.dp,
                 data_hops = crossing_hops(mesh_, Axis::kDp, cluster_.gpus_per_node);
    for (int r = 0; r < l.pp; ++r) {
      double bytes = (l.zero == 0 ? 2.0 : l.zero == 1 ? 1.0 : m_) * wide(rank_bytes_[r]);
      if (l.zero == 1 || l.zero == 2) bytes += rank_bytes_[r];
      for (size_t b = 0; l.zero == 3 && b < t_.blocks.size(); ++b) {
        if (rank_of(plan_.cut.stage_of_block[b]) == r) bytes += m_ * 2 * block_bytes_[b];
      }
      add(&LinkBytes::data, half * bytes * l.dp * l.tp, data_hops);
    }
    for_each_shared([&](double bytes, const std::vector<int>& ranks) {
      const double n = static_cast<double>(ranks.size());
      add(&LinkBytes::data, 2 * (n - 1) * wide(bytes) / (l.zero >= 1 ? l.dp : 1) * l.dp * l.tp,
          crosses(ranks.front(), ranks.back()));
    });
  }

  void totals() {
    const Layout& l = plan_.layout;
    plan_.step_s = plan_.pipeline_s + plan_.exposed_reduce_s + plan_.shared_s + plan_.publish_s;
    for (const auto& [name, seconds] : plan_.forward_work_s) plan_.step_s += seconds;
    for (size_t b = 0; b < t_.blocks.size(); ++b) {
      plan_.executed_flops += 3 * runs_ * traced_.forward_flops[b];
      if (t_.blocks[b].recompute) plan_.recomputed_flops += runs_ * traced_.forward_flops[b];
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
      bytes +=
          3 * wide(static_cast<double>(p.bytes)) * (p.split ? l.tp : 1);  // master, two moments
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
  const MeshLayout mesh_;
  const LayoutTrace& traced_;
  const Trace& t_;
  const double m_, runs_;  // microbatches of a replica, of all
  std::vector<double> own_bytes_, block_bytes_, block_forward_, rank_bytes_;
  LayoutPlan plan_;
};

std::optional<LayoutPlan> LayoutCosts::price(const Layout& layout, bool must_fit) {
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
