#include "parallel/partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "core/did_you_mean.h"
#include "core/error.h"
#include "core/format.h"
#include "parallel/chain_planners.h"
#include "parallel/internal/cut_graph.h"
#include "parallel/internal/exact.h"
#include "parallel/internal/improve.h"
#include "parallel/internal/tree_partition.h"

namespace contexture::parallel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNoGain =
    0.01;  // share of the objective below which a cut is not worth calling better

const std::vector<std::pair<std::string, Partitioner>>& partitioner_names() {
  static const std::vector<std::pair<std::string, Partitioner>> names = {
      {"exact", Partitioner::kExact},
      {"linear", Partitioner::kLinear},
      {"tree", Partitioner::kTree},
      {"pipedream", Partitioner::kPipedream},
      {"parameters", Partitioner::kParameters},
      {"uniform", Partitioner::kUniform},
      {"blind", Partitioner::kBlind}};
  return names;
}

std::vector<int> identity(int n) {
  std::vector<int> values(n);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

std::vector<int> stages_from_cuts(const std::vector<int>& cuts) {
  std::vector<int> stage;
  for (size_t s = 0; s + 1 < cuts.size(); ++s)
    stage.insert(stage.end(), cuts[s + 1] - cuts[s], static_cast<int>(s));
  return stage;
}

Plan linear_plan(const Trace& trace, const std::vector<int>& cuts,
                 const PartitionOptions& options) {
  return evaluate(trace, stages_from_cuts(cuts), identity(options.num_devices), options);
}

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return format("{:.2f} GB", bytes / 1e9);
  if (bytes >= 1e6) return format("{:.2f} MB", bytes / 1e6);
  return format("{:.0f} bytes", bytes);
}

double largest_memory(const Plan& plan) {
  return *std::max_element(plan.device_memory.begin(), plan.device_memory.end());
}

// One problem and the sets of blocks that may be the first stages: all downsets, those of a merged
// graph, or the prefixes.
class Problem {
 public:
  Problem(const Trace& trace, const PartitionOptions& options)
      : trace_(trace),
        options_(options),
        costs_(make_cut_costs(options)),
        graph_(make_cut_graph(trace, options)),
        prefixes_(Downsets::prefixes(graph_)) {}

  Plan solve() {
    options_.optimize == Optimize::kSpeed ? solve_speed() : solve_memory();
    if (!best_) nothing_fits();
    if (!options_.between.empty() && options_.num_devices > 1) improve_on_links();
    finish();
    return std::move(*best_);
  }

 private:
  const Downsets& downsets() {
    if (options_.partitioner == Partitioner::kLinear) return prefixes_;
    if (!all_) {
      all_.emplace(graph_, options_.max_downsets);
      merged_ = !all_->complete();
      if (merged_) {
        graph_ = coarsen(graph_, options_.num_devices, options_.max_downsets);
        all_.emplace(graph_, options_.max_downsets);
        CONTEXTURE_REQUIRE(all_->complete(), "even merged to ", graph_.blocks.size(),
                           " blocks, the model has more than ", options_.max_downsets,
                           " ways to begin. Raise max_downsets, or use partitioner=linear");
      }
    }
    return *all_;
  }

  std::optional<Plan> run(const CutCosts& costs, const Downsets& downsets, double below,
                          bool any = false) {
    const SearchResult result = search(graph_, costs, downsets, below, any);
    if (!result.found) return std::nullopt;
    return evaluate(trace_, stages_in_trace(graph_, result.stage_of_block, trace_.blocks.size()),
                    identity(costs.num_stages), options_);
  }

  void solve_speed() {
    // The best linear cut comes first: what it costs bounds the search, and it wins ties.
    best_ = linear_ =
        run(costs_, prefixes_,
            options_.time_bound < kInfinity ? options_.time_bound * (1 + 1e-9) : kInfinity);
    if (options_.partitioner == Partitioner::kLinear) return;
    const Downsets& all = downsets();
    if (auto better = run(costs_, all, best_ ? best_->objective : options_.time_bound))
      best_ = std::move(better);
    if (merged_ && best_) best_ = improve(trace_, *best_, ingress_only());
  }

  // No plan costs less: all compute, none of the transfers, spread evenly as far as the longest
  // block allows.
  double fluid_bound() const {
    double total = 0.0, longest = 0.0;
    for (const TraceBlock& block : trace_.blocks)
      total += step_s(block), longest = std::max(longest, step_s(block));
    return costs_.sum_weight * total +
           costs_.max_weight * std::max(longest, total / costs_.num_stages);
  }

  // No device may take more than its cap and so many bytes, what it holds anyway included.
  void limit(CutCosts& costs, double bytes) const {
    for (int s = 0; s < costs.num_stages; ++s)
      costs.caps[s] = std::min(costs_.caps[s], bytes - costs_.held[s]);
  }

  void solve_memory() {
    const Downsets& all = downsets();
    const bool any = options_.time_bound == kInfinity;
    const double below = any ? kInfinity : options_.time_bound * (1 + 1e-9);
    CutCosts costs = costs_;
    // Most searches need no stage larger than the blind cut's, and are quick when told so.
    const double blind = largest_memory(blind_plan(trace_, options_));
    limit(costs, blind);
    best_ = run(costs, all, below, any);
    if (!best_) best_ = run(costs_, all, below, any);
    if (!best_) return;
    double low = 0.0;
    for (double high = largest_memory(*best_); high - low > 1.0;) {  // to the byte
      const double middle = std::floor((low + high) / 2);
      limit(costs, middle);
      if (auto smaller = run(costs, all, below, any)) {
        best_ = std::move(smaller);
        high = largest_memory(*best_);
      } else {
        low = middle;
      }
    }
    // The fastest of those that need no more.
    limit(costs, largest_memory(*best_));
    if (auto faster = run(costs, all, best_->objective)) best_ = std::move(faster);
  }

  PartitionOptions ingress_only() const {
    PartitionOptions options = options_;
    options.between.clear();
    options.ingress = costs_.ingress;
    return options;
  }

  // With other links than into each device, the search's answer is a start and its objective a
  // bound.
  void improve_on_links() {
    bound_ =
        evaluate(trace_, best_->stage_of_block, best_->device_of_stage, ingress_only()).objective;
    std::vector<Plan> starts = {*best_, blind_plan(trace_, options_)};
    if (linear_) starts.push_back(*linear_);
    PartitionOptions guess = ingress_only();
    guess.time_bound = kInfinity;
    for (const bool from_all :
         {true, false}) {  // the mean link into a device, or the one from the device before it
      for (int to = 0; to < costs_.num_stages; ++to)
        guess.ingress[to] =
            from_all ? mean_link_into(to) : options_.between[std::max(0, to - 1)][to];
      starts.push_back(partition(trace_, guess));
    }
    best_.reset();
    for (const Plan& start : starts) {
      Plan plan = improve(trace_, start, options_);
      if (plan.fits && (!best_ || plan.objective < best_->objective)) best_ = std::move(plan);
    }
  }

  Link mean_link_into(int to) const {
    Link mean;
    for (int from = 0; from < costs_.num_stages; ++from) {
      if (from == to) continue;
      mean.latency_s += options_.between[from][to].latency_s / (costs_.num_stages - 1);
      mean.s_per_byte += options_.between[from][to].s_per_byte / (costs_.num_stages - 1);
    }
    return mean;
  }

  void finish() {
    Plan& plan = *best_;
    plan.partitioner = options_.partitioner;
    const bool exact = options_.partitioner == Partitioner::kExact && !merged_;
    plan.num_downsets = downsets().size();
    plan.lower_bound = exact && options_.optimize == Optimize::kSpeed
                           ? bound_.value_or(plan.objective)
                           : std::min(fluid_bound(), plan.objective);
    plan.is_exact = exact && plan.objective <= plan.lower_bound * (1 + 1e-12) + 1e-300;
    if (options_.optimize == Optimize::kMemory) plan.is_exact = exact;
    if (options_.optimize == Optimize::kSpeed) compare_with_blind();
    if (merged_) {
      plan.remark += format(
          " A bound: there are more than {} ways to begin, so equal blocks were merged; no plan is "
          "below {:.6g}.",
          options_.max_downsets, plan.lower_bound);
    }
  }

  void compare_with_blind() {
    Plan& plan = *best_;
    const Plan blind = blind_plan(trace_, options_);
    plan.blind_objective = blind.objective;
    plan.blind_forward_bytes = blind.forward_bytes;
    if (!blind.fits) {
      plan.remark = "The context-blind cut does not fit.";
      return;
    }
    const double gain = blind.objective > 0 ? 1 - plan.objective / blind.objective : 0.0;
    plan.no_gain = gain < kNoGain;
    plan.remark = plan.no_gain
                      ? format(
                            "No gain: knowing the contexts saves {:.2f} % over a cut that only "
                            "balances time ({:.6g} against {:.6g}).",
                            100 * gain, plan.objective, blind.objective)
                      : format(
                            "{:.1f} % below a cut that only balances time ({:.6g} against {:.6g}), "
                            "with {} between stages against {}.",
                            100 * gain, plan.objective, blind.objective,
                            bytes_text(plan.forward_bytes), bytes_text(blind.forward_bytes));
  }

  [[noreturn]] void nothing_fits() {
    CONTEXTURE_REQUIRE(options_.explain, "no cut into ", costs_.num_stages, " stages fits");
    const bool capped = std::any_of(costs_.caps.begin(), costs_.caps.end(),
                                    [](double cap) { return cap < kInfinity; });
    PartitionOptions free = options_;
    free.memory_caps.clear();
    free.time_bound = kInfinity;
    if (options_.time_bound < kInfinity) {
      PartitionOptions unbound = options_;
      unbound.optimize = Optimize::kSpeed;
      unbound.time_bound = kInfinity;
      const Plan fastest = partition(trace_, unbound);  // throws itself when the caps are to blame
      throw UserError(
          format("no cut into {} stages keeps the time bound {:.6g}: the fastest takes {:.6g}. "
                 "Raise the bound or add devices.",
                 costs_.num_stages, options_.time_bound, fastest.objective));
    }
    CONTEXTURE_REQUIRE(capped, "no cut into ", costs_.num_stages,
                       " stages keeps together all that must stay together. ",
                       "Allow replicas, or ask for fewer stages");
    free.optimize = Optimize::kMemory;
    const double needed = largest_memory(partition(trace_, free));
    const auto [least, most] = std::minmax_element(costs_.caps.begin(), costs_.caps.end());
    std::string message = format(
        "no cut into {} stages keeps {} a device.", costs_.num_stages,
        bytes_text(*std::min_element(options_.memory_caps.begin(), options_.memory_caps.end())));
    if (*least == *most && options_.in_flight.empty()) message += more_stages(*least);
    throw UserError(message + format(" With {} stages a device needs {}.", costs_.num_stages,
                                     bytes_text(needed)));
  }

  // What another number of stages would do under the same cap.
  std::string more_stages(double cap) {
    const int most = static_cast<int>(graph_.blocks.size());
    const std::vector<bool> feasible =
        feasible_stages(graph_, downsets(), cap, options_.microbatches, most);
    const auto found = std::find(feasible.begin(), feasible.end(), true);
    if (found != feasible.end()) return format(" {} stages would.", found - feasible.begin());
    const CutBlock* largest = &graph_.blocks.front();
    const auto alone = [](const CutBlock& block) {
      return block.fixed_bytes + block.activation_bytes;
    };
    for (const CutBlock& block : graph_.blocks) {
      if (alone(block) > alone(*largest)) largest = &block;
    }
    return format(" No number of stages would: the largest block, {}, needs {} alone.",
                  trace_.blocks[largest->members.front()].name, bytes_text(alone(*largest)));
  }

  const Trace& trace_;
  const PartitionOptions& options_;
  const CutCosts costs_;
  CutGraph graph_;
  const Downsets prefixes_;
  std::optional<Downsets> all_;
  bool merged_ = false;
  std::optional<double> bound_;
  std::optional<Plan> linear_, best_;
};

// Stages from a device for each block: a stage for each run of blocks on one device.
Plan plan_of_devices(const Trace& trace, const std::vector<int>& device,
                     const PartitionOptions& options) {
  std::vector<int> stage, device_of_stage;
  for (const int d : device) {
    if (device_of_stage.empty() || device_of_stage.back() != d) device_of_stage.push_back(d);
    stage.push_back(static_cast<int>(device_of_stage.size()) - 1);
  }
  return evaluate(trace, stage, device_of_stage, options);
}

Plan pipedream_plan(const Trace& trace, const PartitionOptions& options) {
  std::vector<ChainLayer> layers;
  for (const TraceBlock& block : trace.blocks) layers.push_back({.compute_s = step_s(block)});
  // What it takes for a layer's activations: every edge across the cut behind it, whoever else
  // reads the same wire.
  for (const TraceWire& wire : trace.wires) {
    for (const int reader : wire.readers) {
      for (int i = wire.producer; i < reader; ++i)
        layers[i].activation_bytes += static_cast<double>(wire.bytes);
    }
  }
  double slowest_link = 0.0;
  for (const Link& link : make_cut_costs(options).ingress)
    slowest_link = std::max(slowest_link, link.s_per_byte);
  const ChainPlan chain =
      pipedream(layers, options.num_devices, slowest_link > 0 ? 1 / slowest_link : kInfinity,
                /*replicate=*/false);
  std::vector<int> cuts = {0};
  for (const ReplicatedStage& stage : chain.stages) cuts.push_back(stage.end);
  return linear_plan(trace, cuts, options);
}

std::vector<double> own_parameter_bytes(const Trace& trace) {
  std::vector<double> bytes;
  std::vector<bool> counted(trace.parameters.size(), false);
  for (const TraceBlock& block : trace.blocks) {
    bytes.push_back(0.0);
    for (const int p : block.parameters) {
      if (!counted[p]) bytes.back() += static_cast<double>(trace.parameters[p].bytes);
      counted[p] = true;
    }
  }
  return bytes;
}

Plan uniform_plan(const Trace& trace, const PartitionOptions& options) {
  const int n = static_cast<int>(trace.blocks.size()), p = options.num_devices;
  std::vector<int> cuts = {0};
  for (int s = 0; s < p; ++s) cuts.push_back(cuts.back() + n / p + (s < n % p ? 1 : 0));
  return linear_plan(trace, cuts, options);
}

}  // namespace

Partitioner parse_partitioner(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& [text, partitioner] : partitioner_names()) {
    if (text == name) return partitioner;
    known.push_back(text);
  }
  throw UsageError(
      concat("parallel.partitioner=", name,
             " must be one of exact, linear, tree, pipedream, parameters, uniform, blind.",
             did_you_mean_hint(name, known)));
}

std::string to_string(Partitioner partitioner) {
  for (const auto& [text, value] : partitioner_names()) {
    if (value == partitioner) return text;
  }
  throw_bug(__FILE__, __LINE__, "partitioner", "has no name");
}

Optimize parse_optimize(const std::string& name) {
  CONTEXTURE_USAGE_REQUIRE(name == "speed" || name == "memory", "parallel.optimize=", name,
                           " is not known. Use speed or memory.");
  return name == "speed" ? Optimize::kSpeed : Optimize::kMemory;
}

SharedRule parse_shared_rule(const std::string& name) {
  if (name == "replicate") return SharedRule::kReplicated;
  CONTEXTURE_USAGE_REQUIRE(name == "cheapest" || name == "colocate", "parallel.shared=", name,
                           " is not known. Use cheapest, replicate or colocate.");
  return name == "cheapest" ? SharedRule::kCheapest : SharedRule::kTogether;
}

Plan blind_plan(const Trace& trace, const PartitionOptions& options) {
  std::vector<double> times;
  for (const TraceBlock& block : trace.blocks) times.push_back(step_s(block));
  return linear_plan(trace, balance_chain(times, options.num_devices), options);
}

Plan partition(const Trace& trace, const PartitionOptions& options) {
  const int n = static_cast<int>(trace.blocks.size());
  CONTEXTURE_USAGE_REQUIRE(n >= options.num_devices, "a model of ", n, " blocks cannot fill ",
                           options.num_devices, " stages. Ask for at most ", n);
  CONTEXTURE_USAGE_REQUIRE(
      options.between.empty() || options.optimize == Optimize::kSpeed,
      "optimize=memory knows links into a device only. Give ingress instead of between");
  CONTEXTURE_USAGE_REQUIRE(options.max_downsets > n,
                           "max_downsets must exceed the number of blocks, ", n);
  const double memory_weight = options.memory_weight >= 0              ? options.memory_weight
                               : options.optimize == Optimize::kMemory ? 0.8
                                                                       : 0.2;
  Plan plan;
  switch (options.partitioner) {
    case Partitioner::kExact:
    case Partitioner::kLinear:
      return Problem(trace, options).solve();
    case Partitioner::kTree:
      plan = plan_of_devices(
          trace, tree_devices(trace, options.num_devices, memory_weight, options.state_factor),
          options);
      break;
    case Partitioner::kPipedream:
      plan = pipedream_plan(trace, options);
      break;
    case Partitioner::kParameters:
      plan = linear_plan(trace, balance_chain(own_parameter_bytes(trace), options.num_devices),
                         options);
      break;
    case Partitioner::kUniform:
      plan = uniform_plan(trace, options);
      break;
    case Partitioner::kBlind:
      plan = blind_plan(trace, options);
      break;
  }
  plan.partitioner = options.partitioner;
  return plan;
}

}  // namespace contexture::parallel
