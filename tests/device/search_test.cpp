// An exact index that is searched on a device ranks as one that is searched on the CPU: the same
// rows, the same bits of their scores. The code is also run on tensors of the CPU.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>

#include "device/devices.h"
#include "retriever/index.h"
#include "retriever/vectors.h"
#include "train/session.h"
#include "train/tiny_world.h"

namespace contexture::retriever {
namespace {

using testing::numbered_ids;
using testing::random_vectors;

constexpr int64_t kDim = 40;
constexpr int64_t kSmall = 16 << 10;  // bytes of scores: blocks of 16 rows for 256 queries

Index index_of(Metric metric, const std::vector<float>& vectors, const std::string& factory) {
  IndexOptions options;
  options.metric = metric;
  options.factory = factory;
  return Index::build(options, kDim, numbered_ids(static_cast<int64_t>(vectors.size()) / kDim),
                      vectors);
}

// Every third vector is its neighbour's again.
std::vector<float> with_twins(int64_t n) {
  std::vector<float> vectors = random_vectors(n, kDim, 1);
  for (int64_t row = 1; row < n; row += 3)
    std::copy_n(&vectors[(row - 1) * kDim], kDim, &vectors[row * kDim]);
  return vectors;
}

void expect_same(const std::vector<Ranking>& got, const std::vector<Ranking>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t q = 0; q < want.size(); ++q) {
    ASSERT_EQ(got[q].size(), want[q].size()) << "query " << q;
    for (size_t i = 0; i < want[q].size(); ++i) {
      ASSERT_EQ(got[q][i].row, want[q][i].row) << "query " << q << " place " << i;
      ASSERT_EQ(got[q][i].score, want[q][i].score) << "query " << q << " place " << i;
    }
  }
}

class Search : public ::testing::TestWithParam<std::string> {
 protected:
  at::Device device() const { return GetParam() == "cpu" ? at::kCPU : device_named(GetParam()); }
  static constexpr Metric kMetrics[] = {Metric::kInnerProduct, Metric::kCosine, Metric::kL2};
};

TEST_P(Search, RanksAndScoresAsOnTheCpu) {
  SKIP_WITHOUT(GetParam());
  const int64_t n = 2003;
  const std::vector<float> vectors = with_twins(n);
  for (const Metric metric : kMetrics) {
    const Index want = index_of(metric, vectors, "Flat");
    Index got = index_of(metric, vectors, "Flat");
    for (const int64_t bytes : {kSmall, int64_t{64} << 20}) {
      got.search_on(device(), bytes);
      for (const int64_t num_queries : {1, 16, 256, 300}) {
        const std::vector<float> queries = random_vectors(num_queries, kDim, 2);
        for (const int64_t k : {int64_t{1}, int64_t{11}, num_queries > 16 ? 100 : n + 5}) {
          SCOPED_TRACE(std::string(metric_name(metric)) + ", " + std::to_string(num_queries) +
                       " queries, k " + std::to_string(k));
          expect_same(got.search(queries, k), want.search(queries, k));
        }
      }
    }
  }
}

// More rows than are fetched score alike, or too nearly so for a float: all have to be ranked. The
// ids' order is not that of the rows.
TEST_P(Search, RanksMoreTiesThanItFetches) {
  SKIP_WITHOUT(GetParam());
  const int64_t n = 900;
  std::vector<float> queries = random_vectors(3, kDim, 3);
  std::vector<float> vectors = random_vectors(n, kDim, 4);
  for (int64_t row = 100; row < n; ++row) {
    float* x = &vectors[row * kDim];
    std::copy_n(queries.data(), kDim, x);
    if (row >= 500) continue;
    x[row % kDim] = std::nextafter(x[row % kDim], row % 2 ? 100.0f : -100.0f);
    x[(row * 7 + 1) % kDim] *= 1.0f + 1e-7f * static_cast<float>(row % 5);
  }
  for (const Metric metric : kMetrics) {
    SCOPED_TRACE(metric_name(metric));
    const Index want = index_of(metric, vectors, "Flat");
    Index got = index_of(metric, vectors, "Flat");
    for (const int64_t bytes : {kSmall, int64_t{64} << 20}) {
      got.search_on(device(), bytes);
      for (const int64_t k : {1, 5, 60, 850})
        expect_same(got.search(queries, k), want.search(queries, k));
    }
  }
}

TEST_P(Search, FollowsEveryChange) {
  SKIP_WITHOUT(GetParam());
  const int64_t n = 500;
  const std::vector<float> vectors = random_vectors(n, kDim, 5),
                           queries = random_vectors(9, kDim, 6), fresh = random_vectors(4, kDim, 7),
                           all = random_vectors(n + 4, kDim, 8);
  for (const Metric metric : kMetrics) {
    SCOPED_TRACE(metric_name(metric));
    Index want = index_of(metric, vectors, "Flat"), got = index_of(metric, vectors, "Flat");
    got.search_on(device(), kSmall);
    const auto both = [&](const auto& change) {
      change(want);
      change(got);
      expect_same(got.search(queries, 7), want.search(queries, 7));
    };
    both([&](Index& index) { index.add({"a", "b", "c", "d"}, fresh); });
    const std::vector<int64_t> rows{17, 18, 3, 502};
    std::vector<float> edited = queries;  // so that they are found
    edited.resize(4 * kDim);
    both([&](Index& index) { index.replace(rows, edited); });
    EXPECT_EQ(got.search(std::span(queries).first(kDim), 1)[0][0].row, 17);
    both([&](Index& index) { index.rebuild(all, ""); });
  }
}

TEST_P(Search, LeavesOtherFactoriesOnTheCpu) {
  SKIP_WITHOUT(GetParam());
  const std::vector<float> vectors = random_vectors(500, kDim, 9),
                           queries = random_vectors(4, kDim, 10);
  const Index want = index_of(Metric::kCosine, vectors, "IVF4,Flat");
  Index got = index_of(Metric::kCosine, vectors, "IVF4,Flat");
  const int64_t before = shadow::operations();
  got.search_on(device());
  expect_same(got.search(queries, 7), want.search(queries, 7));
  EXPECT_EQ(shadow::operations(), before);
}

TEST_P(Search, OfARunIsOnItsDevice) {
  SKIP_WITHOUT(GetParam());
  const train::TinyWorld world;
  train::RunConfig config = world.config();
  config.run.device = GetParam();
  data::BadRecords bad(data::BadRecords::Policy::kFail);
  train::Session session(config, bad);
  session.make_retriever();
  const Retriever& retriever = session.retriever();
  const std::vector<float> vectors = retriever.index().vectors();
  IndexOptions options;
  options.metric = Metric::kInnerProduct;
  std::vector<std::string> ids;
  for (int64_t row = 0; row < retriever.index().size(); ++row)
    ids.push_back(retriever.index().id(row));
  const Index want = Index::build(options, retriever.index().dim(), ids, vectors);
  const at::Tensor queries =
      at::tensor(at::ArrayRef<float>(vectors), at::kFloat).view({want.size(), want.dim()});
  const int64_t before = shadow::operations();
  expect_same(retriever.search(queries, 5), want.search(vectors, 5));
  EXPECT_EQ(shadow::operations() > before, GetParam() == "shadow");
}

INSTANTIATE_TEST_SUITE_P(Devices, Search, ::testing::Values("cpu", "shadow", "cuda"),
                         [](const auto& info) { return info.param; });

TEST(SearchMemory, OfScoresStaysWithinTheBudget) {
  const int64_t n = 6000, num_queries = 64, budget = 128 << 10;  // all scores: 1.5 MB
  const std::vector<float> queries = random_vectors(num_queries, kDim, 12);
  std::vector<float> alike;
  for (int64_t row = 0; row < n; ++row)
    alike.insert(alike.end(), queries.begin(), queries.begin() + kDim);
  for (const std::vector<float>& vectors : {random_vectors(n, kDim, 11), alike}) {
    Index index = index_of(Metric::kL2, vectors, "Flat");
    index.search_on(shadow::device(), budget);
    const int64_t before = shadow::bytes();
    EXPECT_GE(before, n * (kDim + 1) * static_cast<int64_t>(sizeof(float)));
    shadow::reset_peak();
    (void)index.search(queries, 3);
    const int64_t took = shadow::peak_bytes() - before;
    EXPECT_GT(took, budget / 2);
    EXPECT_LT(took, 2 * budget + (64 << 10));  // and the queries
    EXPECT_EQ(shadow::bytes(), before);
  }
}

// A refresh may come from another thread's stream than the searches do.
TEST(SearchStreams, AreOrderedByTheIndex) {
  const c10::impl::VirtualGuardImpl guard(at::kPrivateUse1);
  const auto on_a_stream = [&](const auto& work) {
    const c10::StreamGuard own(guard.getStreamFromGlobalPool(shadow::device()));
    work();
  };
  const std::vector<float> vectors = random_vectors(200, kDim, 13),
                           fresh = random_vectors(200, kDim, 14),
                           queries = random_vectors(3, kDim, 15);
  Index index = index_of(Metric::kL2, vectors, "Flat");
  on_a_stream([&] { index.search_on(shadow::device(), kSmall); });
  on_a_stream([&] {
    expect_same(index.search(queries, 5),
                index_of(Metric::kL2, vectors, "Flat").search(queries, 5));
    index.rebuild(fresh, "");
  });
  on_a_stream([&] {
    expect_same(index.search(queries, 5), index_of(Metric::kL2, fresh, "Flat").search(queries, 5));
  });
}

}  // namespace
}  // namespace contexture::retriever
