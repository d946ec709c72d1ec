// What one layout costs, and bounds of it that take no search (parallel/planner.h).
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/internal/layout_trace.h"
#include "parallel/mesh.h"
#include "parallel/planner.h"

namespace contexture::parallel {

// Of any layout of p ranks, one stage each, through which m microbatches go: total_s is a
// microbatch's work over all stages, path_s the longest way of dependent work through it and back.
// A stage that holds work of the path can start only after what lies before it on the path, and
// what lies before it ends only after it; the bound is the best that dividing the work with that
// knowledge can do.
double pipeline_bound_s(int p, double m, double total_s, double path_s);

// Share of the hops of the axis's rings (ranks in order, and back to the first) that lead to
// another node.
double crossing_hops(const MeshLayout& mesh, Axis axis, int gpus_per_node);

class LayoutCosts {
 public:
  LayoutCosts(const PlannedModel& model, const Cluster& cluster, const SearchOptions& options);

  struct Bounds {
    double step_s = 0.0, memory_bytes = 0.0;
  };
  Bounds bounds(const Layout& layout);  // no layout costs less
  // must_fit: nullopt unless the memory of every rank suffices, the cut being moved for that where
  // it can be.
  std::optional<LayoutPlan> price(const Layout& layout, bool must_fit);

  int64_t inputs(const Layout& layout) const;  // of a microbatch
  int num_blocks() { return static_cast<int>(whole(1).blocks.size()); }
  double flops_per_s() const { return cluster_.peak(model_.dtype) * cluster_.efficiency; }

 private:
  friend class LayoutPricing;
  struct Cut {
    std::vector<int> stage_of_block;  // empty: the partitioner has none
    std::string remark;
  };
  const Trace& whole(int64_t inputs);
  const LayoutTrace& trace(const Layout& layout, int64_t inputs, bool split_backward);
  const LayoutTrace& trace(const Layout& layout) {
    return trace(layout, inputs(layout), layout.schedule == "zb_h1");
  }
  const std::vector<bool>& behind(const ForwardWork& work);
  double passes(const ForwardWork& work, const Layout& layout);  // over the step, per step
  std::optional<Plan> cut(const Layout& layout, const std::vector<double>& caps);
  const Cut& fastest_cut(const Layout& layout);
  PartitionOptions partition_options(const Layout& layout) const;
  std::vector<std::vector<Link>> links_between(const Layout& layout) const;
  RankGroup group_along(const Layout& layout, Axis axis) const;
  MeshLayout mesh(const Layout& layout) const {
    return {layout.gpus(), layout.dp, layout.pp, layout.tp, model_.order};
  }
  MemoryParts states_of(double parameters, const Layout& layout) const;

  const PlannedModel& model_;
  const Cluster& cluster_;
  const SearchOptions& options_;
  std::map<int64_t, Trace> whole_;
  std::map<std::string, LayoutTrace> traces_;
  std::map<std::string, Cut> cuts_;  // without caps
  std::map<std::string, std::vector<bool>> behind_;
};

}  // namespace contexture::parallel
