// A layout whose blocks have their ranks: what its time, memory and traffic are computed from, each
// in a file of its own.
#pragma once
#include <functional>
#include <set>
#include <vector>

#include "parallel/internal/layout_trace.h"
#include "parallel/internal/mesh_links.h"
#include "parallel/planner.h"

namespace contexture::parallel {

struct PlacedLayout {
  PlacedLayout(const PlannedModel& model, const Cluster& cluster, const Layout& layout,
               const Plan& cut, const MeshLinks& links, const LayoutTrace& traced, int64_t inputs);

  const PlannedModel& model;
  const Cluster& cluster;
  const Layout& layout;
  const Plan& cut;
  const MeshLinks& links;
  const LayoutTrace& traced;
  const Trace& trace;    // traced's
  const int64_t inputs;  // of a microbatch
  const double m, runs;  // microbatches of a replica, of all
  // Bytes of parameters that no earlier block of the same rank has, by block: what a rank holds and
  // reduces, each once. Of all a block's parameters. By rank.
  std::vector<double> own_bytes, block_bytes, rank_bytes;

  int rank_of(int stage) const { return cut.device_of_stage[stage]; }
  int rank_of_block(size_t block) const { return rank_of(cut.stage_of_block[block]); }
  double wide(double weight_bytes) const {
    return weight_bytes / model.weight_bytes * model.wide_bytes;
  }
  double parameters_of(int rank) const { return rank_bytes[rank] / model.weight_bytes; }
  bool reduces_at_once() const { return layout.dp > 1 && layout.zero >= 2; }
  const Link& link(int rank_a, int rank_b) const {
    return links.crosses[rank_a][rank_b] ? cluster.across : cluster.inside;
  }
  // Seconds to gather a block's values for one use (ZeRO 3).
  double gather_s(size_t block) const;
  // Calls visit(bytes, ranks) for each parameter that several ranks have.
  template <typename Visit>
  void for_each_shared(const Visit& visit) const {
    for (size_t p = 0; p < cut.parameters.size(); ++p) {
      const ParameterPlace& place = cut.parameters[p];
      if (place.replica_stages.empty()) continue;
      std::vector<int> ranks = {rank_of(place.owner_stage)};
      for (const int s : place.replica_stages) ranks.push_back(rank_of(s));
      visit(static_cast<double>(trace.parameters[p].bytes), ranks);
    }
  }
};

// By rank. states(parameters): of so many on one rank.
std::vector<MemoryParts> memory_of(const PlacedLayout& placed, const Schedule& schedule,
                                   const std::function<MemoryParts(double)>& states);

struct LayoutTraffic {
  LinkBytes inside, across;
};
// slices: of a microbatch (each gathers its blocks with ZeRO 3).
LayoutTraffic traffic_of(const PlacedLayout& placed, size_t slices);

}  // namespace contexture::parallel
