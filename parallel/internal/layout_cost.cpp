#include "parallel/internal/layout_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "parallel/internal/sliced_step.h"

namespace contexture::parallel {
namespace {

constexpr int kMicrobatchesAStage = 4;
constexpr double kAssumedHost = 25e9;  // bytes a second each way of a GPU on 16 lanes of PCIe 4

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

int64_t LayoutCosts::rows() {
  int64_t rows = 0;
  for (const TraceBlock& block : whole(1).blocks) rows = std::max(rows, block.rows);
  return rows;
}

// A microbatch holds g of the step's G groups. Where a document of the step is read by r groups on
// average, and these come as drawn, a document is missing from a microbatch with probability
// (1 - g/G)^r. Grouped, those that read the same meet: no microbatch then reads more than its
// share, but none less than one group does.
double LayoutCosts::documents(const Layout& layout) const {
  if (options_.distinct_ratio <= 0.0) return 1.0;
  const auto size = static_cast<double>(model_.whole_inputs),
             n = static_cast<double>(inputs(layout)), groups = std::ceil(n / size),
             all = std::max(groups, static_cast<double>(model_.batch_size) / size),
             readers = 1.0 / (size * options_.distinct_ratio);
  if (readers <= 1.0) return std::min(1.0 / readers, n / groups);  // not even all inputs of a group
  return assembly(layout) == "grouped"
             ? std::max(1.0 / readers, 1.0 / groups)
             : all / (readers * groups) * (1.0 - std::pow(1.0 - groups / all, readers));
}

bool LayoutCosts::assembly_matters(Layout layout) const {
  layout.assembly = "arrival";
  const double as_drawn = documents(layout);
  layout.assembly = "grouped";
  return documents(layout) < as_drawn;
}

const LayoutTrace& LayoutCosts::trace(const Layout& layout, int64_t n, bool split_backward) {
  const double shared = documents(layout);
  const RankGroup& tensor = links(layout).tensor;
  const std::string key = concat(n, " ", tensor.nodes, " ", tensor.per_node, " ", split_backward,
                                 " ", shared, " ", joined(layout.recompute));
  const auto known = traces_.find(key);
  if (known != traces_.end()) return known->second;
  return traces_
      .emplace(key, layout_trace(shared == 1.0 ? whole(n) : with_documents(whole(n), shared),
                                 {.tensor = tensor,
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
  for (const TraceWire& wire : trace(layout).trace.wires) {
    if (wire.name == work.wires.front())
      return work.bytes_per_step / (static_cast<double>(runs) * wire.forward_bytes());
  }
  return 0.0;
}

const MeshLinks& LayoutCosts::links(const Layout& layout) {
  const auto key = std::make_tuple(layout.dp, layout.pp, layout.tp, order(layout));
  const auto known = links_.find(key);
  if (known != links_.end()) return known->second;
  const MeshLayout mesh(layout.gpus(), layout.dp, layout.pp, layout.tp, order(layout));
  return links_.emplace(key, mesh_links(mesh, cluster_)).first->second;
}

// Between pipeline ranks: the slower one where replicas differ.
std::vector<std::vector<Link>> LayoutCosts::links_between(const Layout& layout) {
  const MeshLinks& where = links(layout);
  std::vector<std::vector<Link>> out(layout.pp, std::vector<Link>(layout.pp, cluster_.inside));
  for (int a = 0; a < layout.pp; ++a) {
    for (int b = 0; b < layout.pp; ++b) {
      if (where.crosses[a][b]) out[a][b] = cluster_.across;
    }
  }
  return out;
}

MemoryParts LayoutCosts::states_of(double parameters, const Layout& layout) const {
  return parallel::states_of(parameters, model_.weight_bytes, model_.wide_bytes, layout.zero,
                             layout.dp, model_.offload);
}

// Gradients go to where the state is and new values come back, parameter by parameter; in a file,
// masters and moments are read and written, by all nodes together.
double LayoutCosts::offload_s(double rank_parameters, double all_parameters,
                              const Layout& layout) const {
  if (!model_.offload) return 0.0;
  const double n = layout.zero >= 1 ? layout.dp : 1.0,
               host = cluster_.host_bytes_per_s > 0 ? cluster_.host_bytes_per_s : kAssumedHost,
               storage = cluster_.storage_bytes_per_s > 0 ? cluster_.storage_bytes_per_s
                                                          : kAssumedStorage;
  const double there = (model_.wide_bytes + model_.weight_bytes) * rank_parameters / n / host;
  const double copies = layout.dp / n * layout.tp;  // of all_parameters, over the ranks
  return there + (model_.offload_in_file
                      ? 2 * 3 * model_.wide_bytes * all_parameters * copies / storage
                      : 0.0);
}

// Of the schedule alone. work_s: a microbatch's, over all ranks.
double LayoutCosts::pipeline_bound(const Layout& layout, const LayoutTrace& traced, double work_s) {
  const auto m = static_cast<double>(layout.microbatches);
  const int p = layout.pp;
  const Trace& t = traced.trace;
  double bound = m * work_s / p;
  for (const TraceBlock& block : t.blocks) bound = std::max(bound, m * step_s(block));
  if (layout.chunks > 1) return bound;
  if (layout.token_slices == 1)
    return std::max(bound, pipeline_bound_s(p, m, work_s, traced.path_s));
  const SlicedPaths& paths = sliced_paths(layout, traced);
  bound = std::max(bound, pipeline_bound_s(p, m, paths.first_s, paths.first_s));
  return paths.share > 0
             ? std::max(bound, pipeline_bound_s(p, m / paths.share, paths.sliced_s, paths.sliced_s))
             : bound;
}

// What is behind a rank on the path need only wait for its first slice. Work before the slices may
// fill the wait, so that only the path itself counts; but of the path's blocks that are sliced all
// slices do, 1 / share times the first.
const LayoutCosts::SlicedPaths& LayoutCosts::sliced_paths(const Layout& layout,
                                                          const LayoutTrace& traced) {
  const auto key = std::make_pair(&traced, layout.token_slices);
  const auto known = sliced_paths_.find(key);
  if (known != sliced_paths_.end()) return known->second;
  const std::vector<TraceBlock>& blocks = traced.trace.blocks;
  const auto [rows, pairs] = least_first_slice(layout.token_slices, inputs(layout));
  std::vector<double> share(blocks.size(), 1.0), sliced(blocks.size(), 0.0);
  SlicedPaths out;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].rows == 0) continue;
    share[b] = sliced[b] = (1 - blocks[b].pair_work) * rows + blocks[b].pair_work * pairs;
    out.share = std::max(out.share, share[b]);
  }
  out.first_s = critical_path_s(traced.trace, /*split_backward=*/false, share);
  out.sliced_s = critical_path_s(traced.trace, /*split_backward=*/false, sliced);
  return sliced_paths_.emplace(key, out).first->second;
}

LayoutCosts::Bounds LayoutCosts::bounds(const Layout& layout) {
  const LayoutTrace& traced = trace(layout);
  const Trace& t = traced.trace;
  const auto m = static_cast<double>(layout.microbatches);
  const double p = layout.pp, n = layout.dp;
  double bytes = 0.0, work = 0.0, activations = 0.0;
  for (const TraceParameter& parameter : t.parameters)
    bytes += static_cast<double>(parameter.bytes);
  for (const TraceBlock& block : t.blocks) {
    work += step_s(block);
    activations += static_cast<double>(block.activation_bytes);
  }
  const double parameters = bytes / model_.weight_bytes;
  RankGroup replicas = links(layout).data;
  replicas.inside.latency_s = replicas.across.latency_s =
      0.0;  // so that many small collectives take no less than one of all bytes
  if (layout.zero >= 2) work += reduce_scatter_s(replicas, model_.wide_bytes * parameters);
  if (layout.zero == 3) work += 2 * all_gather_s(replicas, bytes);
  Bounds out;
  out.step_s = pipeline_bound(layout, traced, work);
  if (layout.zero == 1 || layout.zero == 2) out.step_s += all_gather_s(replicas, bytes / p);
  out.step_s += offload_s(parameters / p, parameters, layout);
  for (const ForwardWork& extra : model_.forward_work) {
    const double passes_made = passes(extra, layout);
    const std::vector<bool>& runs = behind(extra);
    for (size_t b = 0; b < t.blocks.size(); ++b) {
      if (runs[b]) out.step_s += passes_made * m * t.blocks[b].forward_s / p;
    }
  }
  out.step_s += model_.search_s;
  const double in_flight = layout.schedule == "gpipe" ? m : 1.0;
  // Some rank has its share of the activations in flight before it has gradients, and all its
  // states in the end.
  const MemoryParts states = states_of(parameters, layout);
  out.memory_bytes =
      std::max(states.total(), states.total() - states.gradients + in_flight * activations) / p +
      model_.input_bytes * static_cast<double>(model_.batch_size) / n;
  return out;
}

PartitionOptions LayoutCosts::partition_options(const Layout& layout) {
  PartitionOptions options;
  options.partitioner = options_.partitioner;
  options.optimize = options_.optimize;
  options.memory_weight = options_.memory_weight;
  options.num_devices = layout.stages();
  options.state_factor = states_of(1.0, layout).total() / model_.weight_bytes;
  options.explain = false;
  const auto between = links_between(layout);
  for (int s = 0; s < layout.stages(); ++s)
    options.ingress.push_back(between[std::max(0, s - 1) % layout.pp][s % layout.pp]);
  return options;
}

// The partitioner's stages. Layouts that differ in what leaves the balance of the blocks as it is
// share one cut (so do placements with equal links between the stages): it is made for
// kMicrobatchesAStage microbatches of the smallest whole size, with nothing recomputed where all
// would be.
const LayoutCosts::Cut& LayoutCosts::fastest_cut(const Layout& layout) {
  Layout like = layout;
  if (like.recompute == std::vector<std::string>{"all"}) like.recompute.clear();
  const int64_t n =
      inputs(layout) % model_.whole_inputs == 0 ? model_.whole_inputs : inputs(layout);
  std::string key = concat(n, " ", layout.pp, " ", layout.tp, " ", links(layout).tensor.nodes, " ",
                           layout.chunks, " ", documents(layout), " ", joined(like.recompute));
  PartitionOptions options = partition_options(layout);
  if (options.optimize == Optimize::kMemory || options.partitioner == Partitioner::kTree)
    key += concat(" ", options.state_factor);  // others weigh time alone
  for (int s = 0; s < layout.pp; ++s)          // those that partition_options() asks for
    key += links(layout).crosses[s][(s + 1) % layout.pp] ? '1' : '0';
  if (const auto known = cuts_.find(key); known != cuts_.end()) return known->second;
  Cut cut;
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
    options.partitioner = Partitioner::kLinear;  // of the blocks' own order: hundreds of such cuts
                                                 // are made in a search
    options.optimize = Optimize::kSpeed;         // they keep caps
    options.microbatches = static_cast<int>(layout.microbatches);
    options.memory_caps = caps;
    options.in_flight = held(layout);
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
