// What one forward and backward of a pipeline has under way. An index counts microbatches, or token
// slices where what it is about is sliced: slice i of microbatch m is m * num_slices + i.
#pragma once
#include <algorithm>
#include <utility>

#include "parallel/pipeline.h"

namespace contexture::parallel {

struct Pipeline::Step {
  using Key = std::pair<std::string, int>;  // wire, its writer's index
  struct Arriving {
    at::Tensor value;
    Pending pending;
  };
  const Plan* plan = nullptr;
  const Passes* passes = nullptr;
  const std::vector<Passes>* slices = nullptr;
  int num_slices = 1;
  const Roots* roots = nullptr;
  std::map<Key, Arriving> arriving;  // wires from other ranks
  std::map<Key, std::pair<at::Tensor, int>>
      values;  // wires at hand, and how many times they have yet to be read here
  std::map<Key, std::pair<at::Tensor, int>>
      gradients;  // sums over readings here, and how many are still to come
  std::map<std::pair<Key, int>, Arriving> arriving_gradients;  // by wire, index and reading rank
  std::map<std::pair<int, int>, ForwardPass> forwards;         // by stage and index
  std::map<std::pair<int, int>, Deferred> deferred;
  std::map<int, std::deque<Message>> coming;    // without tags: by sender, what it has yet to send
  std::map<std::pair<Key, int>, Pending> sent;  // forward sends: done when the gradient comes back
  std::deque<Pending> sent_gradients;
  std::map<int, int> backwards_left;  // by stage: microbatches
  bool weights_apart = false;         // in the backward that is running
  bool last_slice = true;  // of its microbatch to go back, in the backward that is running
  double waited_s = 0.0;

  const Pass& pass(bool sliced, int index) const {
    return sliced ? *(*slices)[index / num_slices][index % num_slices] : *(*passes)[index];
  }
  bool ends_microbatch(const StagePlan& stage, int index) const {
    return !stage.sliced || index % num_slices == 0;
  }
  // The indices of a wire that a stage reads at one of its own: all slices of it, where the stage
  // is whole and the wire is not.
  std::vector<int> read_at(const WirePlan& wire, bool stage_sliced, int index) const {
    if (wire.sliced == stage_sliced) return {index};
    if (stage_sliced) return {index / num_slices};
    std::vector<int> all;
    for (int i = 0; i < num_slices; ++i) all.push_back(index * num_slices + i);
    return all;
  }
  // How many times a rank's other stages than the writer's read one index of a wire.
  int readings_on(int rank, const WirePlan& wire) const {
    int count = 0;
    for (const int stage : wire.reading_stages) {
      if (plan->placement.graph.rank_of[stage] == rank)
        count += plan->sliced[stage] && !wire.sliced ? num_slices : 1;
    }
    return count;
  }
};

}  // namespace contexture::parallel
