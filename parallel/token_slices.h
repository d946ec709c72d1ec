// Where to cut a causal sequence into token slices, so that pipeline stages work on different
// slices at once (TeraPipe, arXiv 2102.07988). A slice of l tokens that follow c tokens of context
// costs t(l, c) on each of K equal stages; slices t_1 .. t_n in a row take sum t_i + (K - 1) max
// t_i. Many small slices fill the pipeline, few large ones waste less on each.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace contexture::parallel {

// Seconds (or any unit) of `tokens` tokens after `context` tokens, forward and backward, on the
// slowest stage.
using SliceCost = std::function<double(int64_t tokens, int64_t context)>;

// t = a + b l + g l (c + l/2): a fixed part, one for each token, one for each pair of tokens that
// attention compares.
struct SliceModel {
  double a = 0.0, b = 0.0, g = 0.0;
  double operator()(int64_t tokens, double context) const;
};

struct SliceTime {
  int64_t tokens = 0;
  double context = 0.0;  // negative, down to -tokens / 2, where a slice holds several sequences
  double seconds = 0.0;
};

// The model with the least squared error in seconds, its three coefficients not negative (they are
// times; noise would make small ones negative). Throws UserError unless the measurements tell the
// three apart: three or more, of different lengths and contexts.
SliceModel fit_slice_model(const std::vector<SliceTime>& measured);

struct SlicePlan {
  std::vector<int64_t> lengths;  // in order; their sum is the number of tokens
  double total = 0.0;            // sum t_i + (num_stages - 1) max t_i
};

// The best cut for num_stages stages. Cuts lie at multiples of `multiple_of`. The published dynamic
// program: for each bound that a slice's cost may reach, the cheapest cut within it. With n =
// tokens / multiple_of there are up to n^2 bounds at n^2 steps each; bounds closer together than
// `gap` count as one, and the result is then within (num_stages - 1) * gap of the best. Throws
// UserError on a cost that is negative or not finite.
SlicePlan plan_token_slices(int64_t tokens, int num_stages, const SliceCost& cost, double gap = 0.0,
                            int64_t multiple_of = 1);

}  // namespace contexture::parallel
