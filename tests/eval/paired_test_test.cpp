#include "eval/paired_test.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "eval/score_table.h"

namespace contexture::eval {
namespace {

TEST(PairedTest, ExactValuesEqualTheReferences) {
  const Json golden = read_json_file(CONTEXTURE_SOURCE_DIR "/tests/golden/paired_tests.json");
  for (const Json& c : golden["cases"]) {
    const auto a = c["a"].get<std::vector<double>>(), b = c["b"].get<std::vector<double>>();
    const PairedTest test = paired_test(a, b);
    EXPECT_TRUE(test.exact);
    EXPECT_NEAR(test.difference, c["difference"].get<double>(), 1e-12);  // rounding of one sum
    EXPECT_NEAR(test.p_value, c["p"].get<double>(), 1e-12) << c.dump();
    EXPECT_EQ(static_cast<size_t>(test.better + test.worse + test.same), a.size());
  }
}

TEST(PairedTest, DrawnPatternsComeNearTheExactValueAndRepeat) {
  std::vector<double> a, b;
  for (int i = 0; i < 14; ++i) {
    a.push_back(i % 3);
    b.push_back((i * 5 + 1) % 4 * 0.5);
  }
  PairedTestOptions drawn;
  drawn.exact_up_to = 0;
  const PairedTest exact = paired_test(a, b), approximate = paired_test(a, b, drawn);
  EXPECT_TRUE(exact.exact);
  EXPECT_FALSE(approximate.exact);
  // Five standard errors of a share estimated from 10,000 draws.
  EXPECT_NEAR(approximate.p_value, exact.p_value, 5 * 0.5 / 100.0);
  EXPECT_EQ(approximate.p_value, paired_test(a, b, drawn).p_value);
}

TEST(PairedTest, AClearDifferenceIsNeverCertain) {
  const std::vector<double> a(100, 1.0), b(100, 0.0);
  EXPECT_EQ(paired_test(a, b).p_value, 1.0 / 10001.0);
}

TEST(PairedTest, UnevenEmptyAndNonFiniteScoresAreRefused) {
  const std::vector<double> one{1.0}, two{1.0, 2.0}, none,
      nan{std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THROW(paired_test(one, two), UserError);
  EXPECT_THROW(paired_test(none, none), UserError);
  EXPECT_THROW(paired_test(one, nan), UserError);
}

ScoreTable table(std::vector<std::string> ids, std::vector<double> values) {
  ScoreTable out;
  out.ids = std::move(ids);
  out.add("em", 100.0).values = std::move(values);
  return out;
}

TEST(CompareTables, AlignsByIdAndReportsBothSides) {
  const ScoreTable a = table({"1", "2", "3", "4"}, {1, 1, 1, 0}),
                   b = table({"4", "3", "2", "1"}, {0, 0, 0, 1});
  const Json em = compare_tables(a, b, {})["measures"]["em"];
  EXPECT_EQ(em["a"], 75.0);
  EXPECT_EQ(em["b"], 25.0);
  EXPECT_EQ(em["difference"], 50.0);
  EXPECT_EQ(em["better"], 2);
  EXPECT_EQ(em["same"], 2);
  EXPECT_EQ(em["p"], 0.5) << "++ and -- of four patterns";
  EXPECT_LE(em["low"].get<double>(), 50.0);
  EXPECT_GE(em["high"].get<double>(), 50.0);
}

TEST(CompareTables, NamesTheIdsThatOneSideLacks) {
  try {
    compare_tables(table({"1", "2"}, {1, 1}), table({"1", "3"}, {1, 1}), {});
    FAIL();
  } catch (const DataError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("2 (first only)"), std::string::npos) << text;
    EXPECT_NE(text.find("3 (second only)"), std::string::npos) << text;
  }
}

TEST(TableJson, GivesScaledMeansAndUnscaledLines) {
  const ScoreTable t = table({"1", "2"}, {1, 0});
  const Json json = table_json(t, {});
  EXPECT_EQ(json["n"], 2);
  EXPECT_EQ(json["measures"]["em"]["mean"], 50.0);
  EXPECT_EQ(table_lines(t), "{\"em\":1.0,\"id\":\"1\"}\n{\"em\":0.0,\"id\":\"2\"}\n");
}

}  // namespace
}  // namespace contexture::eval
