#include "core/did_you_mean.h"

#include <gtest/gtest.h>

namespace contexture {
namespace {

TEST(EditDistance, CountsInsertsDeletesReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("stpes", "steps"), 1);
  EXPECT_EQ(edit_distance("Batch-Size", "batch_size"), 0);
}

TEST(DidYouMean, FindsTheNearestName) {
  const std::vector<std::string> names = {"train", "trace", "tune", "eval", "checkpoint"};
  EXPECT_EQ(did_you_mean("trian", names), "train");
  EXPECT_EQ(did_you_mean("evla", names), "eval");
  EXPECT_EQ(did_you_mean("chekpoints", names), "checkpoint");
  EXPECT_EQ(did_you_mean_hint("trian", names), " Did you mean 'train'?");
}

TEST(DidYouMean, StaysSilentWhenNothingIsNear) {
  const std::vector<std::string> names = {"train", "eval", "k"};
  EXPECT_EQ(did_you_mean("photosynthesis", names), "");
  EXPECT_EQ(did_you_mean("x", names), "");
  EXPECT_EQ(did_you_mean("", names), "");
  EXPECT_EQ(did_you_mean(std::string(100000, 'a'), names), "");
  EXPECT_EQ(did_you_mean_hint("zzz", {}), "");
}

}  // namespace
}  // namespace contexture
