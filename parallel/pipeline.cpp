#include "parallel/pipeline.h"

#include <algorithm>

#include "core/error.h"
#include "core/timing.h"

namespace contexture::parallel {
namespace {

// How many actions ahead receives are posted: the next one's wires travel while this one computes.
constexpr size_t kReceivesAhead = 2;

using Key = std::pair<std::string, int>;  // wire, microbatch

}  // namespace

struct Pipeline::Step {
  const std::vector<const Pass*>* passes = nullptr;
  const Roots* roots = nullptr;
  struct Arriving {
    at::Tensor value;
    Pending pending;
  };
  std::map<Key, Arriving> arriving;                       // wires from other ranks
  std::map<Key, std::pair<at::Tensor, int>> values;       // wires at hand, and how many stages here have yet to read them
  std::map<Key, std::pair<at::Tensor, int>> gradients;    // sums over stages here, and how many have yet to add theirs
  std::map<std::pair<Key, int>, Arriving> arriving_gradients;  // by wire, microbatch and reading rank
  std::map<std::pair<int, int>, ForwardPass> forwards;    // by stage and microbatch
  std::map<std::pair<int, int>, Deferred> deferred;
  std::map<std::pair<Key, int>, Pending> sent;            // forward sends: done when the gradient comes back
  std::deque<Pending> sent_gradients;
  std::map<int, int> backwards_left;                      // by stage
  bool weights_apart = false;                             // in the backward that is running
  double waited_s = 0.0;
};

Pipeline::Pipeline(const BlockList& blocks, Placement placement, std::string schedule, std::shared_ptr<Communicator> pp,
                   std::set<std::string> recompute)
    : blocks_(&blocks), placement_(std::move(placement)), schedule_(std::move(schedule)), pp_(std::move(pp)),
      rank_(pp_ ? pp_->rank() : 0), whole_(blocks) {
  CONTEXTURE_INVARIANT(placement_.graph.num_ranks == (pp_ ? pp_->size() : 1), "a placement on ", placement_.graph.num_ranks, " ranks");
  const std::vector<Wire> wires = wires_of(blocks);
  for (int s = 0; s < placement_.graph.num_stages; ++s) {
    if (placement_.graph.rank_of[s] != rank_) continue;
    StagePlan& plan = stages_.emplace_back();
    plan.stage = s;
    plan.blocks = placement_.blocks_of(s);
    plan.executor = std::make_unique<Executor>(blocks, recompute, plan.blocks);
  }
  for (size_t w = 0; w < wires.size(); ++w) {
    const Wire& wire = wires[w];
    WirePlan& plan = wires_[wire.name];
    plan.index = static_cast<int>(w);
    plan.stage = placement_.stage_of[wire.producer];
    plan.rank = placement_.graph.rank_of[plan.stage];
    plan.differentiable = whole_.wants_grad(wire.name);
    std::set<int> stages, ranks;
    for (const int reader : wire.readers) {
      const int s = placement_.stage_of[reader];
      if (s == plan.stage) continue;
      stages.insert(s);
      if (placement_.graph.rank_of[s] != plan.rank) ranks.insert(placement_.graph.rank_of[s]);
    }
    plan.reading_stages.assign(stages.begin(), stages.end());
    plan.remote_ranks.assign(ranks.begin(), ranks.end());
    for (StagePlan& stage : stages_) {
      if (stage.stage == plan.stage) {
        stage.outputs.push_back(wire.name);
        if (!stages.empty()) stage.writes.push_back(wire.name);
      } else if (stages.count(stage.stage) != 0) {
        stage.reads.push_back(wire.name);
      }
    }
  }
}

const Pipeline::StagePlan& Pipeline::stage_plan(int stage) const {
  const auto it = std::find_if(stages_.begin(), stages_.end(), [stage](const StagePlan& p) { return p.stage == stage; });
  CONTEXTURE_INVARIANT(it != stages_.end(), "stage ", stage, " is not on pipeline rank ", rank_);
  return *it;
}

int Pipeline::reading_stages_on(const WirePlan& wire, int rank) const {
  return static_cast<int>(std::count_if(wire.reading_stages.begin(), wire.reading_stages.end(),
                                        [&](int s) { return placement_.graph.rank_of[s] == rank; }));
}

int Pipeline::tag(const WirePlan& wire, int microbatch, bool gradient) const {
  return (microbatch * static_cast<int>(wires_.size()) + wire.index) * 2 + (gradient ? 1 : 0);
}

at::Tensor Pipeline::room_for(const std::string& wire, const Pass& pass) const {
  const int producer = whole_.wire(wire).producer;
  const Block& block = *(*blocks_)[producer];
  const auto output = std::find(block.outputs().begin(), block.outputs().end(), wire) - block.outputs().begin();
  const WireShape shape = block.shapes(pass)[output];
  return at::empty(shape.sizes, at::TensorOptions().dtype(shape.dtype).device(pass.device));
}

const Schedule& Pipeline::schedule_for(int num_microbatches) const {
  const auto known = schedules_.find(num_microbatches);
  if (known != schedules_.end()) return known->second;
  const StageGraph& graph = placement_.graph;
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
    CONTEXTURE_USAGE_REQUIRE(schedule_ == "list", "parallel.schedule=", schedule_, " is not known. Use gpipe, 1f1b, interleaved, zb_h1 or list.");
    schedule = make_list(graph, num_microbatches, unit_times(graph.num_stages), /*max_in_flight=*/0, /*split_backward=*/true);
  }
  check_schedule(graph, schedule, num_microbatches);
  return schedules_.emplace(num_microbatches, std::move(schedule)).first->second;
}

// Posts the receives that an action will wait for, once.
void Pipeline::receive_for(Step& step, const Action& action) {
  const StagePlan& stage = stage_plan(action.stage);
  const Pass& pass = *(*step.passes)[action.microbatch];
  if (action.work == Work::kForward) {
    for (const std::string& name : stage.reads) {
      const WirePlan& wire = wires_.at(name);
      const Key key{name, action.microbatch};
      if (wire.rank == rank_ || step.values.count(key) != 0 || step.arriving.count(key) != 0) continue;
      const at::Tensor room = room_for(name, pass);
      if (room.numel() == 0) {
        step.arriving[key] = {room, {}};
      } else {
        step.arriving[key] = {room, pp_->receive(room, wire.rank, tag(wire, action.microbatch, false))};
      }
    }
  } else if (action.work != Work::kWeightGrad) {
    for (const std::string& name : stage.writes) {
      const WirePlan& wire = wires_.at(name);
      if (!wire.differentiable) continue;
      for (const int reader : wire.remote_ranks) {
        const std::pair<Key, int> key{{name, action.microbatch}, reader};
        if (step.arriving_gradients.count(key) != 0) continue;
        const at::Tensor room = room_for(name, pass);
        if (!at::isFloatingType(room.scalar_type()) || room.numel() == 0) continue;
        step.arriving_gradients[key] = {room, pp_->receive(room, reader, tag(wire, action.microbatch, true))};
      }
    }
  }
}

void Pipeline::run_forward(Step& step, const Action& action) {
  const StagePlan& stage = stage_plan(action.stage);
  WireValues given;
  for (const std::string& name : stage.reads) {
    const Key key{name, action.microbatch};
    if (const auto it = step.arriving.find(key); it != step.arriving.end()) {
      const double start = now_s();
      it->second.pending.wait();
      step.waited_s += now_s() - start;
      step.values[key] = {it->second.value, reading_stages_on(wires_.at(name), rank_)};
      step.arriving.erase(it);
    }
    auto& [value, left] = step.values.at(key);
    given[name] = value;
    if (--left == 0) step.values.erase(key);
  }
  ForwardPass forward = stage.executor->forward(*(*step.passes)[action.microbatch], /*grad=*/true, {}, given);
  for (const std::string& name : stage.writes) {
    const WirePlan& wire = wires_.at(name);
    const Key key{name, action.microbatch};
    const at::Tensor value = forward.wire(name).contiguous();
    if (const int here = reading_stages_on(wire, rank_); here > 0) step.values[key] = {value, here};
    for (const int reader : wire.remote_ranks) {
      if (value.numel() == 0) continue;
      step.sent[{key, reader}] = pp_->send(value, reader, tag(wire, action.microbatch, false));
    }
  }
  for (const std::string& name : stage.reads) forward.drop(name);
  step.forwards.emplace(std::pair{action.stage, action.microbatch}, std::move(forward));
}

void Pipeline::run_backward(Step& step, const Action& action) {
  const StagePlan& stage = stage_plan(action.stage);
  const int m = action.microbatch;
  auto node = step.forwards.extract({action.stage, m});
  CONTEXTURE_INVARIANT(!node.empty(), "backward of stage ", action.stage, " before its forward");
  WireValues gradients;
  for (auto& [name, gradient] : (*step.roots)(m, node.mapped())) {
    if (std::find(stage.outputs.begin(), stage.outputs.end(), name) != stage.outputs.end()) gradients[name] = gradient;
  }
  const auto add = [&](const std::string& name, const at::Tensor& term) {
    if (!term.defined()) return;
    at::Tensor& sum = gradients[name];
    sum = sum_in_order({sum, term}, term.scalar_type());
  };
  for (const std::string& name : stage.writes) {
    const WirePlan& wire = wires_.at(name);
    if (const auto here = step.gradients.find({name, m}); here != step.gradients.end()) {
      add(name, here->second.first);
      step.gradients.erase(here);
    }
    for (const int reader : wire.remote_ranks) {
      const auto it = step.arriving_gradients.find({{name, m}, reader});
      if (it == step.arriving_gradients.end()) continue;
      const double start = now_s();
      it->second.pending.wait();
      step.waited_s += now_s() - start;
      if (const auto sent = step.sent.find({{name, m}, reader}); sent != step.sent.end()) {
        sent->second.wait();  // the reader has had the wire: its memory may go
        step.sent.erase(sent);
      }
      add(name, it->second.value);
      step.arriving_gradients.erase(it);
    }
  }
  step.weights_apart = action.work == Work::kInputGrad;
  Deferred* deferred = step.weights_apart ? &step.deferred[{action.stage, m}] : nullptr;
  WireValues back = stage.executor->backward(std::move(node.mapped()), std::move(gradients), deferred);
  for (const std::string& name : stage.reads) {
    const WirePlan& wire = wires_.at(name);
    if (!wire.differentiable) continue;
    const Key key{name, m};
    const auto known = step.gradients.find(key);
    auto& [sum, left] = known != step.gradients.end()
                            ? known->second
                            : step.gradients.emplace(key, std::pair{at::Tensor(), reading_stages_on(wire, rank_)}).first->second;
    const auto it = back.find(name);
    if (it != back.end()) sum = sum_in_order({sum, it->second}, it->second.scalar_type());
    if (--left > 0 || wire.rank == rank_) continue;
    // A wire without a gradient (nobody's loss depends on it) sends zeros: the writer waits for a message of known size.
    at::Tensor message = sum.defined() ? sum.contiguous() : room_for(name, *(*step.passes)[m]).zero_();
    step.gradients.erase(key);
    if (message.numel() == 0 || !at::isFloatingType(message.scalar_type())) continue;
    step.sent_gradients.push_back(pp_->send(message, wire.rank, tag(wire, m, true)));
  }
  if (!step.weights_apart) --step.backwards_left[action.stage];
}

void Pipeline::run_weights(Step& step, const Action& action) {
  const auto it = step.deferred.find({action.stage, action.microbatch});
  CONTEXTURE_INVARIANT(it != step.deferred.end(), "weight gradients of stage ", action.stage, " before its input gradients");
  stage_plan(action.stage).executor->finish(it->second);
  step.deferred.erase(it);
  const bool last = --step.backwards_left[action.stage] == 0;
  if (!after_backward_) return;
  for (const int b : stage_plan(action.stage).blocks) after_backward_(*(*blocks_)[b], last);
}

void Pipeline::forward_backward(const std::vector<const Pass*>& passes, const Roots& roots) {
  const int count = static_cast<int>(passes.size());
  const std::vector<Action>& actions = schedule_for(count).by_rank[rank_];
  Step step;
  step.passes = &passes;
  step.roots = &roots;
  for (const StagePlan& stage : stages_) {
    step.backwards_left[stage.stage] = count;
    stage.executor->set_after_backward([this, &step, s = stage.stage](const Block& block) {
      if (after_backward_ && !step.weights_apart) after_backward_(block, step.backwards_left[s] == 1);
    });
  }
  timeline_.clear();
  const double begin = now_s();
  for (size_t i = 0; i < actions.size(); ++i) {
    for (size_t ahead = i; ahead < std::min(actions.size(), i + kReceivesAhead); ++ahead) receive_for(step, actions[ahead]);
    const double start = now_s();
    step.waited_s = 0.0;
    switch (actions[i].work) {
      case Work::kForward: run_forward(step, actions[i]); break;
      case Work::kBackward:
      case Work::kInputGrad: run_backward(step, actions[i]); break;
      case Work::kWeightGrad: run_weights(step, actions[i]); break;
    }
    timeline_.push_back({actions[i], start - begin, now_s() - begin, step.waited_s});
  }
  for (auto& [key, pending] : step.sent) pending.wait();
  for (Pending& pending : step.sent_gradients) pending.wait();
}

std::vector<WireValues> Pipeline::forward(const std::vector<const Pass*>& passes, const std::vector<std::string>& wanted) {
  std::vector<WireValues> out(passes.size());
  const std::vector<bool> needed = whole_.needed_for(wanted);
  // Ranks that read a wire in this pass: those that run a needed reader.
  const auto readers_of = [&](const std::string& name) {
    std::set<int> ranks;
    for (const int reader : whole_.wire(name).readers) {
      if (needed[reader]) ranks.insert(placement_.graph.rank_of[placement_.stage_of[reader]]);
    }
    ranks.erase(wires_.at(name).rank);
    return ranks;
  };
  std::vector<Pending> sent;
  std::vector<at::Tensor> kept;
  for (size_t m = 0; m < passes.size(); ++m) {
    WireValues at_hand;
    for (const StagePlan& stage : stages_) {
      if (std::none_of(stage.blocks.begin(), stage.blocks.end(), [&](int b) { return needed[b]; })) continue;
      for (const std::string& name : stage.reads) {
        const WirePlan& wire = wires_.at(name);
        if (wire.rank == rank_ || at_hand.count(name) != 0 || readers_of(name).count(rank_) == 0) continue;
        const at::Tensor room = room_for(name, *passes[m]);
        if (room.numel() > 0) pp_->receive(room, wire.rank, tag(wire, static_cast<int>(m), false)).wait();
        at_hand[name] = room;
      }
      const ForwardPass forward = stage.executor->forward(*passes[m], /*grad=*/false, wanted, at_hand);
      for (const std::string& name : stage.outputs) {
        const WirePlan& wire = wires_.at(name);
        if (!needed[whole_.wire(name).producer]) continue;
        at_hand[name] = forward.wire(name);
        if (wire.remote_ranks.empty() || at_hand[name].numel() == 0) continue;
        const std::set<int> readers = readers_of(name);
        if (readers.empty()) continue;
        kept.push_back(at_hand[name].contiguous());
        for (const int reader : readers) sent.push_back(pp_->send(kept.back(), reader, tag(wire, static_cast<int>(m), false)));
      }
    }
    for (const std::string& name : wanted) {
      const auto it = at_hand.find(name);
      if (it != at_hand.end() && wires_.at(name).rank == rank_) out[m][name] = it->second.contiguous();
    }
  }
  for (Pending& pending : sent) pending.wait();
  if (!pp_) return out;
  for (size_t m = 0; m < passes.size(); ++m) {
    for (const std::string& name : wanted) {
      at::Tensor& value = out[m][name];
      if (!value.defined()) value = room_for(name, *passes[m]);
      if (value.numel() > 0) pp_->broadcast(value, wires_.at(name).rank).wait();
    }
  }
  return out;
}

void Pipeline::set_parameter_hooks(std::function<void(const Block&)> before, std::function<void(const Block&)> after) {
  for (const StagePlan& stage : stages_) stage.executor->set_parameter_hooks(before, after);
}

std::map<std::string, BlockTime> Pipeline::times() const {
  std::map<std::string, BlockTime> out;
  for (const StagePlan& stage : stages_) out.insert(stage.executor->times().begin(), stage.executor->times().end());
  return out;
}

}  // namespace contexture::parallel
