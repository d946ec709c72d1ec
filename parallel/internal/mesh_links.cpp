#include "parallel/internal/mesh_links.h"

#include <algorithm>

namespace contexture::parallel {
namespace {

int& along(Coordinate& at, Axis axis) {
  return axis == Axis::kDp ? at.dp : axis == Axis::kPp ? at.pp : at.tp;
}

RankGroup group_along(const MeshLayout& mesh, Axis axis, const Cluster& cluster) {
  const int size = mesh.size(axis), per_node = cluster.gpus_per_node;
  RankGroup out{.nodes = size, .per_node = 1, .inside = cluster.inside, .across = cluster.across};
  if (!mesh.crosses_nodes(axis, per_node)) {
    out.nodes = 1;
    out.per_node = size;
    return out;
  }
  int here = 0;
  for (int i = 0; i < size; ++i) {
    Coordinate at;
    along(at, axis) = i;
    here += mesh.rank(at) < per_node ? 1 : 0;
  }
  if (mesh.world_size() % per_node == 0 && size % here == 0) {
    out.nodes = size / here;
    out.per_node = here;
  }
  return out;
}

double crossing_hops(const MeshLayout& mesh, Axis axis, int per_node) {
  int crossing = 0;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    Coordinate next = mesh.coordinate(rank);
    along(next, axis) = (along(next, axis) + 1) % mesh.size(axis);
    crossing += mesh.rank(next) / per_node != rank / per_node ? 1 : 0;
  }
  return static_cast<double>(crossing) / mesh.world_size();
}

}  // namespace

MeshLinks mesh_links(const MeshLayout& mesh, const Cluster& cluster) {
  MeshLinks out{.data = group_along(mesh, Axis::kDp, cluster),
                .tensor = group_along(mesh, Axis::kTp, cluster),
                .crosses = {},
                .data_hops = crossing_hops(mesh, Axis::kDp, cluster.gpus_per_node),
                .tensor_hops = crossing_hops(mesh, Axis::kTp, cluster.gpus_per_node)};
  const int p = mesh.size(Axis::kPp);
  out.crosses.assign(p, std::vector<bool>(p, false));
  for (int d = 0; d < mesh.size(Axis::kDp); ++d) {
    for (int t = 0; t < mesh.size(Axis::kTp); ++t) {
      std::vector<int> node;
      for (int s = 0; s < p; ++s) node.push_back(mesh.rank({d, s, t}) / cluster.gpus_per_node);
      for (int a = 0; a < p; ++a) {
        for (int b = 0; b < p; ++b) {
          if (node[a] != node[b]) out.crosses[a][b] = true;
        }
      }
    }
  }
  return out;
}

}  // namespace contexture::parallel
