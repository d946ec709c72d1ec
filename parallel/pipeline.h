// Executes a schedule: this rank's stages of a block list, over the microbatches of a step. A wire
// goes directly to each rank that reads it, once; the gradients of all its readers come back and
// are summed. With one stage and no communicator it is the plain executor.
#pragma once
#include <deque>
#include <memory>
#include <optional>

#include "parallel/communicator.h"
#include "parallel/executor.h"
#include "parallel/placement.h"

namespace contexture::parallel {

// A stretch of this rank's time. With token slices the action's stage and microbatch count parts of
// stages and slices.
struct TimedAction {
  Action action;
  bool sliced = false;                // of a token slice
  double start_s = 0.0, end_s = 0.0;  // since the step began
  double wait_s = 0.0;                // of it, for others
};

class Pipeline {
 public:
  // schedule: gpipe, 1f1b, interleaved, zb_h1 or list. pp: the pipeline's ranks; null when there is
  // one. All references must outlive this. recompute: names of blocks.
  Pipeline(const BlockList& blocks, Placement placement, std::string schedule,
           std::shared_ptr<Communicator> pp, std::set<std::string> recompute = {});

  // Gradients that enter at wires which this rank's stage writes; called before the stage's
  // backward with what its forward computed. Other wires in the result are ignored. index: the
  // microbatch; for blocks that run in slices m * slices + i, slice i of microbatch m.
  using Roots = std::function<WireValues(int index, const ForwardPass& forward)>;
  // Forward and backward of every microbatch; parameters' gradients are added to Parameter::grad.
  // All pipeline ranks call it with passes over the same microbatches. slices: for each microbatch
  // the passes of its slices, equally many everywhere: blocks that run in slices take these, the
  // others the whole pass, before the first slice or (if they read what sliced blocks write) after
  // the last. Empty: no slices.
  using Passes = std::vector<const Pass*>;
  void forward_backward(const Passes& passes, const Roots& roots,
                        const std::vector<Passes>& slices = {});
  // Which blocks run in slices, if not those that run by rows (Block::by_rows).
  void set_sliced(std::function<bool(const Block&)> sliced) { sliced_ = std::move(sliced); }

  // The values of `wanted` wires, without gradient, per pass, on every rank of the pipeline; and of
  // those wanted `here`, on the rank that writes them. given: wires whose values every rank has,
  // for all passes: what writes them does not run.
  std::vector<WireValues> forward(const std::vector<const Pass*>& passes,
                                  const std::vector<std::string>& wanted,
                                  const WireValues& given = {},
                                  const std::vector<std::string>& here = {});

  // Called after a block's backward has added to its gradients (at the end of its stage's
  // weight-gradient work where that is put off); last: no microbatch will add more in this step.
  void set_after_backward(std::function<void(const Block&, bool last)> hook) {
    after_backward_ = std::move(hook);
  }
  // Called around every use of a block's parameters (ZeRO 3).
  void set_parameter_hooks(std::function<void(const Block&)> before,
                           std::function<void(const Block&)> after);

  int rank() const { return rank_; }
  int rank_of(const std::string& wire) const;  // that writes it
  const Schedule& schedule_for(int num_microbatches, int num_slices = 1) const;
  const std::vector<TimedAction>& timeline() const {
    return timeline_;
  }  // of the last forward_backward
  // Whether each action waits until the device has done it, so that the timeline shows its work and
  // not how long it took to ask for it.
  void set_exact_times(bool exact) { exact_times_ = exact; }
  std::map<std::string, BlockTime> times() const;  // of this rank's blocks

 private:
  struct Step;  // the state of one forward_backward
  struct StagePlan {
    int stage;
    bool sliced;  // its blocks run by rows
    std::unique_ptr<Executor> executor;
    std::vector<int> blocks;
    std::vector<std::string> reads;    // wires of other stages that it reads
    std::vector<std::string> writes;   // wires that other stages read
    std::vector<std::string> outputs;  // all wires it writes
  };
  struct WirePlan {
    int index = 0, stage = 0, rank = 0;  // of the writer
    bool sliced = false;                 // written slice by slice
    std::vector<int> remote_ranks;       // other ranks that read it, ascending
    std::vector<int> reading_stages;     // other stages that read it, ascending
    bool differentiable = false;
  };
  struct Plan {
    Placement placement;
    std::vector<StagePlan>
        stages;  // this rank's, ascending; none where all its blocks were moved to others
    std::map<std::string, WirePlan> wires;
    std::vector<bool> sliced;  // by stage, of all ranks
    const StagePlan& stage(int number) const;
  };
  struct Message {
    std::string wire;
    int index;      // its writer's
    bool gradient;  // it, or the wire's value
    bool operator==(const Message&) const = default;
  };
  // With token slices a stage becomes up to three: its blocks before, of and after the slices.
  struct Parts {
    int before = -1, sliced = -1, after = -1;
  };
  Plan make_plan(Placement placement, const std::vector<bool>& sliced) const;
  void plan_slices();
  std::vector<Action> actions_for(const Step& step, int rank) const;
  std::deque<Message> messages_from(const Step& step, int sender) const;
  void open_links(at::Device device);
  int tag(const WirePlan& wire, int index, bool gradient) const;
  at::Tensor room_for(const std::string& wire, const Pass& pass) const;
  void run_forward(Step& step, const Action& action);
  WireValues gather_gradients(Step& step, const StagePlan& stage, int index,
                              const ForwardPass& forward);
  void run_backward(Step& step, const Action& action);
  void run_weights(Step& step, const Action& action);
  void receive_for(Step& step, const Action& action);
  void receive(Step& step, int sender, const Message& message);
  void post(Step& step, int sender, const Message& message);

  const BlockList* blocks_;
  std::string schedule_;
  std::shared_ptr<Communicator> pp_;
  int rank_;
  std::set<std::string> recompute_;
  std::function<void(const Block&)> before_use_, after_use_;
  std::function<bool(const Block&)> sliced_ = [](const Block& block) { return block.by_rows(); };
  Executor whole_;  // knows the wires of the whole list; runs nothing
  Plan plan_;
  std::unique_ptr<Plan> slice_plan_;  // once there have been slices
  std::vector<Parts> parts_;          // of plan_'s stages in slice_plan_
  mutable std::map<std::pair<int, int>, Schedule>
      schedules_;  // by number of microbatches and slices
  std::function<void(const Block&, bool)> after_backward_;
  std::vector<TimedAction> timeline_;
  bool exact_times_ = false;
  std::optional<at::Device> linked_;  // for whose tensors the links are open
};

}  // namespace contexture::parallel
