// Where the groups of a mesh lie among the nodes of a cluster: all that a price knows of the mesh's
// order. Orders with equal links cost the same.
#pragma once
#include <vector>

#include "parallel/cluster.h"
#include "parallel/mesh.h"

namespace contexture::parallel {

struct MeshLinks {
  // Of the group of rank 0 along the axis. Where groups lie unevenly over nodes it counts as having
  // one rank on each.
  RankGroup data, tensor;
  // [pipeline rank][pipeline rank]: whether nodes lie between them in some replica.
  std::vector<std::vector<bool>> crosses;
  // Share of the hops of the axis's rings (ranks in order, and back to the first) that lead to
  // another node.
  double data_hops = 0.0, tensor_hops = 0.0;
  bool operator==(const MeshLinks&) const = default;
};

MeshLinks mesh_links(const MeshLayout& mesh, const Cluster& cluster);

}  // namespace contexture::parallel
