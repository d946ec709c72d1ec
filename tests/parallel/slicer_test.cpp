// Where microbatches are cut, and that blocks which keep nothing for each other go through a
// pipeline in slices as they would whole.
#include "parallel/slicer.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <numeric>
#include <thread>

#include "parallel/slice.h"

namespace contexture::parallel {
namespace {

TEST(Slicer, CutsEquallyUnlessToldToMeasure) {
  const Slicer four(4, nullptr, 2);
  EXPECT_EQ(four.count(), 4);
  EXPECT_EQ(four.cuts(8), (std::vector<int64_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(four.cuts(2), (std::vector<int64_t>{0, 1, 1, 2, 2}))
      << "fewer rows than slices: some are empty";
  EXPECT_EQ(Slicer(1, nullptr, 2).cuts(5), (std::vector<int64_t>{0, 5}));
}

// What a stage's slices took if they followed the model, forward and backward.
std::vector<TimedAction> timeline_of(const Slicer& slicer, const SliceModel& model, int64_t rows) {
  const std::vector<int64_t> cuts = slicer.cuts(rows);
  std::vector<TimedAction> out;
  for (const Work work : {Work::kForward, Work::kBackward}) {
    for (int i = 0; i + 1 < static_cast<int>(cuts.size()); ++i) {
      const double waited = 5.0,
                   seconds = model(cuts[i + 1] - cuts[i], static_cast<double>(cuts[i])) *
                             (work == Work::kForward ? 1.0 : 2.0);
      out.push_back({{0, work, i}, /*sliced=*/true, 100.0, 100.0 + waited + seconds, waited});
    }
  }
  out.push_back({{1, Work::kForward, 0}, /*sliced=*/false, 0.0, 1e6, 0.0});
  return out;
}

// One sequence of 64 rows on two equal stages: the cuts are those of the dynamic program for the
// model behind the times.
TEST(Slicer, PlansFromMeasuredTimesTheCutsOfTheDynamicProgram) {
  const int64_t rows = 64;
  const SliceModel model{.a = 1.0, .b = 0.5, .g = 0.05};
  std::vector<int64_t> keys(rows);
  std::iota(keys.begin(), keys.end(), 1);
  const auto communicators = make_thread_communicators(2, /*deadline_s=*/60.0);
  std::vector<std::vector<int64_t>> got(2);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      Slicer slicer(0, communicators[r].get(), 2);
      // The other rank is faster: the slower one sets the pace.
      const SliceModel mine{model.a / (1 + r), model.b / (1 + r), model.g / (1 + r)};
      for (int step = 0; slicer.measuring(); ++step) {
        ASSERT_LT(step, 10);
        slicer.observe(timeline_of(slicer, mine, rows), {keys});
      }
      got[r] = slicer.cuts(rows);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  const SlicePlan want = plan_token_slices(
      rows, 2, [&](int64_t l, int64_t c) { return 3.0 * model(l, static_cast<double>(c)); });
  ASSERT_GT(want.lengths.size(), 1u);
  std::vector<int64_t> cuts{0};
  for (const int64_t length : want.lengths) cuts.push_back(cuts.back() + length);
  EXPECT_EQ(got[0], cuts);
  EXPECT_EQ(got[1], cuts);
}

TEST(Slicer, LeavesMicrobatchesWholeWhereTheyFillThePipelineThemselves) {
  Slicer slicer(0, nullptr, 1);
  const SliceModel model{.a = 1.0, .b = 0.5, .g = 0.05};
  std::vector<int64_t> keys(32);
  std::iota(keys.begin(), keys.end(), 1);
  while (slicer.measuring()) slicer.observe(timeline_of(slicer, model, 32), {keys});
  EXPECT_EQ(slicer.count(), 1);  // one stage: nothing to fill, and every slice costs its fixed part
}

// Two slices of a running sum over rows that is also multiplied by a shared value: y_n = w sum_{m
// <= n} x_m.
TEST(Slice, EarlierRowsAndSharedValuesGetTheGradientsOfAllLaterSlices) {
  const auto memory = std::make_shared<SliceMemory>();
  const at::Tensor w = at::full({1}, 3.0, at::kDouble).set_requires_grad(true);
  const at::Tensor x = at::arange(1.0, 5.0, at::kDouble).view({4, 1});
  std::vector<at::Tensor> leaves, outputs;
  for (const auto& [index, begin, end] :
       {std::array<int64_t, 3>{0, 0, 3}, std::array<int64_t, 3>{1, 3, 4}}) {
    const Slice slice{memory, index, begin, end, 4};
    leaves.push_back(x.narrow(0, begin, end - begin).clone().set_requires_grad(true));
    const at::Tensor all = slice.extend("x", leaves.back());
    EXPECT_EQ(all.size(0), end);
    const at::Tensor shared = slice.share("w", {w}, [&] { return std::vector{w * 2.0}; })[0];
    outputs.push_back(all.cumsum(0).narrow(0, begin, end - begin) * shared);
  }
  EXPECT_TRUE(at::equal(at::cat(outputs), x.cumsum(0) * 6.0));
  at::Tensor w_grad = at::zeros({1}, at::kDouble);
  std::vector<at::Tensor> x_grads;
  for (const int i : {1, 0}) {
    const auto grads =
        torch::autograd::grad({outputs[i]}, {leaves[i], w}, {at::ones_like(outputs[i])}, false,
                              false, /*allow_unused=*/true);
    x_grads.insert(x_grads.begin(), grads[0]);
    if (grads[1].defined()) w_grad += grads[1];
  }
  EXPECT_TRUE(at::equal(at::cat(x_grads), at::tensor({24.0, 18.0, 12.0, 6.0}, at::kDouble)
                                              .view({4, 1})));  // 6 times the rows from n on
  EXPECT_EQ(w_grad.item<double>(), 2.0 * (1 + 3 + 6 + 10));
}

}  // namespace
}  // namespace contexture::parallel
