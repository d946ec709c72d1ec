// Which stages, blocks and wires a rank has to do with, and in which order: everything of the
// pipeline that moves no tensor.
#include <algorithm>

#include "core/error.h"
#include "parallel/internal/pipeline_step.h"

namespace contexture::parallel {

Pipeline::Pipeline(const BlockList& blocks, Placement placement, std::string schedule,
                   std::shared_ptr<Communicator> pp, std::set<std::string> recompute)
    : blocks_(&blocks),
      schedule_(std::move(schedule)),
      pp_(std::move(pp)),
      rank_(pp_ ? pp_->rank() : 0),
      recompute_(std::move(recompute)),
      whole_(blocks),
      plan_(make_plan(std::move(placement), std::vector<bool>(blocks.size(), false))) {
  CONTEXTURE_INVARIANT(plan_.placement.graph.num_ranks == (pp_ ? pp_->size() : 1),
                       "a placement on ", plan_.placement.graph.num_ranks, " ranks");
}

Pipeline::Plan Pipeline::make_plan(Placement placement, const std::vector<bool>& sliced) const {
  Plan out;
  out.placement = std::move(placement);
  const StageGraph& graph = out.placement.graph;
  const std::vector<Wire>& wires = whole_.wires();
  for (int s = 0; s < graph.num_stages; ++s) {
    out.sliced.push_back(sliced[out.placement.blocks_of(s).front()]);
    if (graph.rank_of[s] != rank_) continue;
    StagePlan& plan = out.stages.emplace_back();
    plan.stage = s;
    plan.blocks = out.placement.blocks_of(s);
    plan.sliced = out.sliced[s];
    plan.executor = std::make_unique<Executor>(*blocks_, recompute_, plan.blocks);
    plan.executor->set_parameter_hooks(before_use_, after_use_);
  }
  for (size_t w = 0; w < wires.size(); ++w) {
    const Wire& wire = wires[w];
    WirePlan& plan = out.wires[wire.name];
    plan.index = static_cast<int>(w);
    plan.stage = out.placement.stage_of[wire.producer];
    plan.rank = graph.rank_of[plan.stage];
    plan.sliced = sliced[wire.producer];
    plan.differentiable = whole_.wants_grad(wire.name);
    std::set<int> stages, ranks;
    for (const int reader : wire.readers) {
      const int s = out.placement.stage_of[reader];
      if (s == plan.stage) continue;
      stages.insert(s);
      if (graph.rank_of[s] != plan.rank) ranks.insert(graph.rank_of[s]);
    }
    plan.reading_stages.assign(stages.begin(), stages.end());
    plan.remote_ranks.assign(ranks.begin(), ranks.end());
    for (StagePlan& stage : out.stages) {
      if (stage.stage == plan.stage) {
        stage.outputs.push_back(wire.name);
        if (!stages.empty()) stage.writes.push_back(wire.name);
      } else if (stages.count(stage.stage) != 0) {
        stage.reads.push_back(wire.name);
      }
    }
  }
  return out;
}

const Pipeline::StagePlan& Pipeline::Plan::stage(int number) const {
  const auto it = std::find_if(stages.begin(), stages.end(),
                               [number](const StagePlan& p) { return p.stage == number; });
  CONTEXTURE_INVARIANT(it != stages.end(), "stage ", number, " is not on this pipeline rank");
  return *it;
}

// Numbers all parts before the slices first, then the sliced ones, then those after: wires then go
// from lower to higher numbers.
void Pipeline::plan_slices() {
  enum Part { kBefore, kSliced, kAfter };
  const size_t num_blocks = blocks_->size();
  std::vector<Part> part_of(num_blocks, kBefore);
  std::vector<bool> sliced(num_blocks, false);
  for (size_t b = 0; b < num_blocks; ++b) {
    const Block& block = *(*blocks_)[b];
    Part latest = kBefore;
    for (const std::string& name : block.inputs())
      latest = std::max(latest, part_of[whole_.wire(name).producer]);
    sliced[b] = sliced_(block);
    CONTEXTURE_INVARIANT(!sliced[b] || latest != kAfter, "block '", block.name(),
                         "' runs in slices, but reads what needs all of them");
    part_of[b] = sliced[b] ? kSliced : latest == kBefore ? kBefore : kAfter;
  }
  const StageGraph& graph = plan_.placement.graph;
  std::vector<int> stage_of(num_blocks, -1), rank_of;
  parts_.assign(graph.num_stages, {});
  for (const auto& [part, number] :
       {std::pair{kBefore, &Parts::before}, std::pair{kSliced, &Parts::sliced},
        std::pair{kAfter, &Parts::after}}) {
    for (int s = 0; s < graph.num_stages; ++s) {
      for (const int b : plan_.placement.blocks_of(s)) {
        if (part_of[b] != part) continue;
        if (parts_[s].*number < 0) {
          parts_[s].*number = static_cast<int>(rank_of.size());
          rank_of.push_back(graph.rank_of[s]);
        }
        stage_of[b] = parts_[s].*number;
      }
    }
  }
  slice_plan_ = std::make_unique<Plan>(
      make_plan(place(*blocks_, std::move(stage_of), std::move(rank_of), graph.num_ranks), sliced));
}

const Schedule& Pipeline::schedule_for(int num_microbatches, int num_slices) const {
  const auto known = schedules_.find({num_microbatches, num_slices});
  if (known != schedules_.end()) return known->second;
  const StageGraph& graph = plan_.placement.graph;
  Schedule schedule;
  if (graph.num_stages == 1) {
    schedule.by_rank.resize(graph.num_ranks);
    for (int m = 0; m < num_microbatches; ++m) {
      schedule.by_rank[graph.rank_of[0]].push_back({0, Work::kForward, m});
      schedule.by_rank[graph.rank_of[0]].push_back({0, Work::kBackward, m});
    }
  } else if (schedule_ == "gpipe") {
    schedule = make_gpipe(graph, num_microbatches);
  } else if (schedule_ == "1f1b") {
    schedule = make_1f1b(graph, num_microbatches);
  } else if (schedule_ == "interleaved") {
    schedule = make_interleaved(graph, num_microbatches);
  } else if (schedule_ == "zb_h1") {
    schedule = make_zb_h1(graph, num_microbatches);
  } else {
    CONTEXTURE_USAGE_REQUIRE(schedule_ == "list", "parallel.schedule=", schedule_,
                             " is not known. Use gpipe, 1f1b, interleaved, zb_h1 or list.");
    schedule = make_list(graph, num_microbatches, unit_times(graph.num_stages), /*max_in_flight=*/0,
                         /*split_backward=*/true);
  }
  schedule = split_into_slices(schedule, num_slices);
  check_schedule(graph, schedule, num_microbatches * num_slices);
  return schedules_.emplace(std::pair{num_microbatches, num_slices}, std::move(schedule))
      .first->second;
}

// A rank's work. With slices, a checked schedule of whole stages becomes one of their parts:
// what a part waits for, its stage's slice waits for, too.
std::vector<Action> Pipeline::actions_for(const Step& step, int rank) const {
  const int n = step.num_slices;
  const std::vector<Action>& whole =
      schedule_for(static_cast<int>(step.passes->size()), n).by_rank[rank];
  if (step.slices->empty()) return whole;
  std::vector<Action> out;
  for (const Action& action : whole) {
    const Parts& parts = parts_[action.stage];
    const int m = action.microbatch / n, slice = action.microbatch % n;
    const auto run = [&](int part, int index) {
      if (part >= 0) out.push_back({part, action.work, index});
    };
    const bool forward = action.work == Work::kForward;
    if (slice == 0 && forward) run(parts.before, m);
    if (slice == n - 1 && !forward) run(parts.after, m);
    run(parts.sliced, action.microbatch);
    if (slice == n - 1 && forward) run(parts.after, m);
    if (slice == 0 && !forward) run(parts.before, m);
  }
  return out;
}

// What another rank's run_forward() and run_backward() will send to this one, in order.
std::deque<Pipeline::Message> Pipeline::messages_from(const Step& step, int sender) const {
  const auto contains = [](const std::vector<int>& some, int one) {
    return std::binary_search(some.begin(), some.end(), one);
  };
  std::deque<Message> out;
  std::map<Step::Key, int> left;  // readings there before the gradient goes out
  for (const Action& action : actions_for(step, sender)) {
    if (action.work == Work::kWeightGrad) continue;
    for (const Wire& each : whole_.wires()) {
      const WirePlan& wire = step.plan->wires.at(each.name);
      if (action.work == Work::kForward) {
        if (wire.stage == action.stage && contains(wire.remote_ranks, rank_))
          out.push_back({each.name, action.microbatch, false});
      } else if (wire.differentiable && contains(wire.reading_stages, action.stage)) {
        const std::vector<int> indices =
            step.read_at(wire, step.plan->sliced[action.stage], action.microbatch);
        for (auto index = indices.rbegin(); index != indices.rend(); ++index) {
          int& count = left.emplace(Step::Key{each.name, *index}, step.readings_on(sender, wire))
                           .first->second;
          if (--count == 0 && wire.rank == rank_) out.push_back({each.name, *index, true});
        }
      }
    }
  }
  return out;
}

void Pipeline::open_links(at::Device device) {
  if (!pp_ || linked_ == device) return;
  std::set<std::pair<int, int>> pairs;
  for (const auto& [name, wire] : plan_.wires) {
    for (const int reader : wire.remote_ranks) {
      pairs.emplace(wire.rank, reader);
      if (wire.differentiable) pairs.emplace(reader, wire.rank);
    }
  }
  pp_->open_links(pairs, device);
  linked_ = device;
}

void Pipeline::set_parameter_hooks(std::function<void(const Block&)> before,
                                   std::function<void(const Block&)> after) {
  before_use_ = std::move(before);
  after_use_ = std::move(after);
  for (const StagePlan& stage : plan_.stages)
    stage.executor->set_parameter_hooks(before_use_, after_use_);
}

std::map<std::string, BlockTime> Pipeline::times() const {
  std::map<std::string, BlockTime> out;
  for (const Plan* plan : {&plan_, static_cast<const Plan*>(slice_plan_.get())}) {
    if (plan == nullptr) continue;
    for (const StagePlan& stage : plan->stages) {
      for (const auto& [name, time] : stage.executor->times()) {
        out[name].forward_s += time.forward_s;
        out[name].backward_s += time.backward_s;
      }
    }
  }
  return out;
}

}  // namespace contexture::parallel
