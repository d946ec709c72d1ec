#include "retriever/assembly.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace contexture::retriever {
namespace {

// Every document costs `document`, every input 1.
AssemblyProblem problem_of(std::vector<std::vector<int64_t>> documents, std::vector<size_t> sizes,
                           double document = 1.0) {
  AssemblyProblem out;
  out.input_cost.assign(documents.size(), 1.0);
  for (const auto& rows : documents) {
    for (const int64_t row : rows) out.document_cost[row] = document;
  }
  out.documents = std::move(documents);
  out.sizes = std::move(sizes);
  return out;
}

int64_t encoded(const AssemblyProblem& problem, const std::vector<size_t>& order) {
  int64_t out = 0;
  size_t next = 0;
  for (const size_t size : problem.sizes) {
    std::set<int64_t> rows;
    for (size_t i = 0; i < size; ++i, ++next)
      rows.insert(problem.documents[order[next]].begin(), problem.documents[order[next]].end());
    out += static_cast<int64_t>(rows.size());
  }
  return out;
}

// The least possible, over all ways to fill the microbatches.
int64_t fewest(const AssemblyProblem& problem) {
  std::vector<size_t> order(problem.documents.size());
  std::iota(order.begin(), order.end(), size_t{0});
  int64_t best = encoded(problem, order);
  while (std::next_permutation(order.begin(), order.end()))
    best = std::min(best, encoded(problem, order));
  return best;
}

TEST(GroupByDocuments, PutsTheReadersOfADocumentTogether) {
  const AssemblyProblem problem =
      problem_of({{1, 2}, {3, 4}, {1, 2}, {3, 4}, {1, 5}, {3, 6}}, {3, 3});
  const Assembly assembly = group_by_documents(problem);
  EXPECT_EQ(assembly.order, (std::vector<size_t>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(assembly.encoded, 6);
  EXPECT_EQ(assembly.encoded_as_arrived, 9);  // {1, 2, 3, 4} and {3, 4, 1, 5, 6}
}

TEST(GroupByDocuments, KeepsArrivalOrderWhereNothingIsShared) {
  const Assembly assembly = group_by_documents(problem_of({{1}, {2}, {3}, {4}, {5}}, {2, 2, 1}));
  EXPECT_EQ(assembly.order, (std::vector<size_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(assembly.encoded, assembly.encoded_as_arrived);
}

// Against all 40,320 orders of 8 inputs. A greedy search with swaps is no proof of the least: the
// sum over 40 problems may be a tenth above it, and none may be worse than arrival order.
TEST(GroupByDocuments, ComesNearTheFewestEncodings) {
  std::mt19937 random(7);
  int64_t found = 0, least = 0, arrived = 0;
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<std::vector<int64_t>> documents(8);
    for (auto& rows : documents) {
      std::set<int64_t> chosen;
      while (chosen.size() < 2) chosen.insert(static_cast<int64_t>(random() % 7));
      rows.assign(chosen.begin(), chosen.end());
    }
    AssemblyProblem problem = problem_of(std::move(documents), {3, 3, 2});
    problem.imbalance = 1.0;
    const Assembly assembly = group_by_documents(problem);
    std::vector<size_t> sorted = assembly.order;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i) EXPECT_EQ(sorted[i], i);
    EXPECT_EQ(assembly.encoded, encoded(problem, assembly.order));
    EXPECT_LE(assembly.encoded, assembly.encoded_as_arrived);
    found += assembly.encoded;
    arrived += assembly.encoded_as_arrived;
    least += fewest(problem);
  }
  EXPECT_LE(static_cast<double>(found), 1.1 * static_cast<double>(least)) << "arrived " << arrived;
}

// Four inputs of one document each take long: together they would make one microbatch slow.
TEST(GroupByDocuments, KeepsTheMicrobatchesBalanced) {
  AssemblyProblem problem =
      problem_of({{1}, {2}, {1}, {3}, {1}, {4}, {1}, {5}}, {4, 4}, /*document=*/0.1);
  problem.input_cost = {9, 1, 9, 1, 9, 1, 9, 1};
  const Assembly assembly = group_by_documents(problem);
  double first = 0.0;
  for (size_t i = 0; i < 4; ++i) first += problem.input_cost[assembly.order[i]];
  EXPECT_NEAR(first, 20.0,
              0.05 * 20.0 + 0.3);  // the mean, its allowance, and the documents' own cost
  problem.imbalance = 1.0;
  EXPECT_EQ(group_by_documents(problem).encoded, 5);
}

}  // namespace
}  // namespace contexture::retriever
