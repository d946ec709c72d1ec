#include "parallel/internal/layout_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace contexture::parallel {
namespace {

constexpr int kMicrobatchesAStage = 4;

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += name + ",";
  return out;
}

// Microbatches whose activations a rank holds; weight gradients that wait count as one.
std::vector<int> held(const Layout& layout) {
  std::vector<int> out;
  const int m =
      static_cast<int>(std::min<int64_t>(layout.microbatches, std::numeric_limits<int>::max()));
  for (int s = 0; s < layout.pp; ++s) {
    const int flying = layout.schedule == "gpipe" ? m : std::min(m, layout.pp - s);
    out.push_back(flying + (layout.schedule == "zb_h1" ? std::min(m, s + 1) : 0));
  }
  return out;
}

}  // namespace

double pipeline_bound_s(int p, double m, double total_s, double path_s) {
  const double path = std::min(path_s, total_s), free = total_s - path;
  double low = std::max(path, m * total_s / p), high = low + m * total_s;
  for (int i = 0; i < 60 && high - low > 1e-12 * high; ++i) {
    const double makespan = (low + high) / 2;
    // Stages without work of the path may be busy all the time; the others, in the order of the
    // path, a share 1/m of what is left.
    const double stages_left = p - free * m / makespan;
    const bool enough =
        stages_left >= 0 && makespan * (1 - std::pow(1 - 1 / m, stages_left)) >= path;
    (enough ? high : low) = makespan;
  }
  return low;
}

double crossing_hops(const MeshLayout& mesh, Axis axis, int gpus_per_node) {
  double hops = 0.0, crossing = 0.0;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const std::vector<int> ring = mesh.group(rank, {axis});
    const size_t at = std::find(ring.begin(), ring.end(), rank) - ring.begin();
    const int next = ring[(at + 1) % ring.size()];
    hops += 1.0;
    crossing += next / gpus_per_node != rank / gpus_per_node ? 1.0 : 0.0;
  }
  return crossing / hops;
}

LayoutCosts::LayoutCosts(const PlannedModel& model, const Cluster& cluster,
                         const SearchOptions& options)
    : model_(model), cluster_(cluster), options_(options) {}

int64_t LayoutCosts::inputs(const Layout& layout) const {
  const int64_t runs = layout.dp * layout.microbatches;
  return (model_.batch_size + runs - 1) / runs;
}

const Trace& LayoutCosts::whole(int64_t inputs) {
  auto known = whole_.find(inputs);
  if (known == whole_.end()) {
    known = whole_.emplace(inputs, model_.trace(inputs)).first;
    check_trace(known->second, concat("the trace of ", inputs, " inputs"));
  }
  return known->second;
}

const LayoutTrace& LayoutCosts::trace(const Layout& layout, int64_t n, bool split_backward) {
  const std::string key =
      concat(n, " ", layout.tp, " ", split_backward, " ", joined(layout.recompute));
  const auto known = traces_.find(key);
  if (known != traces_.end()) return known->second;
  return traces_
      .emplace(key, layout_trace(whole(n), {.tensor = group_along(layout, Axis::kTp),
                                            .sequence = model_.sequence,
                                            .split_backward = split_backward,
                                            .recompute = layout.recompute,
                                            .flops_per_s = flops_per_s()}))
      .first->second;
}

const std::vector<bool>& LayoutCosts::behind(const ForwardWork& work) {
  const auto known = behind_.find(work.name);
  return known != behind_.end()
             ? known->second
             : behind_.emplace(work.name, blocks_behind(whole(1), work.wires)).first->second;
}

double LayoutCosts::passes(const ForwardWork& work, const Layout& layout) {
  const int64_t runs = layout.microbatches * layout.dp;
  if (work.only_when_cut && runs == 1 && layout.pp == 1) return 0.0;
  if (work.bytes_per_step == 0.0) return work.per_step;
  for (const TraceWire& wire : whole(inputs(layout)).wires) {
    if (wire.name == work.wires.front())
      return work.bytes_per_step / (static_cast<double>(runs) * wire.forward_bytes());
  }
  return 0.0;
}

// The group of rank 0 along an axis. Where groups lie unevenly over nodes it counts as having one
// rank on each.
RankGroup LayoutCosts::group_along(const Layout& layout, Axis axis) const {
  const MeshLayout where = mesh(layout);
  const std::vector<int> ranks = where.group(0, {axis});
  const int size = static_cast<int>(ranks.size());
  RankGroup out{.nodes = size, .per_node = 1, .inside = cluster_.inside, .across = cluster_.across};
  if (!where.crosses_nodes(axis, cluster_.gpus_per_node))
    return {.nodes = 1, .per_node = size, .inside = cluster_.inside, .across = cluster_.across};
  const auto here = static_cast<int>(
      std::count_if(ranks.begin(), ranks.end(), [&](int r) { return r < cluster_.gpus_per_node; }));
  if (layout.gpus() % cluster_.gpus_per_node == 0 && size % here == 0) {
    out.nodes = size / here;
    out.per_node = here;
  }
  return out;
}

// Between pipeline ranks: the slower one where replicas differ.
std::vector<std::vector<Link>> LayoutCosts::links_between(const Layout& layout) const {
  const MeshLayout where = mesh(layout);
  std::vector<std::vector<Link>> out(layout.pp, std::vector<Link>(layout.pp));
  for (int a = 0; a < layout.pp; ++a) {
    for (int b = 0; b < layout.pp; ++b) {
      const Link* link = &cluster_.inside;
      for (int d = 0; d < layout.dp; ++d) {
        for (int t = 0; t < layout.tp; ++t) {
          const Link& here = cluster_.between(where.rank({d, a, t}), where.rank({d, b, t}));
          if (&here == &cluster_.across) link = &cluster_.across;
        }
      }
      out[a][b] = *link;
    }
  }
  return out;
}

MemoryParts LayoutCosts::states_of(double parameters, const Layout& layout) const {
  const double master = model_.weight_bytes < model_.wide_bytes ? model_.wide_bytes : 0.0,
               n = layout.dp;
  const auto kept = [&](int from_stage, double bytes) {
    return bytes * parameters / (layout.zero >= from_stage ? n : 1.0);
  };
  MemoryParts out;
  out.weights = kept(3, model_.weight_bytes);
  out.gradients = kept(2, model_.wide_bytes);
  out.optimizer = model_.offload ? 0.0 : kept(1, master + 2 * model_.wide_bytes);
  return out;
}

LayoutCosts::Bounds LayoutCosts::bounds(const Layout& layout) {
  const LayoutTrace& traced = trace(layout);
  const Trace& t = traced.trace;
  const auto m = static_cast<double>(layout.microbatches);
  const double p = layout.pp, n = layout.dp;
  double bytes = 0.0, work = 0.0, longest = 0.0, activations = 0.0;
  for (const TraceParameter& parameter : t.parameters)
    bytes += static_cast<double>(parameter.bytes);
  for (const TraceBlock& block : t.blocks) {
    work += step_s(block);
    longest = std::max(longest, step_s(block));
    activations += static_cast<double>(block.activation_bytes);
  }
  const double parameters = bytes / model_.weight_bytes;
  RankGroup replicas = group_along(layout, Axis::kDp);
  replicas.inside.latency_s = replicas.across.latency_s =
      0.0;  // so that many small collectives take no less than one of all bytes
  if (layout.zero >= 2) work += reduce_scatter_s(replicas, model_.wide_bytes * parameters);
  if (layout.zero == 3) work += 2 * all_gather_s(replicas, bytes);
  Bounds out;
  out.step_s =
      std::max(m * longest, layout.chunks == 1 ? pipeline_bound_s(layout.pp, m, work, traced.path_s)
                                               : m * work / p);
  if (layout.zero == 1 || layout.zero == 2) out.step_s += all_gather_s(replicas, bytes / p);
  for (const ForwardWork& extra : model_.forward_work) {
    const double passes_made = passes(extra, layout);
    for (size_t b = 0; b < t.blocks.size(); ++b) {
      if (behind(extra)[b]) out.step_s += passes_made * m * t.blocks[b].forward_s / p;
    }
  }
  out.step_s += model_.search_s;
  const double in_flight = layout.schedule == "gpipe" ? m : 1.0;
  // Some rank has its share of the activations in flight before it has gradients, and all its states in the end.
  const MemoryParts states = states_of(parameters, layout);
  out.memory_bytes = std::max(states.total(), states.total() - states.gradients + in_flight * activations) / p +
                     model_.input_bytes * static_cast<double>(model_.batch_size) / n;
  return out;
}

PartitionOptions LayoutCosts::partition_options(const Layout& layout) const {
  PartitionOptions options;
  options.partitioner = options_.partitioner;
  options.num_devices = layout.stages();
  options.explain = false;
  const auto between = links_between(layout);
  for (int s = 0; s < layout.stages(); ++s)
    options.ingress.push_back(between[std::max(0, s - 1) % layout.pp][s % layout.pp]);
  return options;
}

// The partitioner's stages. Layouts that differ in what leaves the balance of the blocks as it is
// share one cut: it is made for kMicrobatchesAStage microbatches of the smallest whole size, with
// nothing recomputed where all would be.
const LayoutCosts::Cut& LayoutCosts::fastest_cut(const Layout& layout) {
  Layout like = layout;
  if (like.recompute == std::vector<std::string>{"all"}) like.recompute.clear();
  const int64_t n =
      inputs(layout) % model_.whole_inputs == 0 ? model_.whole_inputs : inputs(layout);
  const std::string key =
      concat(n, " ", layout.pp, " ", layout.tp, " ", layout.chunks, " ", joined(like.recompute));
  if (const auto known = cuts_.find(key); known != cuts_.end()) return known->second;
  Cut cut;
  PartitionOptions options = partition_options(layout);
  options.microbatches = kMicrobatchesAStage * layout.stages();
  Plan plan = partition(trace(like, n, /*split_backward=*/false).trace, options);
  if (static_cast<int>(plan.device_of_stage.size()) ==
      layout.stages()) {  // `tree` may come back to a device
    cut = {std::move(plan.stage_of_block), std::move(plan.remark)};
  }
  return cuts_.emplace(key, std::move(cut)).first->second;
}

// A cut's costs on devices that are pipeline ranks. caps: bytes of states and activations that the
// stages may take, [rank]; empty: none.
std::optional<Plan> LayoutCosts::cut(const Layout& layout, const std::vector<double>& caps) {
  const Trace& t = trace(layout, inputs(layout), /*split_backward=*/false).trace;
  Cut found{std::vector<int>(t.blocks.size(), 0), ""};
  if (layout.stages() > 1 && caps.empty()) {
    found = fastest_cut(layout);
  } else if (layout.stages() > 1) {
    PartitionOptions options = partition_options(layout);
    options.partitioner = Partitioner::kLinear;  // of the blocks' own order: hundreds of such cuts are made in a search
    options.microbatches = static_cast<int>(layout.microbatches);
    options.memory_caps = caps;
    options.in_flight = held(layout);
    options.state_factor = states_of(1.0, layout).total() / model_.weight_bytes;
    try {
      found.stage_of_block = partition(t, options).stage_of_block;
    } catch (const UserError&) {
      return std::nullopt;  // nothing keeps the caps
    }
  }
  if (found.stage_of_block.empty()) return std::nullopt;
  PartitionOptions options;
  options.num_devices = layout.pp;
  options.between = links_between(layout);
  std::vector<int> device_of;
  for (int s = 0; s < layout.stages(); ++s) device_of.push_back(s % layout.pp);
  Plan plan = evaluate(t, found.stage_of_block, device_of, options);
  plan.partitioner = options_.partitioner;
  plan.remark = std::move(found.remark);
  return plan;
}

}  // namespace contexture::parallel
