// Retrieval utility against likelihoods computed one at a time: of inputs that read a single
// document, or none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tiny_world.h"
#include "train/evaluator.h"

namespace contexture::train {
namespace {

// log p(target | x, these documents), summed over the target, by a whole pass of its own.
double log_likelihood(Session& session, const PictureSet& set, const data::Example& example,
                      const std::vector<int64_t>& rows) {
  const PreparedInput prepared =
      session.encoder().encode(example, example.answers.front(), set.picture(example).get(), 0);
  model::Microbatch batch;
  batch.inputs.push_back({prepared.query, prepared.prompt, prepared.target, {}});
  for (const int64_t row : rows) {
    batch.inputs[0].documents.push_back(static_cast<int32_t>(batch.documents.size()));
    batch.documents.push_back(session.documents().sequence(row));
  }
  batch.readings.objectives = session.model().objectives().any();
  const parallel::Feeds feeds =
      model::make_feeds(session.model().config(), batch, at::kDouble, at::kCPU);
  const parallel::Pass pass(feeds);
  return parallel::Executor(session.model().blocks())
      .forward(pass, /*grad=*/false, {"target.log_prob"})
      .wire("target.log_prob")
      .sum()
      .item<double>();
}

class RetrievalUtility : public testing::TestWithParam<const char*> {};

TEST_P(RetrievalUtility, IsTheDifferenceOfLikelihoodsComputedApart) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.model.fusion = GetParam();
  config.eval.documents = 3;
  config.eval.batch_size = 3;  // the last batch is smaller
  if (config.model.fusion == "memory") config.retriever.objectives = {{"reader", 1}, {"adist", 1}};
  data::BadRecords bad;
  Session session(config, bad);
  session.make_retriever();
  PictureSet set(session.config(), "train.jsonl", {}, session.documents(), bad);
  set.set.examples[1].answers.clear();
  set.set.examples[2].answers.push_back("another one");
  set.set.examples[3].documents.clear();
  set.set.examples[4].documents = {"place:11"};  // about nothing that is asked
  std::vector<const data::Example*> first;
  for (size_t i = 0; i < 7; ++i) first.push_back(&set.set.examples[i]);
  const Evaluator evaluator(session);
  const auto answered = evaluator.answer(set, first, Reading::kRetrieved);
  const auto utility = evaluator.utility(set, answered);
  ASSERT_EQ(utility.size(), first.size());
  double sum = 0.0, by_rank = 0.0, gold = 0.0, largest = 0.0;
  bool elsewhere = false;  // a gold document that was not retrieved
  for (size_t i = 0; i < first.size(); ++i) {
    SCOPED_TRACE(first[i]->id);
    if (i == 1) {
      EXPECT_TRUE(utility[i].retrieved.empty());
      EXPECT_FALSE(utility[i].gold);
      continue;
    }
    const double none = log_likelihood(session, set, *first[i], {});
    ASSERT_EQ(utility[i].retrieved.size(), 3u);
    for (size_t k = 0; k < 3; ++k) {
      const int64_t row = answered[i].documents[k];
      const double want = log_likelihood(session, set, *first[i], {row}) - none;
      EXPECT_NEAR(utility[i].retrieved[k], want, 1e-10);
      sum += want / 3;
      by_rank += k == 1 ? want : 0.0;
      largest = std::max(largest, std::abs(want));
    }
    ASSERT_EQ(utility[i].gold.has_value(), i != 3);
    if (i == 3) continue;
    const int64_t row = session.corpus().row_of(first[i]->documents[0]);
    const double want = log_likelihood(session, set, *first[i], {row}) - none;
    EXPECT_NEAR(*utility[i].gold, want, 1e-10);
    gold += want;
    const auto& read = answered[i].documents;
    elsewhere = elsewhere || std::find(read.begin(), read.end(), row) == read.end();
  }
  EXPECT_GT(largest, 1e-3);
  EXPECT_TRUE(elsewhere);
  Json figures = Json::object();
  add_utility(utility, figures);
  const Json &means = figures.at("retrieval_utility"),
             &intervals = figures.at("intervals").at("retrieval_utility");
  EXPECT_NEAR(means.at("retrieved").get<double>(), sum / 6, 1e-10);
  EXPECT_NEAR(means.at("by_rank").at(1).get<double>(), by_rank / 6, 1e-10);
  EXPECT_NEAR(means.at("gold").get<double>(), gold / 5, 1e-10);
  EXPECT_EQ(means["by_rank"].size(), 3u);
  EXPECT_LT(intervals["retrieved"][0], means["retrieved"]);
  EXPECT_GT(intervals["retrieved"][1], means["retrieved"]);
  EXPECT_EQ(intervals["by_rank"].size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Modes, RetrievalUtility, testing::Values("memory", "fid", "prefix"));

TEST(UtilityFigures, AreLeftOutWhereNothingHasAnAnswer) {
  Json figures = Json::object();
  add_utility({{}, {}}, figures);
  EXPECT_TRUE(figures.empty());
}

}  // namespace
}  // namespace contexture::train
