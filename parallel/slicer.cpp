#include "parallel/slicer.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"

namespace contexture::parallel {
namespace {

// What is measured: slices of different lengths after different contexts, in two steps. The first
// step still allocates.
const std::vector<double> kTrial{0.0, 0.1, 0.3, 0.6, 1.0};
constexpr int64_t kLastMeasured = 3;
constexpr int64_t kMostCuts = 64;  // places that the plan may cut a microbatch at

// Query-key pairs of the rows before each row, a row's own half counted as half a pair
// (token_slices.h).
std::vector<double> pairs_before(const std::vector<int64_t>& keys) {
  std::vector<double> sums{0.0};
  for (const int64_t k : keys) sums.push_back(sums.back() + static_cast<double>(k) - 0.5);
  return sums;
}

SliceModel fitted(const std::vector<SliceTime>& measured) {
  try {
    return fit_slice_model(measured);
  } catch (const UserError&) {  // microbatches too small to tell: so much a token
    SliceModel per_token;
    double seconds = 0.0, tokens = 0.0;
    for (const SliceTime& m : measured) {
      seconds += m.seconds;
      tokens += static_cast<double>(m.tokens);
    }
    per_token.b = tokens > 0.0 ? seconds / tokens : 0.0;
    return per_token;
  }
}

}  // namespace

Slicer::Slicer(int64_t configured, Communicator* world, int num_pipeline_ranks)
    : world_(world), num_pipeline_ranks_(num_pipeline_ranks), measuring_(configured == 0) {
  if (measuring_) {
    shares_ = kTrial;
  } else {
    for (int64_t i = 0; i <= configured; ++i)
      shares_.push_back(static_cast<double>(i) / static_cast<double>(configured));
  }
}

std::vector<int64_t> Slicer::cuts(int64_t rows) const {
  std::vector<int64_t> out;
  for (const double share : shares_) out.push_back(std::llround(share * static_cast<double>(rows)));
  return out;
}

void Slicer::observe(const std::vector<TimedAction>& timeline,
                     const std::vector<std::vector<int64_t>>& keys) {
  CONTEXTURE_INVARIANT(measuring_, "the cuts are planned");
  if (++steps_ == 1) return;
  std::map<int, double> seconds;  // by slice, over the stages here
  for (const TimedAction& timed : timeline) {
    if (timed.sliced)
      seconds[timed.action.microbatch] += timed.end_s - timed.start_s - timed.wait_s;
  }
  for (const auto& [index, time] : seconds) {
    const std::vector<int64_t>& mine = keys.at(index / count());
    const std::vector<int64_t> at = cuts(static_cast<int64_t>(mine.size()));
    const std::vector<double> pairs = pairs_before(mine);
    const int64_t begin = at[index % count()], end = at[index % count() + 1], tokens = end - begin;
    if (tokens == 0) continue;
    const auto l = static_cast<double>(tokens);
    measured_.push_back({tokens, (pairs[end] - pairs[begin]) / l - l / 2, time});
  }
  if (steps_ == kLastMeasured) plan(keys.front(), keys.size());
}

void Slicer::plan(const std::vector<int64_t>& keys, size_t num_microbatches) {
  measuring_ = false;
  const SliceModel mine = measured_.empty() ? SliceModel() : fitted(measured_);
  double total = 0.0;
  for (const SliceTime& m : measured_) total += m.seconds;
  // The slowest rank sets the pace; the ranks with sliced stages are the pipeline that slices fill.
  const at::Tensor told =
      at::tensor({total, mine.a, mine.b, mine.g, measured_.empty() ? 0.0 : 1.0}, at::kDouble);
  at::Tensor all = told;
  if (world_ != nullptr) {
    all = at::empty({world_->size() * told.numel()}, at::kDouble);
    world_->all_gather(all, told).wait();
  }
  all = all.view({-1, told.numel()});
  const at::Tensor slowest = all[all.select(1, 0).argmax()];
  const SliceModel pace{slowest[1].item<double>(), slowest[2].item<double>(),
                        slowest[3].item<double>()};
  const double stages = all.select(1, 4).sum().item<double>() * num_pipeline_ranks_ /
                        static_cast<double>(all.size(0));
  // The pipeline is filled once for all microbatches: each bears its part of the K - 1 longest
  // slices.
  const auto fill = std::max(
      1,
      static_cast<int>(std::lround(1.0 + (stages - 1.0) / static_cast<double>(num_microbatches))));
  // Replicas read different rows: those of the world's first rank count.
  const auto rows = static_cast<int64_t>(keys.size());
  const at::Tensor shares = at::full({kMostCuts + 2}, 1.0, at::kDouble);
  if (world_ == nullptr || world_->rank() == 0) {
    const std::vector<double> pairs = pairs_before(keys);
    const auto cost = [&](int64_t tokens, int64_t context) {
      return pace.a + pace.b * static_cast<double>(tokens) +
             pace.g * (pairs[context + tokens] - pairs[context]);
    };
    const SlicePlan best =
        plan_token_slices(rows, fill, cost,
                          /*gap=*/0.0, /*multiple_of=*/(rows + kMostCuts - 1) / kMostCuts);
    int64_t before = 0, cut = 0;
    for (const int64_t length : best.lengths) {
      shares[cut++] = static_cast<double>(before) / static_cast<double>(rows);
      before += length;
    }
  }
  if (world_ != nullptr) world_->broadcast(shares, 0).wait();
  shares_.clear();
  for (int64_t i = 0; shares_.empty() || shares_.back() < 1.0; ++i)
    shares_.push_back(shares[i].item<double>());
}

}  // namespace contexture::parallel
