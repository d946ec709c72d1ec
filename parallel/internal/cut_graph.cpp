#include "parallel/internal/cut_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "parallel/internal/downsets.h"

namespace contexture::parallel {
namespace {

// One value a stage; a single one stands for all, none for `fallback`.
template <typename T>
std::vector<T> for_each_stage(const std::vector<T>& values, int num_stages, const T& fallback,
                              const char* what) {
  if (values.empty()) return std::vector<T>(num_stages, fallback);
  if (values.size() == 1) return std::vector<T>(num_stages, values.front());
  CONTEXTURE_USAGE_REQUIRE(static_cast<int>(values.size()) == num_stages, what, " has ",
                           values.size(), " entries for ", num_stages,
                           " devices. Give one for all, or one each");
  return values;
}

void sort_unique(std::vector<int>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

void link_neighbours(CutGraph& graph) {
  for (CutBlock& block : graph.blocks)
    block.before.clear(), block.after.clear(), block.reads.clear(), block.shared.clear();
  for (size_t w = 0; w < graph.wires.size(); ++w) {
    const CutWire& wire = graph.wires[w];
    for (const int reader : wire.readers) {
      graph.blocks[reader].before.push_back(wire.producer);
      graph.blocks[wire.producer].after.push_back(reader);
      graph.blocks[reader].reads.push_back(static_cast<int>(w));
    }
  }
  for (size_t p = 0; p < graph.shared.size(); ++p) {
    for (const int b : graph.shared[p].blocks)
      graph.blocks[b].shared.push_back(static_cast<int>(p));
  }
  for (CutBlock& block : graph.blocks) sort_unique(block.before), sort_unique(block.after);
}

// reach[u][v]: there is a path of at least one wire from u to v.
std::vector<std::vector<bool>> reachability(const CutGraph& graph) {
  const size_t n = graph.blocks.size();
  std::vector<std::vector<bool>> reach(n, std::vector<bool>(n, false));
  for (size_t u = n; u-- > 0;) {
    for (const int v : graph.blocks[u].after) {
      reach[u][v] = true;
      for (size_t x = v + 1; x < n; ++x) {
        if (reach[v][x]) reach[u][x] = true;
      }
    }
  }
  return reach;
}

bool alike(const CutBlock& a, const CutBlock& b) {
  const auto near = [](double x, double y) { return std::abs(x - y) <= 0.02 * std::max(x, y); };
  return near(a.time_s, b.time_s) && near(a.activation_bytes, b.activation_bytes) &&
         near(a.fixed_bytes, b.fixed_bytes);
}

struct Pair {
  int u = 0, v = 0;
};

// Pairs that can become one block without making a cycle: nothing lies between them. Neighbours
// along a wire, then neighbours in order.
std::vector<Pair> mergeable(const CutGraph& graph) {
  const auto reach = reachability(graph);
  std::vector<Pair> pairs;
  for (int u = 0; u < static_cast<int>(graph.blocks.size()); ++u) {
    for (const int v : graph.blocks[u].after) {
      const auto& after = graph.blocks[u].after;
      const bool between =
          std::any_of(after.begin(), after.end(), [&](int x) { return reach[x][v]; });
      if (!between) pairs.push_back({u, v});
    }
  }
  for (int u = 0; pairs.empty() && u + 1 < static_cast<int>(graph.blocks.size()); ++u)
    pairs.push_back({u, u + 1});
  return pairs;
}

// Group numbers in an order in which wires go from lower to higher, given any labels without cycles
// between them.
std::vector<int> ordered_groups(const CutGraph& graph, const std::vector<int>& label) {
  const int n = static_cast<int>(label.size());
  std::vector<int> group(n, -1);
  int next = 0;
  std::vector<int> missing(n, 0);  // by label: wires from other, unnumbered groups
  for (int v = 0; v < n; ++v) {
    for (const int u : graph.blocks[v].before) missing[label[v]] += label[u] != label[v];
  }
  std::vector<bool> done(n, false);
  for (int placed = 0; placed < n;) {
    int ready = -1;
    for (int v = 0; v < n && ready < 0; ++v) {
      if (!done[label[v]] && missing[label[v]] == 0) ready = label[v];
    }
    CONTEXTURE_INVARIANT(ready >= 0, "merged blocks form a cycle");
    done[ready] = true;
    for (int v = 0; v < n; ++v) {
      if (label[v] != ready) continue;
      group[v] = next;
      ++placed;
      for (const int x : graph.blocks[v].after) missing[label[x]] -= label[x] != ready;
    }
    ++next;
  }
  return group;
}

// One merge, the pair that weighs least: a second pair in the same round could close a cycle with
// the first.
CutGraph merge_one(const CutGraph& graph, bool equal_only) {
  const Pair* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  const std::vector<Pair> pairs = mergeable(graph);
  for (const Pair& pair : pairs) {
    const CutBlock &u = graph.blocks[pair.u], &v = graph.blocks[pair.v];
    if (equal_only && !alike(u, v)) continue;
    if (u.time_s + v.time_s < least) least = u.time_s + v.time_s, best = &pair;
  }
  if (best == nullptr) return graph;
  std::vector<int> label(graph.blocks.size());
  std::iota(label.begin(), label.end(), 0);
  label[best->v] = best->u;
  return contract(graph, ordered_groups(graph, label));
}

}  // namespace

CutGraph make_cut_graph(const Trace& trace, const PartitionOptions& options) {
  CONTEXTURE_USAGE_REQUIRE(options.state_factor >= 0,
                           "bytes of state per byte of parameter can't be negative, as ",
                           options.state_factor, " is");
  CutGraph graph;
  std::vector<std::vector<int>> users(trace.parameters.size());
  for (size_t b = 0; b < trace.blocks.size(); ++b) {
    const TraceBlock& block = trace.blocks[b];
    CutBlock cut;
    cut.members = {static_cast<int>(b)};
    cut.time_s = step_s(block);
    cut.activation_bytes = static_cast<double>(block.activation_bytes);
    cut.fixed_bytes = static_cast<double>(block.resident_bytes);
    for (const int p : block.parameters) users[p].push_back(static_cast<int>(b));
    graph.blocks.push_back(std::move(cut));
  }
  for (size_t p = 0; p < users.size(); ++p) {
    const double bytes = static_cast<double>(trace.parameters[p].bytes);
    if (users[p].size() == 1)
      graph.blocks[users[p].front()].fixed_bytes += options.state_factor * bytes;
    if (users[p].size() < 2) continue;
    graph.shared.push_back({.blocks = users[p],
                            .fixed_bytes = options.state_factor * bytes,
                            .gradient_bytes = options.gradient_factor * bytes,
                            .rule = rule_of(options, trace.parameters[p].name)});
  }
  for (const TraceWire& wire : trace.wires) {
    if (wire.readers.empty()) continue;
    graph.wires.push_back({.producer = wire.producer,
                           .readers = wire.readers,
                           .forward_bytes = wire.forward_bytes(),
                           .backward_bytes = wire.backward_bytes(),
                           .messages = wire.gradient ? 2 : 1});
  }
  link_neighbours(graph);
  return graph;
}

SharedRule rule_of(const PartitionOptions& options, const std::string& parameter) {
  const auto own = options.shared_by_name.find(parameter);
  return own == options.shared_by_name.end() ? options.shared : own->second;
}

std::vector<int> in_flight_of(const PartitionOptions& options, int num_stages) {
  std::vector<int> in_flight = options.in_flight;
  if (static_cast<int>(in_flight.size()) == num_stages) return in_flight;
  in_flight.clear();
  for (int s = 0; s < num_stages; ++s)
    in_flight.push_back(std::min(options.microbatches, num_stages - s));
  return in_flight;
}

CutCosts make_cut_costs(const PartitionOptions& options) {
  const int n = options.num_devices;
  CONTEXTURE_USAGE_REQUIRE(n >= 1, "a partition needs at least one device, not ", n);
  CONTEXTURE_USAGE_REQUIRE(options.microbatches >= 1, "a step has at least one microbatch, not ",
                           options.microbatches);
  CONTEXTURE_USAGE_REQUIRE(options.sum_weight >= 0 && options.byte_weight >= 0,
                           "weights of the objective can't be negative");
  CONTEXTURE_USAGE_REQUIRE(
      options.in_flight.empty() || static_cast<int>(options.in_flight.size()) == n,
      "in_flight has ", options.in_flight.size(), " entries for ", n, " stages");
  CutCosts costs{
      .num_stages = n,
      .sum_weight = options.sum_weight,
      .max_weight = options.max_weight < 0 ? options.microbatches - 1.0 : options.max_weight,
      .byte_weight = options.byte_weight,
      .ingress = for_each_stage(options.ingress, n, Link{}, "ingress"),
      .caps = for_each_stage(options.memory_caps, n, std::numeric_limits<double>::infinity(),
                             "memory_caps"),
      .held = for_each_stage(options.device_bytes, n, 0.0, "device_bytes"),
      .in_flight = in_flight_of(options, n)};
  for (int s = 0; s < n; ++s) costs.caps[s] -= costs.held[s];
  if (options.between.empty()) return costs;
  CONTEXTURE_USAGE_REQUIRE(static_cast<int>(options.between.size()) == n, "between has ",
                           options.between.size(), " rows for ", n, " devices");
  for (int to = 0; to < n; ++to) {
    Link cheapest{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    for (int from = 0; from < n; ++from) {
      CONTEXTURE_USAGE_REQUIRE(static_cast<int>(options.between[from].size()) == n, "row ", from,
                               " of between has ", options.between[from].size(), " entries for ", n,
                               " devices");
      // Gradients take the opposite direction; the search prices both alike, so take the cheaper of
      // the two.
      for (const Link& link : {options.between[from][to], options.between[to][from]}) {
        if (from == to) continue;
        cheapest.latency_s = std::min(cheapest.latency_s, link.latency_s);
        cheapest.s_per_byte = std::min(cheapest.s_per_byte, link.s_per_byte);
      }
    }
    costs.ingress[to] = n == 1 ? Link{} : cheapest;
  }
  return costs;
}

CutGraph contract(const CutGraph& graph, const std::vector<int>& group_of) {
  CutGraph merged;
  merged.blocks.resize(*std::max_element(group_of.begin(), group_of.end()) + 1);
  for (size_t b = 0; b < graph.blocks.size(); ++b) {
    CutBlock& block = merged.blocks[group_of[b]];
    block.members.insert(block.members.end(), graph.blocks[b].members.begin(),
                         graph.blocks[b].members.end());
    block.time_s += graph.blocks[b].time_s;
    block.activation_bytes += graph.blocks[b].activation_bytes;
    block.fixed_bytes += graph.blocks[b].fixed_bytes;
  }
  for (CutBlock& block : merged.blocks) std::sort(block.members.begin(), block.members.end());
  for (const CutWire& wire : graph.wires) {
    CutWire outer = wire;
    outer.producer = group_of[wire.producer];
    outer.readers.clear();
    for (const int reader : wire.readers) {
      if (group_of[reader] != outer.producer) outer.readers.push_back(group_of[reader]);
    }
    sort_unique(outer.readers);
    if (!outer.readers.empty()) merged.wires.push_back(std::move(outer));
  }
  for (const CutShared& shared : graph.shared) {
    CutShared outer = shared;
    for (int& b : outer.blocks) b = group_of[b];
    sort_unique(outer.blocks);
    if (outer.blocks.size() > 1) {
      merged.shared.push_back(std::move(outer));
    } else {
      merged.blocks[outer.blocks.front()].fixed_bytes += shared.fixed_bytes;
    }
  }
  link_neighbours(merged);
  return merged;
}

CutGraph coarsen(CutGraph graph, int min_blocks, int max_downsets) {
  for (const bool equal_only : {true, false}) {
    while (static_cast<int>(graph.blocks.size()) > min_blocks &&
           !Downsets(graph, max_downsets).complete()) {
      const size_t before = graph.blocks.size();
      graph = merge_one(graph, equal_only);
      if (graph.blocks.size() == before) break;
    }
  }
  return graph;
}

std::vector<int> stages_in_trace(const CutGraph& graph, const std::vector<int>& stage_of_block,
                                 size_t num_trace_blocks) {
  std::vector<int> stages(num_trace_blocks, -1);
  for (size_t b = 0; b < graph.blocks.size(); ++b) {
    for (const int member : graph.blocks[b].members) stages[member] = stage_of_block[b];
  }
  return stages;
}

}  // namespace contexture::parallel
