#include "parallel/mesh.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace contexture::parallel {
namespace {

std::string refusal(int world, int dp, int pp, int tp, const std::string& order = "dp,pp,tp") {
  try {
    MeshLayout(world, dp, pp, tp, order);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MeshLayout, TpVariesFastestAndDpSlowest) {
  const MeshLayout mesh(12, 2, 3, 2);
  EXPECT_EQ(mesh.coordinate(0), (Coordinate{0, 0, 0}));
  EXPECT_EQ(mesh.coordinate(1), (Coordinate{0, 0, 1}));
  EXPECT_EQ(mesh.coordinate(2), (Coordinate{0, 1, 0}));
  EXPECT_EQ(mesh.coordinate(11), (Coordinate{1, 2, 1}));
  EXPECT_EQ(mesh.group(7, {Axis::kTp}), (std::vector<int>{6, 7}));
  EXPECT_EQ(mesh.group(7, {Axis::kPp}), (std::vector<int>{7, 9, 11}));
  EXPECT_EQ(mesh.group(7, {Axis::kDp}), (std::vector<int>{1, 7}));
  EXPECT_EQ(mesh.group(7, {Axis::kPp, Axis::kTp}), (std::vector<int>{6, 7, 8, 9, 10, 11}));
}

TEST(MeshLayout, EveryOrderGivesEachCoordinateToOneRank) {
  for (const char* order :
       {"dp,pp,tp", "dp,tp,pp", "pp,dp,tp", "pp,tp,dp", "tp,dp,pp", "tp,pp,dp"}) {
    const MeshLayout mesh(24, 2, 3, 4, order);
    std::set<std::tuple<int, int, int>> seen;
    for (int rank = 0; rank < 24; ++rank) {
      const Coordinate at = mesh.coordinate(rank);
      EXPECT_TRUE(at.dp < 2 && at.pp < 3 && at.tp < 4);
      EXPECT_EQ(mesh.rank(at), rank) << order;
      seen.insert({at.dp, at.pp, at.tp});
    }
    EXPECT_EQ(seen.size(), 24u) << order;
  }
  EXPECT_EQ(MeshLayout(4, 2, 1, 2, "tp,pp,dp").coordinate(1), (Coordinate{1, 0, 0}));
}

TEST(MeshLayout, RefusesWithTheNumbersAndAWayOut) {
  EXPECT_EQ(refusal(8, 2, 2, 3),
            "parallel.dp=2 x parallel.pp=2 x parallel.tp=3 = 12 ranks, but 8 were started. Set "
            "parallel.dp=8 and the others to 1, or start 12 ranks.");
  EXPECT_EQ(refusal(8, 1, 2, 2),
            "parallel.dp=1 x parallel.pp=2 x parallel.tp=2 = 4 ranks, but 8 were started. Set "
            "parallel.dp=2, or start 4 ranks.");
  EXPECT_EQ(refusal(6, 1, 4, 2),
            "parallel.dp=1 x parallel.pp=4 x parallel.tp=2 = 8 ranks, but 6 were started. Set "
            "parallel.dp=1 and parallel.pp=3, or start 8 ranks.");
  EXPECT_EQ(refusal(1, 2, 1, 1),
            "parallel.dp=2 x parallel.pp=1 x parallel.tp=1 = 2 ranks, but 1 was started. Set "
            "parallel.dp=1, or start 2 ranks.");
  EXPECT_EQ(refusal(1, 0, 1, 1),
            "parallel.dp=0, parallel.pp=1, parallel.tp=1: each must be 1 or more.");
  EXPECT_EQ(refusal(1 << 30, 1 << 20, 1 << 20, 1 << 10)
                .rfind("parallel.dp=1048576 x parallel.pp=1048576 x parallel.tp=1024 = "
                       "1125899906842624 ranks",
                       0),
            0u);
  for (const char* order :
       {"dp,pp", "dp,pp,pp", "dp,pp,tp,", "tp", "", "dp,pp,tp,tp", "dp,pp,ep"}) {
    EXPECT_NE(refusal(1, 1, 1, 1, order).find("must name dp, pp and tp once each"),
              std::string::npos)
        << order;
  }
}

TEST(MeshLayout, SeesWhichAxisCrossesNodes) {
  const MeshLayout mesh(16, 2, 2, 4);
  EXPECT_FALSE(mesh.crosses_nodes(Axis::kTp, 4));
  EXPECT_TRUE(mesh.crosses_nodes(Axis::kPp, 4));
  EXPECT_TRUE(mesh.crosses_nodes(Axis::kTp, 2));
  EXPECT_FALSE(mesh.crosses_nodes(Axis::kDp, 16));
  EXPECT_TRUE(MeshLayout(16, 2, 2, 4, "tp,pp,dp").crosses_nodes(Axis::kTp, 4));
}

TEST(Mesh, GroupsHoldTheRanksOfTheirAxes) {
  const auto ranks = make_thread_communicators(8, 20);
  std::vector<std::thread> threads;
  for (int r = 0; r < 8; ++r) {
    threads.emplace_back([&, r] {
      const Mesh mesh(ranks[static_cast<size_t>(r)], 2, 2, 2);
      EXPECT_EQ(mesh.dp().rank(), mesh.coordinate().dp);
      EXPECT_EQ(mesh.pp().rank(), mesh.coordinate().pp);
      EXPECT_EQ(mesh.tp().rank(), mesh.coordinate().tp);
      EXPECT_EQ(mesh.replica().size(), 4);
      const auto sum_of_ranks = [&](Communicator& group) {
        const at::Tensor sum = at::full({1}, r, at::kLong);
        group.all_reduce(sum).wait();
        return sum.item<int64_t>();
      };
      EXPECT_EQ(sum_of_ranks(mesh.tp()), 2 * r - r % 2 + (1 - r % 2));  // r and its neighbour
      EXPECT_EQ(sum_of_ranks(mesh.dp()), r < 4 ? 2 * r + 4 : 2 * r - 4);
      EXPECT_EQ(sum_of_ranks(mesh.replica()), r < 4 ? 6 : 22);
      EXPECT_EQ(sum_of_ranks(mesh.stage()), r % 4 < 2 ? 0 + 1 + 4 + 5 : 2 + 3 + 6 + 7);
      EXPECT_EQ(mesh.pp().name(), "pp");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Mesh, RefusesOnEveryRankAndOneSpeaks) {
  const auto ranks = make_thread_communicators(2, 20);
  int spoken = 0;
  for (const auto& rank : ranks) {
    try {
      Mesh(rank, 3, 1, 1);
      ADD_FAILURE() << "accepted";
    } catch (const AgreedError& error) {
      EXPECT_NE(std::string(error.what()).find("3 ranks, but 2 were started"), std::string::npos);
      spoken += error.speaks() ? 1 : 0;
    }
  }
  EXPECT_EQ(spoken, 1);
}

}  // namespace
}  // namespace contexture::parallel
