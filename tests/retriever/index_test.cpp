// The exact index and the ranking that all indexes share.
#include "retriever/index.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "core/error.h"
#include "vectors.h"

namespace contexture::retriever {
namespace {

using testing::contains;
using testing::message_of;
using testing::numbered_ids;
using testing::random_vectors;

Index flat(Metric metric, int64_t dim, std::span<const float> vectors) {
  IndexOptions options;
  options.metric = metric;
  return Index::build(options, dim, numbered_ids(static_cast<int64_t>(vectors.size()) / dim),
                      vectors);
}

std::vector<int64_t> rows_of(const Ranking& ranking) {
  std::vector<int64_t> rows;
  for (const Hit& hit : ranking) rows.push_back(hit.row);
  return rows;
}

// The plainest ranking: long double sums over everything. Rows are told apart by id on ties.
std::vector<int64_t> reference(Metric metric, const float* query, const std::vector<float>& vectors,
                               int64_t dim, int64_t k, const std::vector<std::string>& ids) {
  const int64_t n = static_cast<int64_t>(vectors.size()) / dim;
  std::vector<std::pair<long double, int64_t>> scored;
  for (int64_t row = 0; row < n; ++row) {
    long double dot = 0, x2 = 0, distance = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const long double x = vectors[row * dim + i], q = query[i];
      dot += x * q;
      x2 += x * x;
      distance += (x - q) * (x - q);
    }
    long double score = dot;
    if (metric == Metric::kCosine) score = dot / std::sqrt(x2);
    if (metric == Metric::kL2) score = -distance;
    scored.emplace_back(-score, row);
  }
  std::sort(scored.begin(), scored.end(), [&](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : ids[a.second] < ids[b.second];
  });
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < std::min(k, n); ++i) rows.push_back(scored[i].second);
  return rows;
}

TEST(ExactIndex, AgreesWithThePlainRankingForEveryMetricAndShape) {
  const int64_t n = 501;  // no multiple of any block
  for (const Metric metric : {Metric::kInnerProduct, Metric::kCosine, Metric::kL2}) {
    for (const int64_t dim : {1, 7, 16, 33, 96}) {
      // Random directions never tie in 33 dimensions; in 1 dimension cosine is +1 or -1 and all of
      // it is ties.
      const std::vector<float> vectors = random_vectors(n, dim, 1);
      const Index index = flat(metric, dim, vectors);
      for (const int64_t num_queries : {1, 2, 3, 8, 17, 40}) {
        const std::vector<float> queries = random_vectors(num_queries, dim, 2);
        const std::vector<Ranking> found = index.search(queries, 10);
        ASSERT_EQ(static_cast<int64_t>(found.size()), num_queries);
        for (int64_t q = 0; q < num_queries; ++q) {
          EXPECT_EQ(rows_of(found[q]),
                    reference(metric, &queries[q * dim], vectors, dim, 10, numbered_ids(n)))
              << metric_name(metric) << " dim " << dim << " query " << q;
        }
      }
    }
  }
}

// faiss#813, #1808, #563, pyserini#1255: a batch of 20 took another path than one of 19, and ties
// shuffled.
TEST(ExactIndex, RankingDoesNotDependOnTheBatch) {
  const int64_t n = 3000, dim = 48, num_queries = 64;
  std::vector<float> vectors = random_vectors(n, dim, 3);
  for (int64_t row = 1; row < n;
       row += 3) {  // a third of the rows repeat their neighbour: ties everywhere
    std::copy_n(&vectors[(row - 1) * dim], dim, &vectors[row * dim]);
  }
  const std::vector<float> queries = random_vectors(num_queries, dim, 4);
  for (const Metric metric : {Metric::kInnerProduct, Metric::kCosine, Metric::kL2}) {
    const Index index = flat(metric, dim, vectors);
    const std::vector<Ranking> together = index.search(queries, 11);
    for (const int64_t batch : {1, 19, 20, 64}) {
      for (int64_t first = 0; first < num_queries; first += batch) {
        const int64_t count = std::min(batch, num_queries - first);
        const auto part = index.search(std::span(queries).subspan(first * dim, count * dim), 11);
        for (int64_t q = 0; q < count; ++q) {
          ASSERT_EQ(rows_of(part[q]), rows_of(together[first + q]));
          for (size_t i = 0; i < part[q].size(); ++i) {
            ASSERT_EQ(part[q][i].score, together[first + q][i].score);
          }
        }
      }
    }
  }
}

TEST(ExactIndex, TiesGoById) {
  const int64_t dim = 24, n = 1000;
  const std::vector<float> one = random_vectors(1, dim, 5);
  std::vector<float> vectors;
  for (int64_t row = 0; row < n; ++row) vectors.insert(vectors.end(), one.begin(), one.end());
  const Index index = flat(Metric::kCosine, dim, vectors);
  const Ranking ranking = index.search(one, 5)[0];
  std::vector<std::string> ids = numbered_ids(n), found;
  std::sort(ids.begin(), ids.end());
  for (const Hit& hit : ranking) found.push_back(index.id(hit.row));
  EXPECT_EQ(found, std::vector<std::string>(ids.begin(), ids.begin() + 5));
}

// Scores one rounding of a float apart, around the k-th place: float sums can't order them, double
// ones do.
TEST(ExactIndex, OrdersScoresThatFloatsCannotTellApart) {
  const int64_t dim = 64, n = 400;
  const std::vector<float> query = random_vectors(1, dim, 6);
  std::vector<float> vectors;
  for (int64_t row = 0; row < n; ++row) {
    std::vector<float> x = query;
    x[row % dim] = std::nextafter(x[row % dim], (row % 2) ? 100.0f : -100.0f);
    x[(row * 7 + 1) % dim] *= 1.0f + 1e-6f * static_cast<float>(row % 5);
    vectors.insert(vectors.end(), x.begin(), x.end());
  }
  for (const Metric metric : {Metric::kInnerProduct, Metric::kL2}) {
    const Index index = flat(metric, dim, vectors);
    EXPECT_EQ(rows_of(index.search(query, 20)[0]),
              reference(metric, query.data(), vectors, dim, 20, numbered_ids(n)));
  }
}

// faiss#1016, #442: short lists were padded with id -1 and callers used it as a position.
TEST(ExactIndex, GivesAsManyHitsAsThereAreVectors) {
  const std::vector<float> vectors = random_vectors(3, 8, 7);
  const Index index = flat(Metric::kCosine, 8, vectors);
  const Ranking ranking = index.search(std::span(vectors).first(8), 10)[0];
  EXPECT_EQ(ranking.size(), 3u);
  EXPECT_EQ(ranking[0].row, 0);
  EXPECT_NEAR(ranking[0].score, 1.0, 1e-6);  // the stored vector's length is 1 up to float rounding
  const Index empty = flat(Metric::kCosine, 8, {});
  EXPECT_TRUE(empty.search(std::span(vectors).first(8), 10)[0].empty());
}

TEST(ExactIndex, NamesTheFirstBadRow) {
  std::vector<float> vectors = random_vectors(6, 4, 8);
  const auto build = [&] { flat(Metric::kCosine, 4, vectors); };
  vectors[5 * 4] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(
      contains(message_of<DataError>(build), "'doc-5' (row 5) holds an infinity at element 0"));
  vectors[3 * 4 + 2] = std::nanf("");
  EXPECT_TRUE(contains(message_of<DataError>(build), "'doc-3' (row 3) holds NaN at element 2"));
  std::fill_n(&vectors[2 * 4], 4, 0.0f);
  EXPECT_TRUE(contains(message_of<DataError>(build), "'doc-2' (row 2) is all zeros"));
  vectors[1 * 4] = 1e30f;
  EXPECT_TRUE(contains(message_of<DataError>(build), "'doc-1' (row 1) has length 1e+30"));
}

TEST(ExactIndex, ChecksQueriesAndLeavesTheIndexAloneWhenAnAddFails) {
  const std::vector<float> vectors = random_vectors(6, 4, 9);
  Index index = flat(Metric::kInnerProduct, 4, vectors);
  std::vector<float> queries = random_vectors(3, 4, 10);
  queries[2 * 4 + 1] = std::nanf("");
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { index.search(queries, 2); }), "Query 2 of the batch"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { index.search(std::span(queries).first(5), 2); }),
                       "dimension 4"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { index.search(std::span(queries).first(4), 0); }),
                       "k must be at least 1"));
  EXPECT_TRUE(contains(message_of<DataError>([&] {
                         index.add({"a", "b", "c"}, queries);
                       }),
                       "'c' (row 2)"));
  EXPECT_TRUE(contains(message_of<DataError>([&] {
                         index.add({"a", "doc-3"}, std::span(queries).first(8));
                       }),
                       "already has the id 'doc-3', at row 3"));
  EXPECT_TRUE(contains(message_of<DataError>([&] {
                         index.add({"a", "a"}, std::span(queries).first(8));
                       }),
                       "'a' occurs twice"));
  EXPECT_EQ(index.size(), 6);
  EXPECT_EQ(index.find("a"), std::nullopt);
}

TEST(ExactIndex, AddReplaceAndRebuildGiveTheIndexOfTheNewVectors) {
  const int64_t n = 50, dim = 12;
  std::vector<float> vectors = random_vectors(n, dim, 11);
  const std::vector<float> queries = random_vectors(9, dim, 12);
  for (const Metric metric : {Metric::kCosine, Metric::kL2}) {
    Index index = flat(metric, dim, std::span(vectors).first(40 * dim));
    const std::vector<std::string> ids = numbered_ids(n);
    index.add({ids.begin() + 40, ids.end()}, std::span(vectors).subspan(40 * dim));
    EXPECT_EQ(overlap(index.search(queries, 7), flat(metric, dim, vectors).search(queries, 7)),
              1.0);

    std::vector<float> edited = vectors;
    const std::vector<float> fresh = random_vectors(2, dim, 13);
    std::copy_n(fresh.begin(), dim, edited.begin() + 3 * dim);
    std::copy_n(fresh.begin() + dim, dim, edited.begin() + 44 * dim);
    index.replace(std::vector<int64_t>{3, 44}, fresh);
    const auto want = flat(metric, dim, edited).search(queries, 7);
    const auto got = index.search(queries, 7);
    for (size_t q = 0; q < want.size(); ++q) EXPECT_EQ(rows_of(got[q]), rows_of(want[q]));

    const std::vector<float> all = random_vectors(n, dim, 14);
    index.rebuild(all, "step-200");
    EXPECT_EQ(index.options().encoder_hash, "step-200");
    EXPECT_EQ(index.vectors(), flat(metric, dim, all).vectors());
    EXPECT_THROW(index.rebuild(std::span(all).first(dim), "x"), UserError);
  }
}

TEST(ExactIndex, RefusesQueriesOfAnotherEncoder) {
  IndexOptions options;
  options.encoder_hash = "aaa";
  const Index index = Index::build(options, 4, numbered_ids(2), random_vectors(2, 4, 15));
  index.require_encoder("aaa");
  EXPECT_TRUE(contains(message_of<UserError>([&] { index.require_encoder("bbb"); }),
                       "made by the encoder aaa, the queries come from bbb"));
}

TEST(ExactIndex, KnowsWhetherItsVectorsAreNormalised) {
  const std::vector<float> vectors = random_vectors(5, 8, 16);
  EXPECT_TRUE(flat(Metric::kCosine, 8, vectors).normalised());
  EXPECT_FALSE(flat(Metric::kInnerProduct, 8, vectors).normalised());
  EXPECT_TRUE(
      flat(Metric::kInnerProduct, 8, flat(Metric::kCosine, 8, vectors).vectors()).normalised());
}

TEST(Metrics, HaveNamesThatReadBack) {
  for (const Metric metric : {Metric::kInnerProduct, Metric::kCosine, Metric::kL2}) {
    EXPECT_EQ(parse_metric(metric_name(metric)), metric);
  }
  EXPECT_TRUE(
      contains(message_of<UsageError>([] { parse_metric("cos"); }), "inner_product, cosine or l2"));
}

// Two OpenMP runtimes in one process are two pools of spinning threads, which slow each other
// tenfold.
TEST(Process, HasOneOpenMpRuntime) {
  const std::vector<float> vectors = random_vectors(300, 16, 17);
  IndexOptions options;
  options.factory = "IVF4,Flat";
  Index::build(options, 16, numbered_ids(300), vectors).search(vectors, 3);
  std::set<std::string> runtimes;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path == std::string::npos) continue;
    const std::string name = line.substr(path);
    for (const char* runtime : {"libgomp", "libomp", "libiomp"}) {
      if (contains(name.substr(name.rfind('/') + 1), runtime)) runtimes.insert(name);
    }
  }
  EXPECT_EQ(runtimes.size(), 1u) << ::testing::PrintToString(runtimes);
}

}  // namespace
}  // namespace contexture::retriever
