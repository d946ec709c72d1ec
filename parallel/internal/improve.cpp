#include "parallel/internal/improve.h"

#include <algorithm>
#include <functional>

#include "core/error.h"

namespace contexture::parallel {
namespace {

// Stages between those of what a block reads and those of what reads it.
struct Range {
  int low = 0, high = 0;
};

class Moves {
 public:
  Moves(const Trace& trace, int num_stages)
      : num_stages_(num_stages), before_(trace.blocks.size()), after_(trace.blocks.size()) {
    for (const TraceWire& wire : trace.wires) {
      for (const int reader : wire.readers) {
        before_[reader].push_back(wire.producer);
        after_[wire.producer].push_back(reader);
      }
    }
  }

  Range range(const std::vector<int>& stage, int block) const {
    Range range{0, num_stages_ - 1};
    for (const int b : before_[block]) range.low = std::max(range.low, stage[b]);
    for (const int a : after_[block]) range.high = std::min(range.high, stage[a]);
    return range;
  }

  // Moves the block to `to`, and with it whatever would otherwise lie on the wrong side.
  std::vector<int> moved(std::vector<int> stage, int block, int to) const {
    const bool up = to > stage[block];
    std::vector<int> queue = {block};
    stage[block] = to;
    for (size_t next = 0; next < queue.size(); ++next) {
      for (const int other : up ? after_[queue[next]] : before_[queue[next]]) {
        if (up ? stage[other] >= to : stage[other] <= to) continue;
        stage[other] = to;
        queue.push_back(other);
      }
    }
    return stage;
  }

 private:
  int num_stages_;
  std::vector<std::vector<int>> before_, after_;
};

bool every_stage_used(const std::vector<int>& stage, int num_stages) {
  std::vector<bool> used(num_stages, false);
  for (const int s : stage) used[s] = true;
  return std::find(used.begin(), used.end(), false) == used.end();
}

bool better(const Plan& a, const Plan& b) {
  if (a.fits != b.fits) return a.fits;
  return a.objective < b.objective * (1 - 1e-12);
}

}  // namespace

Plan improve(const Trace& trace, const Plan& start, const PartitionOptions& options) {
  const int num_stages = static_cast<int>(start.stages.size());
  const Moves moves(trace, num_stages);
  Plan best = evaluate(trace, start.stage_of_block, start.device_of_stage,
                       options);  // the start may have other prices
  for (bool moved = true; moved;) {
    moved = false;
    for (int b = 0; b < static_cast<int>(trace.blocks.size()); ++b) {
      const Range free = moves.range(best.stage_of_block, b);
      const int own = best.stage_of_block[b];
      for (const int to : {own - 1, own + 1, free.low, free.high}) {
        if (to < 0 || to >= num_stages || to == best.stage_of_block[b]) continue;
        const std::vector<int> stage = moves.moved(best.stage_of_block, b, to);
        if (!every_stage_used(stage, num_stages)) continue;
        const Plan plan = evaluate(trace, stage, best.device_of_stage, options);
        if (better(plan, best)) best = plan, moved = true;
      }
    }
  }
  return best;
}

Plan brute_force(const Trace& trace, const PartitionOptions& options) {
  const int n = static_cast<int>(trace.blocks.size()), num_stages = options.num_devices;
  CONTEXTURE_USAGE_REQUIRE(n <= 12, "brute force tries every assignment: at most 12 blocks, not ",
                           n);
  CONTEXTURE_USAGE_REQUIRE(n >= num_stages && num_stages >= 1, n, " blocks cannot fill ",
                           num_stages, " stages");
  const Moves moves(trace, num_stages);
  std::vector<int> device(num_stages), stage(n, num_stages - 1);
  for (int s = 0; s < num_stages; ++s) device[s] = s;
  Plan best;
  best.fits = false;
  bool found = false;
  const std::function<void(int)> place = [&](int block) {
    if (block == n) {
      if (!every_stage_used(stage, num_stages)) return;
      const Plan plan = evaluate(trace, stage, device, options);
      if (!found || better(plan, best)) best = plan, found = true;
      return;
    }
    for (int s = moves.range(stage, block).low; s < num_stages; ++s) {
      stage[block] = s;
      place(block + 1);
    }
    stage[block] = num_stages - 1;
  };
  place(0);
  best.is_exact = best.fits;
  best.lower_bound = best.objective;
  return best;
}

}  // namespace contexture::parallel
