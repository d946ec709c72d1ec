// Bytes that each rank of a placed layout holds at its fullest moment.
#include <algorithm>

#include "parallel/internal/placed_layout.h"

namespace contexture::parallel {
namespace {

// Gradients inside a layer at their most, relative to what the layer keeps: of a transformer's
// encoder layer (width D, heads' width D, hidden width F) 3 F + 2 D of 3 F + 8 D numbers a row.
constexpr double kGradientsInside = 0.65;

class Memory {
 public:
  explicit Memory(const PlacedLayout& placed) : placed_(placed) {}

  // What a rank holds at one moment beside weights and optimizer state.
  struct Held {
    double activations = 0.0, gradients = 0.0;
    double working = 0.0;  // for this moment alone
    double total() const { return activations + gradients + working; }
  };

  // The fullest moment of a step, walking through the rank's order. Gradients are there from a
  // block's first backward on: the first backward may well begin before any of them is.
  Held fullest(const Schedule& schedule, int rank) const {
    const Layout& l = placed_.layout;
    const std::vector<TraceBlock>& blocks = placed_.trace.blocks;
    const std::vector<double>& full = placed_.traced.full_activations;
    Held now, most;
    const auto look = [&](double working) {
      now.working = working;
      if (now.total() > most.total()) most = now;
    };
    std::vector<bool> has_gradient(blocks.size(), false);
    for (const Action& action : schedule.by_rank[rank]) {
      const StageCost& stage = placed_.cut.stages[action.stage];
      if (action.work == Work::kForward) {
        now.activations += stage.forward_bytes_in;
        for (const int b : stage.blocks) {
          now.activations += kept(b);
          look(gathered(b));
        }
        continue;
      }
      for (size_t i = stage.blocks.size(); i-- > 0;) {
        const int b = stage.blocks[i];
        const bool weights = action.work != Work::kInputGrad;
        if (action.work != Work::kWeightGrad) {
          // Recomputed, and the gradients inside the block.
          const double inside = full[b] * (1 + kGradientsInside) - kept(b);
          look((blocks[b].recompute ? inside : kGradientsInside * full[b]) + gathered(b) +
               (weights ? fresh_gradients(b, has_gradient[b]) : 0.0));
          now.activations -= kept(b);
          // Inputs of matrices and gradients of their outputs, until the weight gradients run.
          if (!weights) now.activations += full[b];
        } else {
          look(fresh_gradients(b, has_gradient[b]));
          now.activations -= full[b];
        }
        if (!weights || has_gradient[b]) continue;
        has_gradient[b] = true;
        now.gradients +=
            placed_.wide(placed_.own_bytes[b]) / (placed_.reduces_at_once() ? l.dp : 1);
      }
      if (action.work != Work::kWeightGrad) now.activations -= stage.forward_bytes_in;
    }
    if (l.dp > 1 && l.zero < 2)
      look(std::min(placed_.model.bucket_bytes, placed_.wide(placed_.rank_bytes[rank])));
    return most;
  }

 private:
  double kept(int block) const {
    return static_cast<double>(placed_.trace.blocks[block].activation_bytes);
  }
  // ZeRO 3: a block's weights as they came and in their place.
  double gathered(int block) const {
    return placed_.layout.dp > 1 && placed_.layout.zero == 3 ? 2 * placed_.block_bytes[block] : 0.0;
  }
  // A block's gradients as computed, before they are added to the sum (in fp32 the first of them
  // become the sum); and, where they are reduced at once, as they are summed and laid out for that.
  double fresh_gradients(int block, bool has_sum) const {
    const bool become_sum = !has_sum && placed_.model.weight_bytes == placed_.model.wide_bytes;
    return (become_sum ? 0.0 : placed_.block_bytes[block]) +
           (placed_.reduces_at_once() ? 2 * placed_.wide(placed_.own_bytes[block]) : 0.0);
  }

  const PlacedLayout& placed_;
};

}  // namespace

std::vector<MemoryParts> memory_of(const PlacedLayout& placed, const Schedule& schedule,
                                   const std::function<MemoryParts(double)>& states) {
  const Layout& l = placed.layout;
  const PlannedModel& model = placed.model;
  std::vector<MemoryParts> out;
  for (int r = 0; r < l.pp; ++r) {
    MemoryParts parts = states(placed.parameters_of(r));
    const Memory::Held most = Memory(placed).fullest(schedule, r);
    // Of the gradients that count in full, those that are not there at that moment leave their
    // room.
    parts.activations = std::max(0.0, most.activations + most.gradients - parts.gradients);
    parts.working = std::max(0.0, most.total() - parts.gradients - parts.activations);
    const double on_first = r == 0 ? model.index_bytes : 0.0;
    parts.index = model.index_sharded ? model.index_bytes / (l.dp * l.pp * l.tp) : on_first;
    parts.inputs = model.input_bytes * static_cast<double>(model.batch_size) / l.dp;
    for (const StageCost& stage : placed.cut.stages) {
      if (stage.device != r) continue;
      for (const int b : stage.blocks)
        parts.index += static_cast<double>(placed.trace.blocks[b].resident_bytes);
    }
    out.push_back(parts);
  }
  return out;
}

}  // namespace contexture::parallel
