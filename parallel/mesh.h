// Where each rank stands: the world as a box of data-parallel replicas (dp), pipeline stages (pp)
// and tensor-parallel ranks (tp). In the default order tp varies fastest, so that neighbouring
// ranks, which share a node, share a layer's tensors, and stage boundaries and replicas cross
// nodes.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace contexture::parallel {

enum class Axis { kDp, kPp, kTp };

struct Coordinate {
  int dp = 0, pp = 0, tp = 0;
  bool operator==(const Coordinate&) const = default;
};

// The arithmetic, without communication.
class MeshLayout {
 public:
  // `order` names the axes from the slowest to the fastest varying. UsageError, with the numbers
  // and a way out, unless every size is positive, they multiply to world_size and order has each
  // axis once.
  MeshLayout(int world_size, int dp, int pp, int tp, const std::string& order = "dp,pp,tp");

  int world_size() const { return dp_ * pp_ * tp_; }
  int size(Axis axis) const { return axis == Axis::kDp ? dp_ : axis == Axis::kPp ? pp_ : tp_; }
  Coordinate coordinate(int rank) const;
  int rank(const Coordinate& coordinate) const;
  // The ranks, ascending, that differ from `rank` at most along these axes.
  std::vector<int> group(int rank, const std::vector<Axis>& along) const;
  // Whether some group along the axis has ranks on two nodes, when nodes hold this many consecutive
  // ranks each.
  bool crosses_nodes(Axis axis, int ranks_per_node) const;

 private:
  int dp_, pp_, tp_;
  std::vector<Axis> order_;
};

// The layout of a world of communicating ranks, and this rank's groups in it. A member's rank in a
// group is its coordinate along the group's axis; in replica() and stage() ranks ascend as in the
// world. A group of one rank moves nothing.
class Mesh {
 public:
  // Every rank calls it with the same arguments; throws AgreedError where MeshLayout throws.
  Mesh(std::shared_ptr<Communicator> world, int dp, int pp, int tp,
       const std::string& order = "dp,pp,tp");

  const MeshLayout& layout() const { return layout_; }
  const Coordinate& coordinate() const { return coordinate_; }
  Communicator& world() const { return *world_; }
  Communicator& dp() const { return *dp_; }  // same stage and shard in every replica
  Communicator& pp() const { return *pp_; }  // the stages of this replica at this tp coordinate
  Communicator& tp() const { return *tp_; }  // the shards of this stage of this replica
  Communicator& replica() const { return *replica_; }  // all of this replica: pp x tp
  Communicator& stage() const { return *stage_; }  // everyone who holds part of this stage: dp x tp

 private:
  std::shared_ptr<Communicator> make_group(const std::vector<Axis>& along,
                                           const std::string& name) const;

  const std::shared_ptr<Communicator> world_;
  const MeshLayout layout_;
  const Coordinate coordinate_;
  const std::shared_ptr<Communicator> dp_, pp_, tp_, replica_, stage_;
};

}  // namespace contexture::parallel
