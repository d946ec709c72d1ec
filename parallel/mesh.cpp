#include "parallel/mesh.h"

#include <algorithm>
#include <sstream>

namespace contexture::parallel {
namespace {

std::vector<Axis> parse_order(const std::string& order) {
  std::vector<Axis> out;
  std::istringstream in(order);
  for (std::string name; std::getline(in, name, ',');) {
    if (name == "dp") out.push_back(Axis::kDp);
    if (name == "pp") out.push_back(Axis::kPp);
    if (name == "tp") out.push_back(Axis::kTp);
  }
  std::vector<Axis> sorted = out;
  std::sort(sorted.begin(), sorted.end());
  CONTEXTURE_USAGE_REQUIRE(
      std::count(order.begin(), order.end(), ',') == 2 &&
          sorted == (std::vector<Axis>{Axis::kDp, Axis::kPp, Axis::kTp}),
      "parallel.order=", order,
      " must name dp, pp and tp once each, from slowest to fastest, as in dp,pp,tp.");
  return out;
}

// What would fit.
std::string way_out(int64_t world, int64_t dp, int64_t pp, int64_t tp) {
  const std::string start = concat("start ", dp * pp * tp, " ranks.");
  if (world % (pp * tp) == 0) return concat("Set parallel.dp=", world / (pp * tp), ", or ", start);
  if (world % tp == 0)
    return concat("Set parallel.dp=1 and parallel.pp=", world / tp, ", or ", start);
  return concat("Set parallel.dp=", world, " and the others to 1, or ", start);
}

MeshLayout agreed_layout(const Communicator& world, int dp, int pp, int tp,
                         const std::string& order) {
  try {
    return MeshLayout(world.size(), dp, pp, tp, order);
  } catch (const UsageError& error) {
    throw AgreedError(error.what(), world.rank());
  }
}

int& along(Coordinate& coordinate, Axis axis) {
  return axis == Axis::kDp ? coordinate.dp : axis == Axis::kPp ? coordinate.pp : coordinate.tp;
}

}  // namespace

MeshLayout::MeshLayout(int world_size, int dp, int pp, int tp, const std::string& order)
    : dp_(dp), pp_(pp), tp_(tp), order_(parse_order(order)) {
  CONTEXTURE_USAGE_REQUIRE(dp > 0 && pp > 0 && tp > 0, "parallel.dp=", dp, ", parallel.pp=", pp,
                           ", parallel.tp=", tp, ": each must be 1 or more.");
  const int64_t product = int64_t{dp} * pp * tp;
  CONTEXTURE_USAGE_REQUIRE(product == world_size, "parallel.dp=", dp, " x parallel.pp=", pp,
                           " x parallel.tp=", tp, " = ", product, " ranks, but ", world_size,
                           world_size == 1 ? " was started. " : " were started. ",
                           way_out(world_size, dp, pp, tp));
}

Coordinate MeshLayout::coordinate(int rank) const {
  CONTEXTURE_INVARIANT(rank >= 0 && rank < world_size(), "rank ", rank, " of ", world_size());
  Coordinate out;
  for (auto axis = order_.rbegin(); axis != order_.rend(); ++axis) {
    along(out, *axis) = rank % size(*axis);
    rank /= size(*axis);
  }
  return out;
}

int MeshLayout::rank(const Coordinate& coordinate) const {
  Coordinate at = coordinate;
  int out = 0;
  for (const Axis axis : order_) out = out * size(axis) + along(at, axis);
  return out;
}

std::vector<int> MeshLayout::group(int rank, const std::vector<Axis>& axes) const {
  Coordinate fixed = coordinate(rank);
  for (const Axis axis : axes) along(fixed, axis) = 0;
  std::vector<int> out;
  for (int other = 0; other < world_size(); ++other) {
    Coordinate theirs = coordinate(other);
    for (const Axis axis : axes) along(theirs, axis) = 0;
    if (theirs == fixed) out.push_back(other);
  }
  return out;
}

bool MeshLayout::crosses_nodes(Axis axis, int ranks_per_node) const {
  for (int first = 0; first < world_size(); ++first) {
    Coordinate at = coordinate(first);
    if (along(at, axis) != 0) continue;
    along(at, axis) = size(axis) - 1;
    if (first / ranks_per_node != rank(at) / ranks_per_node) return true;
  }
  return false;
}

Mesh::Mesh(std::shared_ptr<Communicator> world, int dp, int pp, int tp, const std::string& order)
    : world_(std::move(world)),
      layout_(agreed_layout(*world_, dp, pp, tp, order)),
      coordinate_(layout_.coordinate(world_->rank())),
      dp_(make_group({Axis::kDp}, "dp")),
      pp_(make_group({Axis::kPp}, "pp")),
      tp_(make_group({Axis::kTp}, "tp")),
      replica_(make_group({Axis::kPp, Axis::kTp}, "replica")),
      stage_(make_group({Axis::kDp, Axis::kTp}, "stage")) {}

// Every rank asks for every group along the axes, in the order of their first ranks.
std::shared_ptr<Communicator> Mesh::make_group(const std::vector<Axis>& axes,
                                               const std::string& name) const {
  std::shared_ptr<Communicator> mine;
  for (int rank = 0; rank < layout_.world_size(); ++rank) {
    const std::vector<int> members = layout_.group(rank, axes);
    if (members.front() != rank) continue;
    if (auto group = world_->subgroup(members, name)) mine = std::move(group);
  }
  return mine;
}

}  // namespace contexture::parallel
