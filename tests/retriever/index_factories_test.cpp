// Approximate indexes: every one is judged against the exact one.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "retriever/index.h"
#include "vectors.h"

namespace contexture::retriever {
namespace {

using testing::contains;
using testing::message_of;
using testing::numbered_ids;
using testing::random_vectors;

Index built(const std::string& factory, Metric metric, int64_t dim, std::span<const float> vectors,
            const std::string& search = "") {
  IndexOptions options;
  options.factory = factory;
  options.metric = metric;
  options.search = search;
  return Index::build(options, dim, numbered_ids(static_cast<int64_t>(vectors.size()) / dim),
                      vectors);
}

void expect_equal(const std::vector<Ranking>& a, const std::vector<Ranking>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t q = 0; q < a.size(); ++q) {
    ASSERT_EQ(a[q].size(), b[q].size());
    for (size_t i = 0; i < a[q].size(); ++i) {
      EXPECT_EQ(a[q][i].row, b[q][i].row) << "query " << q << " place " << i;
      EXPECT_EQ(a[q][i].score, b[q][i].score) << "query " << q << " place " << i;
    }
  }
}

TEST(ApproximateIndex, WithEveryListProbedIsTheExactOne) {
  const int64_t n = 1000, dim = 32;
  const std::vector<float> vectors = random_vectors(n, dim, 1),
                           queries = random_vectors(21, dim, 2);
  for (const Metric metric : {Metric::kInnerProduct, Metric::kCosine, Metric::kL2}) {
    const auto exact = built("Flat", metric, dim, vectors).search(queries, 10);
    expect_equal(built("IVF16,Flat", metric, dim, vectors, "nprobe=16").search(queries, 10), exact);
    expect_equal(built("IDMap,Flat", metric, dim, vectors).search(queries, 10), exact);
    expect_equal(built("IVF1,Flat", metric, dim, vectors).search(queries, 10), exact);
  }
}

struct Judged {
  const char* factory;
  const char* search;
  double least_overlap;  // measured for these vectors, less a margin for other BLAS libraries
};

// Random vectors are the hardest case: nothing clusters.
const Judged kJudged[] = {
    {"IVF16,Flat", "nprobe=8", 0.7},
    {"HNSW32", "", 0.9},
    {"SQ8", "", 0.9},
    {"PQ16", "", 0.3},
    {"OPQ8_32,IVF8,PQ8x4fs,RFlat", "", 0.1},
    {"IVF8,PQ16,RFlat", "nprobe=8", 0.8},
    {"PCA16,IVF8,Flat,RFlat", "nprobe=8", 0.5},
    {"IVF16_HNSW8,Flat", "nprobe=8", 0.7},
};

TEST(ApproximateIndex, FindsMostOfWhatTheExactOneFinds) {
  const int64_t n = 2000, dim = 32;
  const std::vector<float> vectors = random_vectors(n, dim, 3),
                           queries = random_vectors(40, dim, 4);
  const auto exact = built("Flat", Metric::kCosine, dim, vectors).search(queries, 10);
  for (const Judged& judged : kJudged) {
    const Index index = built(judged.factory, Metric::kCosine, dim, vectors, judged.search);
    EXPECT_EQ(index.built_factory(), judged.factory);
    const double found = overlap(index.search(queries, 10), exact);
    EXPECT_GE(found, judged.least_overlap) << judged.factory;
    std::printf("  %-30s overlap with the exact index %.3f\n", judged.factory, found);
  }
}

TEST(ApproximateIndex, RankingDoesNotDependOnTheBatchNorOnWhenItWasBuilt) {
  const int64_t n = 1200, dim = 32, num_queries = 64;
  const std::vector<float> vectors = random_vectors(n, dim, 5);
  const std::vector<float> queries = random_vectors(num_queries, dim, 6);
  for (const Judged& judged : kJudged) {
    const Index index = built(judged.factory, Metric::kCosine, dim, vectors, judged.search);
    const auto together = index.search(queries, 7);
    for (const int64_t batch : {1, 19, 20}) {
      for (int64_t first = 0; first < num_queries; first += batch) {
        const int64_t count = std::min(batch, num_queries - first);
        expect_equal(index.search(std::span(queries).subspan(first * dim, count * dim), 7),
                     {together.begin() + first, together.begin() + first + count});
      }
    }
    expect_equal(
        built(judged.factory, Metric::kCosine, dim, vectors, judged.search).search(queries, 7),
        together);
  }
}

// faiss#414, #2513, #1637: training throws with fewer points than centroids.
TEST(ApproximateIndex, FallsBackToFlatWhenTooFewVectorsCanTrainIt) {
  const int64_t dim = 16;
  for (const int64_t n : {1, 10, 200}) {
    const std::vector<float> vectors = random_vectors(n, dim, 7);
    for (const char* factory : {"IVF1024,Flat", "PQ8", "OPQ8,IVF4,PQ8", "HNSW16_PQ8"}) {
      ::testing::internal::CaptureStderr();
      const Index index = built(factory, Metric::kCosine, dim, vectors);
      const std::string log = ::testing::internal::GetCapturedStderr();
      EXPECT_EQ(index.built_factory(), "Flat") << factory << " with " << n;
      EXPECT_EQ(index.options().factory, factory);
      EXPECT_TRUE(contains(log, factory) && contains(log, "there are " + std::to_string(n))) << log;
      EXPECT_EQ(index.search(vectors, 10)[0].size(), static_cast<size_t>(std::min<int64_t>(n, 10)));
      EXPECT_EQ(index.search(vectors, 10)[0][0].row, 0);
    }
  }
}

TEST(ApproximateIndex, WarnsOnceWhenClustersAreThin) {
  const std::vector<float> vectors = random_vectors(100, 8, 8);
  ::testing::internal::CaptureStderr();
  built("IVF64,Flat", Metric::kCosine, 8, vectors);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(log, "best on 2496 vectors or more") && contains(log, "there are 100"))
      << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

// faiss#1016: k beyond what the probed lists hold was padded with -1.
TEST(ApproximateIndex, NeverReturnsPadding) {
  const int64_t n = 120, dim = 8;
  const std::vector<float> vectors = random_vectors(n, dim, 9),
                           queries = random_vectors(30, dim, 10);
  for (const char* factory : {"IVF40,Flat", "HNSW4", "SQ8", "IVF40,SQ8", "IVF16,PQ4x4fs,RFlat"}) {
    const Index index = built(factory, Metric::kL2, dim, vectors);
    for (const int64_t k : {1, 10, 119, 500}) {
      for (const Ranking& ranking : index.search(queries, k)) {
        EXPECT_EQ(ranking.size(), static_cast<size_t>(std::min(k, n)));
        std::set<int64_t> rows;
        for (const Hit& hit : ranking) rows.insert(hit.row);
        EXPECT_EQ(rows.size(), ranking.size()) << "repeated rows in " << factory;
        EXPECT_GE(*rows.begin(), 0);
        EXPECT_LT(*rows.rbegin(), n);
      }
    }
  }
}

// faiss#1097, #1201, #1311: 200 identical vectors, four lists, one probe: FAISS 1.7.3 returns -1
// only.
TEST(ApproximateIndex, FindsIdenticalVectorsInAStableOrder) {
  const int64_t dim = 16;
  const std::vector<float> one = random_vectors(1, dim, 11);
  std::vector<float> vectors;
  for (int row = 0; row < 200; ++row) vectors.insert(vectors.end(), one.begin(), one.end());
  for (const char* factory : {"IVF4,Flat", "HNSW8"}) {
    for (const Metric metric : {Metric::kInnerProduct, Metric::kCosine, Metric::kL2}) {
      const Index index = built(factory, metric, dim, vectors);
      const Ranking first = index.search(one, 5)[0];
      std::set<int64_t> rows;
      for (const Hit& hit : first) rows.insert(hit.row);
      EXPECT_EQ(rows.size(), 5u);
      EXPECT_TRUE(std::is_sorted(first.begin(), first.end(), [&](const Hit& a, const Hit& b) {
        return index.id(a.row) < index.id(b.row);
      }));
      for (int again = 0; again < 5; ++again) expect_equal(index.search(one, 5), {first});
    }
  }
}

TEST(ApproximateIndex, ReplacesSingleVectorsWhereTheFactoryCan) {
  const int64_t n = 400, dim = 16;
  const std::vector<float> vectors = random_vectors(n, dim, 12), fresh = random_vectors(2, dim, 13);
  for (const char* factory : {"IVF8,Flat", "SQ8", "IVF4,PQ8,RFlat", "OPQ8,IVF4,SQ8", "PQ8x4"}) {
    Index index = built(factory, Metric::kCosine, dim, vectors);
    index.replace(std::vector<int64_t>{5, 300}, fresh);
    const auto found = index.search(fresh, 1);
    EXPECT_EQ(found[0][0].row, 5) << factory;
    EXPECT_EQ(found[1][0].row, 300) << factory;
    EXPECT_EQ(index.size(), n);
  }
  Index graph = built("HNSW8", Metric::kCosine, dim, vectors);
  EXPECT_TRUE(contains(message_of<UserError>([&] {
                         graph.replace(std::vector<int64_t>{5}, std::span(fresh).first(dim));
                       }),
                       "Rebuild it"));
}

TEST(ApproximateIndex, RebuildsAndAdds) {
  const int64_t n = 400, dim = 16;
  const std::vector<float> old = random_vectors(n, dim, 14), fresh = random_vectors(n, dim, 15);
  for (const char* factory : {"IVF8,Flat", "HNSW8", "IVF4,PQ8"}) {
    Index index = built(factory, Metric::kCosine, dim, old);
    index.rebuild(fresh, "new");
    expect_equal(index.search(fresh, 3),
                 built(factory, Metric::kCosine, dim, fresh).search(fresh, 3));
    index.add({"one more"}, random_vectors(1, dim, 16));
    EXPECT_EQ(index.size(), n + 1);
    EXPECT_EQ(index.search(random_vectors(1, dim, 16), 1)[0][0].row, n);
  }
}

TEST(ApproximateIndex, SaysWhatIsWrongWithAFactoryOrParameter) {
  const std::vector<float> vectors = random_vectors(300, 16, 17);
  const auto build = [&](const char* factory, const char* search = "") {
    return message_of<UserError>([&] { built(factory, Metric::kCosine, 16, vectors, search); });
  };
  EXPECT_TRUE(contains(build("Flatt"), "'Flatt'"));
  EXPECT_TRUE(contains(build("IVF99999999999999999999,Flat"), "'IVF99999999999999999999,Flat'"));
  EXPECT_TRUE(contains(build("PQ7"), "'PQ7'"));  // 16 is no multiple of 7
  EXPECT_TRUE(contains(build("IVF4,PQ8+4"), "not implemented for inner product"));
  EXPECT_TRUE(contains(build("IVF4,Flat", "probes=3"), "'probes=3'"));
  EXPECT_TRUE(contains(build("Flat", "nprobe=3"), "no search parameters"));
}

}  // namespace
}  // namespace contexture::retriever
