// A pipeline whose stages take as long as slices of real decoder layers do, and sleep meanwhile:
// two cores show what as many ranks as there are stages would do.
#pragma once
#include <algorithm>
#include <deque>
#include <memory>

#include "parallel/slice.h"
#include "parallel/token_slices.h"
#include "sleeper.h"

namespace contexture::parallel::testing {

// What a stage's slices take: both directions together, and the forward's share of it.
struct StageTime {
  SliceModel both;
  double forward_share = 1.0 / 3;
};

class SlicedSleeper : public Sleeper {
 public:
  SlicedSleeper(ParameterStore& store, const std::string& name, std::vector<std::string> in,
                std::string out, const StageTime& time)
      : Sleeper(store, name, std::move(in), std::move(out)), time_(time) {}
  bool by_rows() const override { return true; }

 protected:
  double forward_s(const Pass& pass) const override { return time_.forward_share * both_s(pass); }
  double backward_s(const Pass& pass) const override {
    return (1 - time_.forward_share) * both_s(pass);
  }

 private:
  double both_s(const Pass& pass) const {
    const int64_t begin = pass.slice != nullptr ? pass.slice->begin : 0;
    return time_.both(pass.feed("x").size(0), static_cast<double>(begin));
  }
  StageTime time_;
};

inline std::vector<int64_t> equal_cuts(int64_t tokens, int64_t slices) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i <= slices; ++i) out.push_back(i * tokens / slices);
  return out;
}

// 0 and the ends of a plan's slices.
inline std::vector<int64_t> cuts_of(const SlicePlan& plan) {
  std::vector<int64_t> out{0};
  for (const int64_t length : plan.lengths) out.push_back(out.back() + length);
  return out;
}

// Forward and backward of `microbatches` of cuts.back() tokens on `ranks` equal stages under 1F1B:
// what the simulator says, and what it takes with ranks that sleep.
inline double simulated_step_s(int ranks, int microbatches, const std::vector<int64_t>& cuts,
                               const StageTime& time) {
  const auto slices = static_cast<int>(cuts.size()) - 1;
  StageTimes times;
  times.forward.assign(ranks, time.forward_share);
  times.input_grad.assign(ranks, 1 - time.forward_share);
  times.weight_grad.assign(ranks, 0.0);
  for (int i = 0; i < microbatches * slices; ++i) {
    const int64_t begin = cuts[i % slices];
    times.scale.push_back(time.both(cuts[i % slices + 1] - begin, static_cast<double>(begin)));
  }
  const StageGraph graph = chain(ranks);
  return simulate(graph, split_into_slices(make_1f1b(graph, microbatches), slices), times).makespan;
}

inline double slept_step_s(int ranks, int microbatches, const std::vector<int64_t>& cuts,
                           const StageTime& time) {
  std::vector<double> span(ranks);
  on_ranks(ranks, [&](const std::shared_ptr<Communicator>& pp, int rank) {
    SleepingModel built;
    for (int s = 0; s < ranks; ++s) {
      const auto in = s == 0 ? std::vector<std::string>{} : std::vector{concat("w", s - 1)};
      built.blocks.push_back(
          std::make_unique<SlicedSleeper>(built.store, concat("s", s), in, concat("w", s), time));
    }
    built.store.materialise(at::kDouble, at::kCPU, 1);
    Pipeline pipeline(built.blocks, place_in_order(built.blocks, "uniform", ranks, 1, false),
                      "1f1b", pp);
    const Feeds whole{{"x", at::ones({cuts.back()}, at::kDouble)}};
    const Pass pass(whole, true);
    const Pipeline::Passes passes(microbatches, &pass);
    std::deque<Feeds> feeds;
    std::deque<Slice> slices;
    std::deque<Pass> slice_passes;
    std::vector<Pipeline::Passes> of;
    for (int m = 0; m < microbatches && cuts.size() > 2; ++m) {
      const auto memory = std::make_shared<SliceMemory>();
      of.emplace_back();
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        feeds.push_back({{"x", whole.at("x").narrow(0, cuts[i], cuts[i + 1] - cuts[i])}});
        slices.push_back({memory, static_cast<int64_t>(i), cuts[i], cuts[i + 1], cuts.back()});
        slice_passes.emplace_back(feeds.back(), true).slice = &slices.back();
        of.back().push_back(&slice_passes.back());
      }
    }
    const std::string last = concat("w", ranks - 1);
    pp->barrier();
    pipeline.forward_backward(
        passes,
        [&](int, const ForwardPass& forward) {
          return forward.has(last) ? WireValues{{last, at::ones_like(forward.wire(last))}}
                                   : WireValues();
        },
        of);
    span[rank] = pipeline.timeline().back().end_s;
  });
  return *std::max_element(span.begin(), span.end());
}

}  // namespace contexture::parallel::testing
