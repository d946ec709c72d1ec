// What one layout costs, and bounds of it that take no search (parallel/planner.h).
#pragma once
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/internal/layout_trace.h"
#include "parallel/internal/mesh_links.h"
#include "parallel/planner.h"

namespace contexture::parallel {

// Of any layout of p ranks, one stage each, through which m microbatches go: total_s is a
// microbatch's work over all stages, path_s the longest way of dependent work through it and back.
// A stage that holds work of the path can start only after what lies before it on the path, and
// what lies before it ends only after it; the bound is the best that dividing the work with that
// knowledge can do.
double pipeline_bound_s(int p, double m, double total_s, double path_s);

constexpr double kAssumedStorage = 1e9;  // bytes a second, where the cluster file says nothing

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
  // Of an input, where some block may run in token slices; else 0.
  int64_t rows();
  const MeshLinks& links(const Layout& layout);
  // Distinct documents that a microbatch encodes, of those that the groups in it would alone.
  double documents(const Layout& layout) const;
  bool assembly_matters(Layout layout) const;
  double flops_per_s() const { return cluster_.peak(model_.dtype) * cluster_.efficiency; }

 private:
  friend class LayoutPricing;
  struct Cut {
    std::vector<int> stage_of_block;  // empty: the partitioner has none
    std::string remark;
  };
  const std::string& order(const Layout& layout) const {
    return layout.order.empty() ? model_.order : layout.order;
  }
  const std::string& assembly(const Layout& layout) const {
    return layout.assembly.empty() ? model_.assembly : layout.assembly;
  }
  const Trace& whole(int64_t inputs);
  const LayoutTrace& trace(const Layout& layout, int64_t inputs, bool split_backward);
  const LayoutTrace& trace(const Layout& layout) {
    return trace(layout, inputs(layout), layout.schedule == "zb_h1");
  }
  const std::vector<bool>& behind(const ForwardWork& work);
  double passes(const ForwardWork& work, const Layout& layout);  // over the step, per step
  // Longest ways through the blocks and back of a microbatch's first token slice; of that, through
  // the blocks that are sliced; and the largest share of a block that this slice is.
  struct SlicedPaths {
    double first_s = 0.0, sliced_s = 0.0, share = 0.0;
  };
  const SlicedPaths& sliced_paths(const Layout& layout, const LayoutTrace& traced);
  double pipeline_bound(const Layout& layout, const LayoutTrace& traced, double work_s);
  std::optional<Plan> cut(const Layout& layout, const std::vector<double>& caps);
  const Cut& fastest_cut(const Layout& layout);
  PartitionOptions partition_options(const Layout& layout);
  std::vector<std::vector<Link>> links_between(const Layout& layout);
  MemoryParts states_of(double parameters, const Layout& layout) const;
  double offload_s(double rank_parameters, double all_parameters, const Layout& layout) const;

  const PlannedModel& model_;
  const Cluster& cluster_;
  const SearchOptions& options_;
  std::map<int64_t, Trace> whole_;
  std::map<std::string, LayoutTrace> traces_;
  std::map<std::pair<const LayoutTrace*, int64_t>, SlicedPaths> sliced_paths_;
  std::map<std::tuple<int, int, int, std::string>, MeshLinks> links_;  // by dp, pp, tp, order
  std::map<std::string, Cut> cuts_;                                    // without caps
  std::map<std::string, std::vector<bool>> behind_;
};

}  // namespace contexture::parallel
