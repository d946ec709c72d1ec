#include "retriever/refresh.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace contexture::retriever {
namespace {

TEST(RefreshSchedule, FollowsItsRanges) {
  const RefreshSchedule schedule = RefreshSchedule::parse("0-100:10,100-100000:500");
  std::vector<int64_t> due;
  for (int64_t step = 1; step <= 1500; ++step) {
    if (schedule.due(step)) due.push_back(step);
  }
  EXPECT_EQ(due, (std::vector<int64_t>{10, 20, 30, 40, 50, 60, 70, 80, 90, 500, 1000, 1500}));
  EXPECT_EQ(schedule.shortest(), 10);
}

TEST(RefreshSchedule, EveryNStepsOrNever) {
  EXPECT_TRUE(RefreshSchedule::every(3).due(6));
  EXPECT_FALSE(RefreshSchedule::every(3).due(7));
  EXPECT_FALSE(RefreshSchedule::every(0).due(6));
  EXPECT_TRUE(RefreshSchedule::parse("").empty());
}

TEST(RefreshSchedule, QuotesWhatIsWrong) {
  for (const char* bad : {"10", "0-100", "0-100:0", "100-0:5", "0-100:10,50-200:5", "0-100:10:3",
                          "a-b:c", "-1-5:2", "0-10:2,,"}) {
    try {
      RefreshSchedule::parse(bad);
      FAIL() << "taken: " << bad;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(bad), std::string::npos) << error.what();
    }
  }
}

TEST(StalenessWarning, SaysWhatToSetOnceMostOfWhatWasFoundIsWrong) {
  EXPECT_EQ(staleness_warning({100, 0.9, 0.5}), "");
  const std::string warning = staleness_warning({100, 0.1, 0.049});
  for (const char* part : {"100 steps old", "had found 5 %", "retriever.refresh_every",
                           "partial_every", "retriever.overretrieve"}) {
    EXPECT_NE(warning.find(part), std::string::npos) << warning;
  }
}

}  // namespace
}  // namespace contexture::retriever
