// Executes a schedule: this rank's stages of a block list, over the microbatches of a step. A wire goes directly to each rank
// that reads it, once; the gradients of all its readers come back and are summed. With one stage and no communicator it is the plain
// executor.
#pragma once
#include <deque>
#include <memory>
#include <optional>

#include "parallel/communicator.h"
#include "parallel/executor.h"
#include "parallel/placement.h"

namespace contexture::parallel {

// A stretch of this rank's time: an action, or (stage -1) waiting for a wire.
struct TimedAction {
  Action action;
  double start_s = 0.0, end_s = 0.0;  // since the step began
  double wait_s = 0.0;                // of it, for others
};

class Pipeline {
 public:
  // schedule: gpipe, 1f1b, interleaved, zb_h1 or list. pp: the pipeline's ranks; null when there is one. All references must
  // outlive this. recompute: names of blocks.
  Pipeline(const BlockList& blocks, Placement placement, std::string schedule, std::shared_ptr<Communicator> pp,
           std::set<std::string> recompute = {});

  // Gradients that enter a microbatch at wires which this rank's stage writes; called before the stage's backward with what its
  // forward computed. Other wires in the result are ignored.
  using Roots = std::function<WireValues(int microbatch, const ForwardPass& forward)>;
  // Forward and backward of every microbatch; parameters' gradients are added to Parameter::grad. All pipeline ranks call it with
  // passes over the same microbatches.
  void forward_backward(const std::vector<const Pass*>& passes, const Roots& roots);

  // The values of `wanted` wires, without gradient, per pass; on every rank of the pipeline.
  std::vector<WireValues> forward(const std::vector<const Pass*>& passes, const std::vector<std::string>& wanted);

  // Called after a block's backward has added to its gradients (at the end of its stage's weight-gradient work where
  // that is put off); last: no microbatch will add more in this step.
  void set_after_backward(std::function<void(const Block&, bool last)> hook) { after_backward_ = std::move(hook); }
  // Called around every use of a block's parameters (ZeRO 3).
  void set_parameter_hooks(std::function<void(const Block&)> before, std::function<void(const Block&)> after);

  const Placement& placement() const { return placement_; }
  const BlockList& blocks() const { return *blocks_; }
  int rank() const { return rank_; }
  const Schedule& schedule_for(int num_microbatches) const;
  const std::vector<TimedAction>& timeline() const { return timeline_; }  // of the last forward_backward
  std::map<std::string, BlockTime> times() const;                 // of this rank's blocks

 private:
  struct Step;  // the state of one forward_backward
  struct StagePlan {
    int stage;
    std::unique_ptr<Executor> executor;
    std::vector<int> blocks;
    std::vector<std::string> reads;   // wires of other stages that it reads
    std::vector<std::string> writes;  // wires that other stages read
    std::vector<std::string> outputs; // all wires it writes
  };
  struct WirePlan {
    int index = 0, stage = 0, rank = 0;      // of the writer
    std::vector<int> remote_ranks;           // other ranks that read it, ascending
    std::vector<int> reading_stages;         // other stages that read it, ascending
    bool differentiable = false;
  };
  const StagePlan& stage_plan(int stage) const;
  int reading_stages_on(const WirePlan& wire, int rank) const;
  int tag(const WirePlan& wire, int microbatch, bool gradient) const;
  at::Tensor room_for(const std::string& wire, const Pass& pass) const;
  void run_forward(Step& step, const Action& action);
  void run_backward(Step& step, const Action& action);
  void run_weights(Step& step, const Action& action);
  void receive_for(Step& step, const Action& action);

  const BlockList* blocks_;
  Placement placement_;
  std::string schedule_;
  std::shared_ptr<Communicator> pp_;
  int rank_;
  Executor whole_;                 // knows the wires of the whole list; runs nothing
  std::vector<StagePlan> stages_;  // this rank's, ascending; none where all its blocks were moved to others
  std::map<std::string, WirePlan> wires_;
  mutable std::map<int, Schedule> schedules_;  // by number of microbatches
  std::function<void(const Block&, bool)> after_backward_;
  std::vector<TimedAction> timeline_;
};

}  // namespace contexture::parallel
