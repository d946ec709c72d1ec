#include "core/error.h"

#include <gtest/gtest.h>

namespace contexture {
namespace {

TEST(Errors, HaveTheExitCodesOfTheCommandLine) {
  EXPECT_EQ(UserError("").exit_code(), 1);
  EXPECT_EQ(UsageError("").exit_code(), 2);
  EXPECT_EQ(DataError("").exit_code(), 3);
  EXPECT_EQ(DistributedError("").exit_code(), 4);
}

TEST(Require, ThrowsTheStreamedPartsAndOnlyOnFailure) {
  const int pp = 3;
  EXPECT_NO_THROW(CONTEXTURE_REQUIRE(pp == 3, "never"));
  try {
    CONTEXTURE_DATA_REQUIRE(pp == 2, "parallel.pp=", pp, " is not ", 2);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "parallel.pp=3 is not 2");
  }
}

TEST(Require, EvaluatesItsMessageOnlyOnFailure) {
  int evaluated = 0;
  CONTEXTURE_REQUIRE(true, ++evaluated);
  EXPECT_EQ(evaluated, 0);
}

TEST(Invariant, NamesFileLineAndCondition) {
  try {
    CONTEXTURE_INVARIANT(1 == 2, "rank ", 3);
    FAIL();
  } catch (const Bug& bug) {
    const std::string what = bug.what();
    EXPECT_NE(what.find("error_test.cpp:"), std::string::npos) << what;
    EXPECT_NE(what.find("'1 == 2': rank 3"), std::string::npos) << what;
  }
  EXPECT_THROW(CONTEXTURE_INVARIANT(false), Bug);
}

}  // namespace
}  // namespace contexture
