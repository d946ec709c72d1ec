// advice() of parallel/plan_report.h: each function writes one sentence or two, or nothing.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/format.h"
#include "parallel/plan_report.h"

namespace contexture::parallel {
namespace {

class Adviser {
 public:
  Adviser(Planner& planner, const std::vector<LayoutPlan>& plans, const AdviceFacts& facts)
      : planner_(planner),
        cluster_(planner.cluster()),
        best_(plans.front()),
        facts_(facts),
        gpus_(cluster_.num_gpus()) {}

  std::vector<std::string> all() {
    winner();
    plain_data_parallelism();
    memory();
    variants();
    mixed_precision();
    pipeline();
    microbatches();
    slices();
    assembly();
    tensor();
    placement();
    storage();
    reference();
    logarithm();
    spot();
    return std::move(out_);
  }

 private:
  template <typename... Parts>
  void say(const char* pattern, const Parts&... parts) {
    out_.push_back(format(pattern, parts...));
  }

  std::optional<LayoutPlan> best_with(FixedLayout fixed) {
    try {
      std::vector<LayoutPlan> found = planner_.search(fixed, 1);
      if (!found.empty()) return std::move(found.front());
    } catch (const UsageError&) {  // no such layout
    }
    return std::nullopt;
  }

  // The best layout that uses an axis, among all meshes.
  std::optional<LayoutPlan> best_of_axis(int FixedLayout::*axis) {
    std::optional<LayoutPlan> best;
    for (int size = 2; size <= gpus_; ++size) {
      if (gpus_ % size != 0) continue;
      FixedLayout fixed;
      fixed.*axis = size;
      std::optional<LayoutPlan> found = best_with(fixed);
      if (found && (!best || found->step_s < best->step_s)) best = std::move(found);
    }
    return best;
  }

  static std::string share_of(double part, double whole) {
    return format("{:.0f} %", 100.0 * part / whole);
  }

  void winner() {
    if (gpus_ == 1) return;
    const FixedLayout& f = facts_.fixed;
    if (f.dp != 0 || f.pp != 0 || f.tp != 0) {
      const std::optional<LayoutPlan> free = best_with({});
      say("With what is fixed, {} is best: {:.3g} s a step. {}", in_words(best_.layout),
          best_.step_s,
          free ? format("Left free, {} would take {:.3g} s.", in_words(free->layout), free->step_s)
               : std::string("Left free, nothing else is better."));
      return;
    }
    const std::optional<LayoutPlan> pipeline = best_of_axis(&FixedLayout::pp),
                                    tensor = best_of_axis(&FixedLayout::tp);
    std::string against;
    if (pipeline && best_.layout.pp == 1) {
      against +=
          format(" The best with a pipeline ({}) takes {:.3g} s, {} of its schedule idle.",
                 in_words(pipeline->layout), pipeline->step_s, share_of(pipeline->idle, 1.0));
    }
    if (tensor && best_.layout.tp == 1) {
      against += format(
          " The best with tensor parallelism ({}) takes {:.3g} s, of which {:.3g} s are its "
          "all-reduces.",
          in_words(tensor->layout), tensor->step_s, tensor->tensor_s);
    }
    say("{} wins: {:.3g} s a step, {} of {} usable.{}", in_words(best_.layout), best_.step_s,
        bytes_in_words(best_.memory_bytes), bytes_in_words(planner_.usable_bytes()), against);
  }

  void plain_data_parallelism() {
    if (gpus_ == 1) return;
    FixedLayout plain;
    plain.pp = plain.tp = 1;
    for (int zero = 0; zero <= 3; ++zero) {
      plain.zero = zero;
      const std::optional<LayoutPlan> found = best_with(plain);
      if (!found) continue;
      const double ratio = found->step_s / best_.step_s;
      say("Plain data parallelism fits with ZeRO {}: {:.3g} s a step, {:.2f} times this plan's, {} "
          "a GPU. It needs no cut and no tuning, so {}.",
          zero, found->step_s, ratio, bytes_in_words(found->memory_bytes),
          ratio < 1.05  ? "take it"
          : ratio < 1.3 ? "take it unless that time matters"
                        : "start with it, and move to this plan for the long run");
      return;
    }
    try {
      plain.zero = -1;
      const LayoutPlan least = planner_.leanest(plain);
      say("Plain data parallelism does not fit: even {} needs {} a GPU, and {} are usable.",
          in_words(least.layout), bytes_in_words(least.memory_bytes),
          bytes_in_words(planner_.usable_bytes()));
    } catch (const UsageError& error) {
      say("Plain data parallelism is out: {}", std::string(error.what()));
    }
  }

  void memory() {
    const MemoryParts& full = fullest();
    const double states = full.states();
    const bool states_dominate = states > full.activations + full.working;
    std::string zero;
    if (best_.layout.dp > 1) {
      for (int stage = best_.layout.zero + 1; stage <= 3; ++stage) {
        Layout more = best_.layout;
        more.zero = stage;
        const LayoutPlan plan = planner_.price(more);
        const auto at = std::max_element(
            plan.memory.begin(), plan.memory.end(),
            [](const MemoryParts& a, const MemoryParts& b) { return a.states() < b.states(); });
        zero += format("{} ZeRO {}: states {}, step {:.3g} s", zero.empty() ? "" : ";", stage,
                       bytes_in_words(at->states()), plan.step_s);
      }
    }
    say("On the fullest GPU {} are states (weights, gradients, optimizer) and {} activations: {} "
        "dominate. ZeRO shards states over replicas, not activations; more microbatches or "
        "recompute shrink activations, not states.{}{}",
        bytes_in_words(states), bytes_in_words(full.activations + full.working),
        states_dominate ? "states" : "activations", zero.empty() ? "" : " With",
        zero.empty() ? std::string() : zero + ".");
  }

  void variants() {
    std::string text;
    for (const Variant& v : facts_.variants) {
      text += format("{} {} frees {} (activations {} to {})", text.empty() ? "" : ";", v.change,
                     bytes_in_words(std::max(0.0, best_.memory_bytes - v.memory_bytes)),
                     bytes_in_words(fullest().activations), bytes_in_words(v.activation_bytes));
    }
    if (!text.empty())
      say("Of the {} on the fullest GPU,{}.", bytes_in_words(best_.memory_bytes), text);
  }

  void mixed_precision() {
    const auto fp32 = cluster_.peak_flops_per_s.find("fp32"),
               bf16 = cluster_.peak_flops_per_s.find("bf16");
    if (planner_.model().dtype == "bf16") {
      if (fp32 == cluster_.peak_flops_per_s.end()) return;
      say("bf16 multiplies at {:.0f} TFLOP/s where fp32 reaches {:.3g}. It halves activations and "
          "wires, not states: weights 2 bytes, fp32 gradients 4, masters 4 and moments 8 are 18 a "
          "parameter, against 16 in fp32.",
          cluster_.peak("bf16") / 1e12, fp32->second / 1e12);
    } else if (bf16 != cluster_.peak_flops_per_s.end()) {
      say("train.precision=bf16 would multiply at {:.0f} TFLOP/s instead of {:.3g}, and halve "
          "activations ({} here) and wires; states grow from 16 to 18 bytes a parameter.",
          bf16->second / 1e12, cluster_.peak(planner_.model().dtype) / 1e12,
          bytes_in_words(fullest().activations));
    }
  }

  void pipeline() {
    const Layout& l = best_.layout;
    if (l.pp == 1) {
      say("A pipeline pays when states do not fit a GPU even in shares, or when gradients over "
          "replicas do not hide behind backward: here {:.3g} of {:.3g} s do not.",
          best_.exposed_reduce_s + best_.publish_s, best_.step_s);
      return;
    }
    const double half = (l.pp / 2 - 1.0) / (static_cast<double>(l.microbatches) + l.pp / 2 - 1.0);
    say("Keep the pipeline as short as memory allows: {} ranks and {} microbatches idle for {} ({} "
        "in theory with equal stages under 1f1b; {} with {} ranks). {}",
        l.pp, l.microbatches, share_of(best_.idle, 1.0),
        share_of(l.pp - 1.0, static_cast<double>(l.microbatches) + l.pp - 1.0), share_of(half, 1.0),
        l.pp / 2, best_.remark);
  }

  void microbatches() {
    const Layout& l = best_.layout;
    if (l.pp == 1) return;
    std::string tried;
    for (const int64_t m : {l.microbatches / 2, 2 * l.microbatches}) {
      Layout other = l;
      other.microbatches = m;
      if (m < 1 || l.dp * m > planner_.model().batch_size || (l.chunks > 1 && m % l.pp != 0))
        continue;
      const LayoutPlan plan = planner_.price(other);
      tried += format("; {} would take {:.3g} s and {}", m, plan.step_s,
                      bytes_in_words(plan.memory_bytes));
    }
    say("{} microbatches for {} pipeline ranks take {:.3g} s{}. At least four a rank is a good "
        "rule; inputs of one group (data.group_size) share documents only within a microbatch, so "
        "do not cut below it. `contexture tune microbatches` measures it.",
        l.microbatches, l.pp, best_.step_s, tried);
  }

  // The best plan with one of its settings as it would be by default.
  template <typename Value>
  double without(Value Layout::*setting, const Value& value) {
    Layout other = best_.layout;
    other.*setting = value;
    return planner_.price(other).step_s;
  }

  void slices() {
    if (best_.layout.token_slices == 1) return;
    say("The decoder's rows go through the pipeline in {} token slices: {:.3g} s a step, {:.3g} s "
        "without. It counts {:.0f} us for each further slice of a block forward and twice that "
        "back, an assumption: compare both in a short run.",
        best_.slice_rows.size(), best_.step_s, without(&Layout::token_slices, int64_t{1}),
        1e6 * planner_.model().slice_s);
  }

  void assembly() {
    if (best_.layout.assembly != "grouped") return;
    say("data.assembly=grouped takes {:.3g} s a step, arrival {:.3g}, if inputs that read the same "
        "documents can all meet; encoded_documents in metrics.jsonl says how far they do.",
        best_.step_s, without(&Layout::assembly, std::string("arrival")));
  }

  void tensor() {
    const Layout& l = best_.layout;
    const bool crosses = l.tp > cluster_.gpus_per_node;
    if (l.tp == 1) {
      say("Tensor parallelism pays when a layer does not fit a GPU, or when a batch is too small "
          "to give every replica an input; it sums activations over its ranks four times a layer "
          "and microbatch.");
    } else {
      say("Tensor parallelism over {} GPUs {}: its all-reduces take {:.3g} s of the step. Keep "
          "parallel.tp within a node's {} GPUs.",
          l.tp, crosses ? "crosses nodes" : "stays inside a node", best_.tensor_s,
          cluster_.gpus_per_node);
    }
  }

  void placement() {
    if (cluster_.nodes == 1) return;
    Cluster slow = cluster_;
    slow.across.s_per_byte *= 10;
    slow.across.latency_s *= 10;
    const LayoutPlan plan = Planner(planner_.model(), slow).price(best_.layout);
    say("Keep the nodes in one place: a step sends {} across nodes and {} inside them; on links a "
        "tenth as fast it would take {:.3g} s instead of {:.3g}.",
        bytes_in_words(best_.across.total()), bytes_in_words(best_.inside.total()), plan.step_s,
        best_.step_s);
    const std::string& usual = planner_.model().order;
    if (best_.layout.order != usual)
      say("parallel.order={} (the last axis has neighbouring ranks) sends {} of all bytes across "
          "nodes; "
          "{} would take {:.3g} s a step.",
          best_.layout.order,
          share_of(best_.across.total(), best_.across.total() + best_.inside.total()), usual,
          without(&Layout::order, usual));
  }

  void storage() {
    if (facts_.files_per_sample <= 0) return;
    const double files = facts_.files_per_sample * best_.samples_per_s,
                 reach = cluster_.storage_files_per_s * cluster_.nodes;
    std::string known =
        cluster_.storage_files_per_s > 0
            ? format(" Nodes open {:.0f} files a second each, {:.0f} together: {}.",
                     cluster_.storage_files_per_s, reach, reach >= files ? "enough" : "too few")
            : std::string(" `contexture bench storage` says what yours opens.");
    say("As single files, inputs and their documents' pictures would be {:.0f} opened a second. "
        "Put them in tar shards (contexture data pack) on a parallel file system, or copy shards "
        "to the nodes.{}",
        files, known);
  }

  void reference() {
    const Layout& l = best_.layout;
    const bool asked = facts_.network_share >= 0 || facts_.round_ratio > 0;
    if (l.tp == 1 && l.pp == 1 && !asked) return;
    const double network =
        best_.exposed_reduce_s + best_.publish_s + best_.shared_s + best_.tensor_s;
    const double share =
        facts_.network_share >= 0 ? facts_.network_share : std::min(1.0, network / best_.step_s);
    const std::string own =
        facts_.round_ratio > 0
            ? format("{:.4f} with r = {:.3g}", reference_cost(share, facts_.round_ratio),
                     facts_.round_ratio)
            : format("{:.4f} and {:.4f}", reference_cost(share, 4.0), reference_cost(share, 3.0));
    say("The reference formula (1 - w) + w / r puts a mix of tensor and pipeline parallelism at "
        "{:.4g} of pure tensor parallelism's time for its assumed network share w = 0.5 and r = "
        "log2 16 = 4, and at {:.4g} for r = log2 8 = 3. With w = {:.3f}, {}, it is {}.",
        reference_cost(0.5, 4.0), reference_cost(0.5, 3.0), share,
        facts_.network_share >= 0 ? "as given" : "as predicted here", own);
  }

  void logarithm() {
    if (gpus_ == 1) return;
    const Layout& l = best_.layout;
    if (l.dp == 1 && l.tp == 1) return;
    const bool data = l.dp > 1;
    double bytes = 0.0;
    for (const StageCost& stage : best_.cut.stages)
      bytes = std::max(bytes, stage.parameter_bytes / planner_.model().weight_bytes *
                                  planner_.model().wide_bytes);
    if (!data) {
      const Trace trace = planner_.model().trace(
          (planner_.model().batch_size + l.dp * l.microbatches - 1) / (l.dp * l.microbatches));
      bytes = 0.0;
      for (const TraceBlock& block : trace.blocks) {
        if (block.forward_sums > 0)
          bytes = std::max(bytes, static_cast<double>(block.forward_sum_bytes) /
                                      static_cast<double>(block.forward_sums));
      }
    }
    out_.push_back(
        (data ? "Gradients, over the slower links in one group: " : "Activations of a layer: ") +
        logarithmic_statement(data ? l.dp : l.tp, bytes,
                              data && cluster_.nodes > 1 ? cluster_.across : cluster_.inside));
  }

  void spot() {
    if (!best_.spot) return;
    const SpotPlan& s = *best_.spot;
    if (s.checkpoint_every_s == 0.0) return;
    say("On spot machines save every {:.0f} s (a save takes {:.1f} s; Young's rule says {:.0f} s): "
        "{:.1f} interruptions are expected in {} steps, saving and lost work take {:.1f} %, and "
        "1,000 samples cost ${:.4g}.",
        s.checkpoint_every_s, s.checkpoint_s, s.young_s, s.interruptions, planner_.model().steps,
        100 * s.overhead, s.usd_per_1k_samples);
  }

  const MemoryParts& fullest() const {
    return *std::max_element(
        best_.memory.begin(), best_.memory.end(),
        [](const MemoryParts& a, const MemoryParts& b) { return a.total() < b.total(); });
  }

  Planner& planner_;
  const Cluster& cluster_;
  const LayoutPlan& best_;
  const AdviceFacts& facts_;
  const int gpus_;
  std::vector<std::string> out_;
};

}  // namespace

std::vector<std::string> advice(Planner& planner, const std::vector<LayoutPlan>& plans,
                                const AdviceFacts& facts) {
  CONTEXTURE_INVARIANT(!plans.empty(), "advice needs a plan");
  return Adviser(planner, plans, facts).all();
}

}  // namespace contexture::parallel
