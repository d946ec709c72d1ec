#include "parallel/internal/tree_partition.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "core/error.h"
#include "parallel/chain_planners.h"

namespace contexture::parallel {
namespace {

struct Module {
  std::vector<int> blocks;  // all below
  double cost = 0.0;
  std::vector<Module> children;
};

// Blocks that share parameters, by the first block of each set.
class SharedSets {
 public:
  explicit SharedSets(const Trace& trace) : first_(trace.blocks.size()) {
    std::iota(first_.begin(), first_.end(), 0);
    std::map<int, int> user;
    for (int b = 0; b < static_cast<int>(trace.blocks.size()); ++b) {
      for (const int p : trace.blocks[b].parameters) {
        const auto [found, fresh] = user.emplace(p, b);
        if (!fresh) join(found->second, b);
      }
    }
    for (int b = 0; b < static_cast<int>(first_.size()); ++b) members_[first(b)].push_back(b);
  }
  int first(int block) const {
    while (first_[block] != block) block = first_[block];
    return block;
  }
  const std::vector<int>& members(int first) const { return members_.at(first); }

 private:
  void join(int a, int b) {
    const std::pair<int, int> ends = std::minmax({first(a), first(b)});
    first_[ends.second] = ends.first;
  }
  std::vector<int> first_;
  std::map<int, std::vector<int>> members_;
};

class ModuleTree {
 public:
  ModuleTree(const Trace& trace, double memory_weight, double state_factor) : sets_(trace) {
    std::vector<double> memory, time;
    std::vector<bool> counted(trace.parameters.size(), false);
    for (const TraceBlock& block : trace.blocks) {
      memory.push_back(static_cast<double>(block.resident_bytes + block.activation_bytes));
      for (const int p : block.parameters) {
        if (!counted[p])
          memory.back() += state_factor * static_cast<double>(trace.parameters[p].bytes);
        counted[p] = true;
      }
      time.push_back(step_s(block));
    }
    const double all_memory = std::accumulate(memory.begin(), memory.end(), 0.0);
    const double all_time = std::accumulate(time.begin(), time.end(), 0.0);
    for (size_t b = 0; b < memory.size(); ++b) {
      cost_.push_back((all_memory > 0 ? memory_weight * memory[b] / all_memory : 0.0) +
                      (all_time > 0 ? (1 - memory_weight) * time[b] / all_time : 0.0));
    }
    root_ = build(trace_tree(trace));
  }
  const Module& root() const { return root_; }

 private:
  Module build(const TraceNode& node) const {
    Module module;
    if (node.children.empty()) {
      // The first of a set of sharing blocks stands for all of them, the others for nothing.
      const int block = node.blocks.front();
      if (sets_.first(block) == block) module.blocks = sets_.members(block);
    }
    for (const TraceNode& child : node.children) {
      Module below = build(child);
      if (below.blocks.empty()) continue;
      module.blocks.insert(module.blocks.end(), below.blocks.begin(), below.blocks.end());
      module.children.push_back(std::move(below));
    }
    for (const int b : module.blocks) module.cost += cost_[b];
    return module;
  }

  SharedSets sets_;
  std::vector<double> cost_;
  Module root_;
};

struct Task {
  std::vector<const Module*> modules;  // siblings in order, to be divided; or one module
  std::vector<int> devices;
};

}  // namespace

std::vector<int> tree_devices(const Trace& trace, int num_devices, double memory_weight,
                              double state_factor) {
  CONTEXTURE_USAGE_REQUIRE(memory_weight >= 0 && memory_weight <= 1,
                           "memory_weight lies in 0..1, not ", memory_weight);
  const ModuleTree tree(trace, memory_weight, state_factor);
  std::vector<int> device(trace.blocks.size(), -1);
  std::vector<int> all(num_devices);
  std::iota(all.begin(), all.end(), 0);
  std::deque<Task> tasks = {{{&tree.root()}, all}};
  while (!tasks.empty()) {
    const Task task = std::move(tasks.front());
    tasks.pop_front();
    const bool single = task.modules.size() == 1;
    if (task.devices.size() == 1 || (single && task.modules.front()->children.empty())) {
      for (const Module* module : task.modules) {
        for (const int b : module->blocks) device[b] = task.devices.front();
      }
      continue;
    }
    std::vector<const Module*> items = task.modules;
    if (single) {
      items.clear();
      for (const Module& child : task.modules.front()->children) items.push_back(&child);
    }
    std::vector<double> costs;
    for (const Module* item : items) costs.push_back(item->cost);
    const int num_segments = static_cast<int>(std::min(items.size(), task.devices.size()));
    const std::vector<int> cuts = balance_chain(costs, num_segments);
    std::vector<Task> segments(num_segments);
    std::vector<double> segment_costs(num_segments, 0.0);
    for (int s = 0; s < num_segments; ++s) {
      segments[s].modules.assign(items.begin() + cuts[s], items.begin() + cuts[s + 1]);
      for (int i = cuts[s]; i < cuts[s + 1]; ++i) segment_costs[s] += costs[i];
    }
    const std::vector<int> seats = dhondt(segment_costs, static_cast<int>(task.devices.size()));
    for (size_t i = 0; i < seats.size(); ++i) segments[seats[i]].devices.push_back(task.devices[i]);
    for (Task& segment : segments) {
      if (segment.devices.empty()) segment.devices = {task.devices.front()};
      tasks.push_back(std::move(segment));
    }
  }
  for (const int d : device) CONTEXTURE_INVARIANT(d >= 0, "the tree partition left a block out");
  return device;
}

}  // namespace contexture::parallel
