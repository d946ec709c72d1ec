// Matrices in pieces of rows: found by name, cut anew, joined, and refused where rows are missing.
#include "parallel/row_pieces.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace contexture::parallel {
namespace {

at::Tensor counted(int64_t rows, int64_t first = 0) {
  return at::arange(3 * first, 3 * (first + rows), at::kFloat).view({rows, 3});
}

TEST(RowPieces, AnyRowsComeOutOfAnyPieces) {
  const at::Tensor whole = counted(10);
  for (const std::vector<int64_t>& cuts :
       {std::vector<int64_t>{0, 10}, {0, 4, 4, 10}, {0, 1, 2, 9, 10}}) {
    NamedTensors tensors{
        {"other@3", counted(1)}, {"vectors@", counted(1)}, {"vectors@x", counted(1)}};
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      RowPieces(cuts[c], whole.slice(0, cuts[c], cuts[c + 1])).put(tensors, "vectors");
    }
    const RowPieces pieces = RowPieces::find(tensors, "vectors");
    EXPECT_EQ(pieces.rows(), 10);
    for (int64_t begin = 0; begin <= 10; ++begin) {
      for (int64_t end = begin; end <= 10; ++end)
        EXPECT_TRUE(pieces.slice(begin, end).equal(whole.slice(0, begin, end)));
    }
  }
}

TEST(RowPieces, AWholeMatrixHasItsPlainName) {
  NamedTensors tensors;
  RowPieces(counted(4)).put(tensors, "vectors");
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_TRUE(RowPieces::find(tensors, "vectors").slice(1, 3).equal(counted(2, 1)));
  EXPECT_TRUE(RowPieces::find(tensors, "pending").empty());
}

TEST(RowPieces, JoiningLeavesOneTensorOfEach) {
  NamedTensors tensors{{"counts", at::ones({2})}};
  for (const int64_t first : {0, 2}) {
    RowPieces(first, counted(2, first)).put(tensors, "vectors");
    RowPieces(first, counted(2, first) + 1).put(tensors, "pending");
  }
  join_pieces(tensors);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_TRUE(tensors.at("vectors").equal(counted(4)));
  EXPECT_TRUE(tensors.at("pending").equal(counted(4) + 1));
}

TEST(RowPieces, MissingRowsAreRefused) {
  for (const auto& [first, second] :
       {std::pair{0, 3}, {1, 3}, {0, 1}}) {  // a gap, a missing start, an overlap
    const NamedTensors tensors{{concat("v@", first), counted(2)},
                               {concat("v@", second), counted(2)}};
    EXPECT_THROW(RowPieces::find(tensors, "v"), DataError) << first << " " << second;
  }
}

}  // namespace
}  // namespace contexture::parallel
