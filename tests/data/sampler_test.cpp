#include "data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"

namespace contexture::data {
namespace {

std::vector<std::string> singles(size_t n) { return std::vector<std::string>(n); }

std::vector<std::vector<std::string>> only(std::vector<std::string> dataset) {
  return {std::move(dataset)};
}

TEST(Sampler, GivesEveryExampleOnceAnEpoch) {
  const Sampler sampler({.seed = 5, .batch_size = 7}, only(singles(35)));
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (int64_t step = epoch * 5; step < epoch * 5 + 5; ++step) {
      for (const Pick& pick : sampler.batch_at(step)) {
        EXPECT_EQ(pick.epoch, epoch);
        seen.insert(pick.index);
      }
    }
    EXPECT_EQ(seen.size(), 35U);
  }
}

TEST(Sampler, DependsOnSeedAndStepAlone) {
  const Sampler a({.seed = 5, .batch_size = 8}, only(singles(100)));
  const Sampler b({.seed = 5, .batch_size = 8}, only(singles(100)));
  const Sampler other({.seed = 6, .batch_size = 8}, only(singles(100)));
  std::vector<std::vector<Pick>> forward;
  for (int64_t step = 0; step < 50; ++step) forward.push_back(a.batch_at(step));
  // Backwards, on another object: as a run that resumes at any step.
  for (int64_t step = 49; step >= 0; --step)
    EXPECT_EQ(b.batch_at(step), forward[static_cast<size_t>(step)]);
  EXPECT_NE(other.batch_at(0), forward[0]);
  EXPECT_NE(forward[0], forward[13]);  // the next epoch has an order of its own
}

// Case 9: any layout sees the same global batch.
TEST(Sampler, SharesOneGlobalBatchAmongAnyNumberOfRanks) {
  const Sampler sampler({.seed = 1, .batch_size = 12}, only(singles(40)));
  const auto batch = sampler.batch_at(3);
  for (const int ranks : {1, 2, 3, 4, 6, 12}) {
    std::vector<Pick> joined;
    for (int r = 0; r < ranks; ++r) {
      const auto part = rank_share(batch, r, ranks);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, batch);
  }
  EXPECT_THROW(rank_share(batch, 0, 5), UserError);
  EXPECT_THROW(rank_share({}, 0, 4), UserError);
}

// Case 7: fewer examples than a batch, and none at all.
TEST(Sampler, WrapsADatasetThatIsSmallerThanABatch) {
  const Sampler sampler({.seed = 1, .batch_size = 16}, only(singles(3)));
  std::map<int64_t, int> counts;
  for (const Pick& pick : sampler.batch_at(0)) ++counts[pick.index];
  EXPECT_EQ(counts.size(), 3U);
  for (const auto& [index, n] : counts) EXPECT_GE(n, 5) << index;
  EXPECT_NEAR(sampler.epochs_at(0, 1), 16.0 / 3.0, 1e-12);  // double rounding
}

TEST(Sampler, RefusesWhatCannotWorkInsteadOfWaiting) {
  EXPECT_THROW(Sampler({.batch_size = 4}, only(singles(0))), UserError);
  EXPECT_THROW(Sampler({.batch_size = 4}, std::vector<std::vector<std::string>>{}), UserError);
  EXPECT_THROW(Sampler({.batch_size = 5, .group_size = 2}, only(singles(9))), UserError);
  EXPECT_THROW(Sampler({.batch_size = 4, .weights = {0.0}}, only(singles(9))), UserError);
  EXPECT_THROW(Sampler({.batch_size = 4, .weights = {1.0, 2.0}}, only(singles(9))), UserError);
}

// 60 examples of 12 documents, in windows of four steps of ten.
TEST(Sampler, AWindowBringsReadersOfADocumentTogether) {
  std::vector<std::string> gold;
  for (int i = 0; i < 60; ++i) gold.push_back(concat("d", i % 12));
  const Sampler plain({.seed = 3, .batch_size = 10}, only(gold));
  const Sampler sorted({.seed = 3, .batch_size = 10, .window = 4}, only(gold));
  size_t distinct_plain = 0, distinct_sorted = 0;
  for (int64_t window = 0; window < 3; ++window) {
    std::multiset<std::pair<int64_t, int64_t>> drawn, dealt;  // index, epoch
    for (int64_t step = 4 * window; step < 4 * window + 4; ++step) {
      const auto count = [&](const Sampler& sampler, auto& into) {
        std::set<int64_t> documents;
        const std::vector<Pick> picks = sampler.batch_at(step);
        EXPECT_EQ(picks.size(), 10U);
        for (const Pick& pick : picks) {
          into.emplace(pick.index, pick.epoch);
          documents.insert(pick.index % 12);
        }
        return documents.size();
      };
      distinct_plain += count(plain, drawn);
      distinct_sorted += count(sorted, dealt);
    }
    EXPECT_EQ(drawn, dealt);
  }
  // Sorted, forty examples of at most twelve documents fall into four steps: no more than fifteen
  // (step, document) pairs a window.
  EXPECT_LE(distinct_sorted, 3U * 15U);
  EXPECT_GT(distinct_plain, distinct_sorted);
  EXPECT_NE(sorted.batch_at(1), sorted.batch_at(2));
  EXPECT_THROW(Sampler({.seed = 3, .batch_size = 10, .window = 0}, only(gold)), UserError);
}

TEST(EvalBatches, CoverEverythingOnceEvenWhenOneBatchIsTooMuch) {
  using Ranges = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(eval_batches(3, 16), (Ranges{{0, 3}}));
  EXPECT_EQ(eval_batches(5, 2), (Ranges{{0, 2}, {2, 4}, {4, 5}}));
  EXPECT_TRUE(eval_batches(0, 2).empty());
}

TEST(Sampler, MixesDatasetsByTheirWeightsExactly) {
  const Sampler sampler({.seed = 3, .batch_size = 10, .weights = {0.7, 0.3}},
                        {singles(14), singles(1000)});
  std::map<int, int> counts;
  std::map<int64_t, int> of_first;
  for (int64_t step = 0; step < 100; ++step) {
    for (const Pick& pick : sampler.batch_at(step)) {
      ++counts[pick.dataset];
      if (pick.dataset == 0) ++of_first[pick.index];
    }
  }
  EXPECT_EQ(counts[0], 700);
  EXPECT_EQ(counts[1], 300);
  EXPECT_EQ(of_first.size(), 14U);
  for (const auto& [index, n] : of_first)
    EXPECT_EQ(n, 50) << index;  // 700 draws of 14: whole epochs
}

TEST(Sampler, GivesEveryPositiveWeightAPlace) {
  const Sampler sampler({.seed = 3, .batch_size = 1, .weights = {1e-6, 1.0, 0.0}},
                        {singles(2), singles(2), singles(2)});
  EXPECT_GT(sampler.share(0), 0.0);
  EXPECT_EQ(sampler.share(2), 0.0);
}

TEST(Sampler, GroupsExamplesThatShareAGoldDocument) {
  std::vector<std::string> gold;
  for (int d = 0; d < 10; ++d) {
    for (int i = 0; i <= d; ++i)
      gold.push_back("doc" + std::to_string(d));  // 1 to 10 examples each
  }
  const Sampler sampler({.seed = 2, .batch_size = 12, .group_size = 4}, only(gold));
  std::set<int64_t> seen;
  const int64_t steps = (sampler.units(0) + 2) / 3;
  for (int64_t step = 0; step < steps; ++step) {
    const auto batch = sampler.batch_at(step);
    ASSERT_EQ(batch.size(), 12U);
    for (size_t g = 0; g < 12; g += 4) {
      std::set<int64_t> in_group;
      for (size_t i = g; i < g + 4; ++i) {
        EXPECT_EQ(gold[static_cast<size_t>(batch[i].index)],
                  gold[static_cast<size_t>(batch[g].index)]);
        in_group.insert(batch[i].index);
        seen.insert(batch[i].index);
      }
      const auto members = static_cast<size_t>(
          std::count(gold.begin(), gold.end(), gold[static_cast<size_t>(batch[g].index)]));
      EXPECT_EQ(in_group.size(),
                std::min<size_t>(4, members));  // repeats only where there are too few
    }
  }
  EXPECT_EQ(seen.size(), gold.size());
}

}  // namespace
}  // namespace contexture::data
