#include "data/trec.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files.h"

namespace contexture::data {
namespace {

class Trec : public testing::Test {
 protected:
  std::string file(const std::string& content) {
    const std::string path = dir_.path() / "f.txt";
    write_file_atomic(path, content);
    return path;
  }
  TempDir dir_;
  BadRecords bad_{BadRecords::Policy::kSkip};
};

TEST_F(Trec, ReadsTrecAndBeirJudgments) {
  const Qrels expected{{"q1", {{"a", 1}, {"b", -1}}}, {"q2", {{"c", 2}}}};
  EXPECT_EQ(read_qrels(file("q1 0 a 1\nq1\t0\tb -1\r\n\nq2 Q0 c 2"), bad_), expected);
  EXPECT_EQ(
      read_qrels(file("\xEF\xBB\xBFquery-id\tcorpus-id\tscore\nq1\ta\t1\nq1\tb\t-1\nq2\tc\t2\n"),
                 bad_),
      expected);
  EXPECT_EQ(read_qrels(file("q1\ta\t1\nq1\tb\t-1\nq2\tc\t2\n"), bad_), expected);
  EXPECT_EQ(bad_.count, 0);
}

TEST_F(Trec, ReadsRunsAndIgnoresTheRank) {
  const TrecRun run = read_run(file("q Q0 a 7 1.5 me\nq Q0 b 1 -2e-3 me\n"), bad_);
  ASSERT_EQ(run.at("q").size(), 2U);
  EXPECT_EQ(run.at("q")[0].document, "a");
  EXPECT_EQ(run.at("q")[1].score, -2e-3);
}

TEST_F(Trec, NamesEveryBadLine) {
  read_run(file("q Q0 a 1 1.5 me\nq Q0 b 2 nan me\nq Q0 c 3 inf me\nq Q0 d 4 1,5 me\nq Q0 a 5 1 "
                "me\nq Q0 e\n"),
           bad_);
  EXPECT_EQ(bad_.count, 5);
  EXPECT_EQ(bad_.by_reason, (std::map<std::string, int64_t>{
                                {"document twice", 1}, {"not a result", 1}, {"not a score", 3}}));
  EXPECT_NE(bad_.first[0].find("f.txt:2: not a score: 'nan'"), std::string::npos) << bad_.first[0];
  BadRecords judged(BadRecords::Policy::kSkip);
  read_qrels(file("q 0 a 1\nq 0 a 2\nq 0 b 1.5\nq 0 c 128\nq a\n"), judged);
  EXPECT_EQ(judged.by_reason,
            (std::map<std::string, int64_t>{
                {"judged twice", 1}, {"not a judgment", 1}, {"not a relevance", 2}}));
  BadRecords strict(BadRecords::Policy::kFail);
  EXPECT_THROW(read_qrels(file("q 0 a 1\nq 0 a 2\n"), strict), DataError);
}

TEST_F(Trec, RefusesFilesWithoutOneGoodLine) {
  EXPECT_THROW(read_qrels(file(""), bad_), DataError);
  EXPECT_THROW(read_qrels(file("query-id\tcorpus-id\tscore\n"), bad_), DataError);
  EXPECT_THROW(read_run(file("\n\n"), bad_), DataError);
  EXPECT_THROW(read_run((dir_.path() / "absent").string(), bad_), UserError);
}

TEST_F(Trec, WrittenFilesReadBackAndKeepTiesApart) {
  const std::string path = dir_.path() / "out.run";
  // The next double after 1.0 must not become a tie.
  const TrecRun run{{"q", {{"a", 1.0}, {"b", 1.0000000000000002}, {"c", 1.0}}}};
  write_run(path, run, "me");
  EXPECT_EQ(read_file(path), "q Q0 b 1 1.0000000000000002 me\nq Q0 c 2 1 me\nq Q0 a 3 1 me\n");
  EXPECT_EQ(read_run(path, bad_).at("q")[0].score, 1.0000000000000002);
  const Qrels qrels{{"q", {{"a", 1}, {"b", 0}}}};
  write_qrels(path, qrels);
  EXPECT_EQ(read_qrels(path, bad_), qrels);
  EXPECT_THROW(write_qrels(path, {{"two words", {{"a", 1}}}}), UserError);
  EXPECT_THROW(write_run(path, run, ""), UserError);
  EXPECT_EQ(read_qrels(path, bad_), qrels) << "a refused write leaves what was there";
}

}  // namespace
}  // namespace contexture::data
