// What blocks keep between the passes of a decoding.
#include "parallel/decoding.h"

#include <gtest/gtest.h>

namespace contexture::parallel {
namespace {

at::Tensor rows(const std::vector<double>& numbers) {
  return at::tensor(at::ArrayRef<double>(numbers), at::kDouble).view({-1, 2});
}
at::Tensor places(const std::vector<int64_t>& numbers) {
  return at::tensor(at::ArrayRef<int64_t>(numbers), at::kLong);
}

TEST(Decoding, RowsLieWhereTheyArePutAndOutliveGrowth) {
  Decoding decoding;
  decoding.place(places({0, 2}), 3);
  const at::Tensor first = decoding.extend("k", rows({1, 2, 3, 4})).clone();
  EXPECT_TRUE(at::equal(first, rows({1, 2, 0, 0, 3, 4})));
  decoding.place(places({6}), 7);
  const at::Tensor& later = decoding.extend("k", rows({5, 6}));
  ASSERT_GE(later.size(0), 7);
  EXPECT_TRUE(at::equal(later.narrow(0, 0, 3), first));
  EXPECT_TRUE(at::equal(later.narrow(0, 6, 1), rows({5, 6})));
  EXPECT_EQ(later.narrow(0, 3, 3).abs().sum().item<double>(), 0.0);
  EXPECT_TRUE(at::equal(decoding.extend("v", rows({7, 8})).narrow(0, 6, 1),
                        rows({7, 8})));  // a key of its own
}

TEST(Decoding, KeepsWhatTheFirstPassComputes) {
  Decoding decoding;
  int computed = 0;
  for (int pass = 0; pass < 3; ++pass) {
    const Tensors& kept = decoding.keep(
        "memory", [&] { return Tensors{at::full({1}, static_cast<double>(++computed))}; });
    EXPECT_EQ(kept[0].item<double>(), 1.0);
  }
}

}  // namespace
}  // namespace contexture::parallel
