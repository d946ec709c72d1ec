#include "parallel/pipeline.h"

#include <algorithm>

#include "core/error.h"
#include "core/fault_point.h"
#include "core/timing.h"
#include "parallel/device.h"
#include "parallel/internal/pipeline_step.h"

namespace contexture::parallel {
namespace {

// How many actions ahead receives are posted: the next one's wires travel while this one computes.
constexpr size_t kReceivesAhead = 2;

// Adds to a sum in fp32 or wider; one term alone keeps its type.
void add_to(at::Tensor& sum, const at::Tensor& term) {
  if (term.defined())
    sum = sum.defined() ? sum_in_order({sum, term}, wide_dtype(term.scalar_type())) : term;
}

}  // namespace

int Pipeline::tag(const WirePlan& wire, int index, bool gradient) const {
  return (index * static_cast<int>(whole_.wires().size()) + wire.index) * 2 + (gradient ? 1 : 0);
}

at::Tensor Pipeline::room_for(const std::string& wire, const Pass& pass) const {
  const int producer = whole_.wire(wire).producer;
  const Block& block = *(*blocks_)[producer];
  const auto output =
      std::find(block.outputs().begin(), block.outputs().end(), wire) - block.outputs().begin();
  const WireShape shape = block.shapes(pass)[output];
  return at::empty(shape.sizes, at::TensorOptions().dtype(shape.dtype).device(pass.device));
}

// Posts the receives that an action will wait for, once.
void Pipeline::receive_for(Step& step, const Action& action) {
  const StagePlan& stage = step.plan->stage(action.stage);
  if (action.work == Work::kForward) {
    for (const std::string& name : stage.reads) {
      const WirePlan& wire = step.plan->wires.at(name);
      if (wire.rank == rank_) continue;
      for (const int index : step.read_at(wire, stage.sliced, action.microbatch)) {
        const Step::Key key{name, index};
        if (step.values.count(key) == 0 && step.arriving.count(key) == 0)
          receive(step, wire.rank, {name, index, false});
      }
    }
  } else if (action.work != Work::kWeightGrad) {
    for (const std::string& name : stage.writes) {
      const WirePlan& wire = step.plan->wires.at(name);
      if (!wire.differentiable) continue;
      for (const int reader : wire.remote_ranks) {
        if (step.arriving_gradients.count({{name, action.microbatch}, reader}) == 0)
          receive(step, reader, {name, action.microbatch, true});
      }
    }
  }
}

// Without tags, what the sender sends before it is received first, and kept.
void Pipeline::receive(Step& step, int sender, const Message& message) {
  const at::Device device = step.passes->front()->device;
  if (pp_->has_tags(device)) return post(step, sender, message);
  if (step.coming.count(sender) == 0) step.coming[sender] = messages_from(step, sender);
  std::deque<Message>& coming = step.coming.at(sender);
  for (bool found = false; !found;) {
    CONTEXTURE_INVARIANT(!coming.empty(), "rank ", sender, " of the pipeline never sends wire '",
                         message.wire, "', number ", message.index);
    const Message next = std::move(coming.front());
    coming.pop_front();
    post(step, sender, next);
    found = next == message;
  }
}

void Pipeline::post(Step& step, int sender, const Message& message) {
  const WirePlan& wire = step.plan->wires.at(message.wire);
  const Step::Key key{message.wire, message.index};
  const at::Tensor room = room_for(message.wire, step.pass(wire.sliced, message.index));
  const bool sent =
      room.numel() > 0 && (!message.gradient || at::isFloatingType(room.scalar_type()));
  Pending pending;
  if (sent) pending = pp_->receive(room, sender, tag(wire, message.index, message.gradient));
  if (!message.gradient) {
    step.arriving[key] = {room, std::move(pending)};
  } else if (sent) {
    step.arriving_gradients[{key, sender}] = {room, std::move(pending)};
  }
}

void Pipeline::run_forward(Step& step, const Action& action) {
  const StagePlan& stage = step.plan->stage(action.stage);
  WireValues given;
  for (const std::string& name : stage.reads) {
    const WirePlan& wire = step.plan->wires.at(name);
    Tensors parts;
    for (const int index : step.read_at(wire, stage.sliced, action.microbatch)) {
      const Step::Key key{name, index};
      if (const auto it = step.arriving.find(key); it != step.arriving.end()) {
        const double start = now_s();
        it->second.pending.wait();
        step.waited_s += now_s() - start;
        step.values[key] = {it->second.value, step.readings_on(rank_, wire)};
        step.arriving.erase(it);
      }
      auto& [value, left] = step.values.at(key);
      parts.push_back(value);
      if (--left == 0) step.values.erase(key);
    }
    given[name] = parts.size() == 1 ? parts[0] : at::cat(parts);
  }
  ForwardPass forward =
      stage.executor->forward(step.pass(stage.sliced, action.microbatch), /*grad=*/true, {}, given);
  fault_point("forward");
  for (const std::string& name : stage.writes) {
    const WirePlan& wire = step.plan->wires.at(name);
    const Step::Key key{name, action.microbatch};
    const at::Tensor value = forward.wire(name).contiguous();
    if (const int here = step.readings_on(rank_, wire); here > 0) step.values[key] = {value, here};
    for (const int reader : wire.remote_ranks) {
      if (value.numel() == 0) continue;
      step.sent[{key, reader}] = pp_->send(value, reader, tag(wire, action.microbatch, false));
    }
  }
  for (const std::string& name : stage.reads) forward.drop(name);
  step.forwards.emplace(std::pair{action.stage, action.microbatch}, std::move(forward));
}

// The gradients that a stage's outputs have gathered: of the roots, of stages here, and of those
// elsewhere.
WireValues Pipeline::gather_gradients(Step& step, const StagePlan& stage, int index,
                                      const ForwardPass& forward) {
  WireValues gradients;
  for (auto& [name, gradient] : (*step.roots)(index, forward)) {
    if (std::find(stage.outputs.begin(), stage.outputs.end(), name) != stage.outputs.end())
      gradients[name] = gradient;
  }
  for (const std::string& name : stage.writes) {
    const WirePlan& wire = step.plan->wires.at(name);
    const Step::Key key{name, index};
    at::Tensor sum = gradients[name];
    if (const auto here = step.gradients.find(key); here != step.gradients.end()) {
      add_to(sum, here->second.first);
      step.gradients.erase(here);
    }
    for (const int reader : wire.remote_ranks) {
      const auto it = step.arriving_gradients.find({key, reader});
      if (it == step.arriving_gradients.end()) continue;
      const double start = now_s();
      it->second.pending.wait();
      step.waited_s += now_s() - start;
      if (const auto sent = step.sent.find({key, reader}); sent != step.sent.end()) {
        sent->second.wait();  // the reader has had the wire: its memory may go
        step.sent.erase(sent);
      }
      add_to(sum, it->second.value);
      step.arriving_gradients.erase(it);
    }
    gradients[name] = sum;
  }
  return gradients;
}

void Pipeline::run_backward(Step& step, const Action& action) {
  const StagePlan& stage = step.plan->stage(action.stage);
  auto node = step.forwards.extract({action.stage, action.microbatch});
  CONTEXTURE_INVARIANT(!node.empty(), "backward of stage ", action.stage, " before its forward");
  WireValues gradients = gather_gradients(step, stage, action.microbatch, node.mapped());
  step.weights_apart = action.work == Work::kInputGrad;
  step.last_slice = step.ends_microbatch(stage, action.microbatch);
  Deferred* deferred =
      step.weights_apart ? &step.deferred[{action.stage, action.microbatch}] : nullptr;
  WireValues back =
      stage.executor->backward(std::move(node.mapped()), std::move(gradients), deferred);
  for (const std::string& name : stage.reads) {
    const WirePlan& wire = step.plan->wires.at(name);
    if (!wire.differentiable) continue;
    const auto it = back.find(name);
    const std::vector<int> indices = step.read_at(wire, stage.sliced, action.microbatch);
    int64_t row = it != back.end() && indices.size() > 1 ? it->second.size(0) : 0;
    for (auto index = indices.rbegin(); index != indices.rend();
         ++index) {  // as their writers will want them
      const Step::Key key{name, *index};
      const auto known = step.gradients.find(key);
      auto& [sum, left] =
          known != step.gradients.end()
              ? known->second
              : step.gradients.emplace(key, std::pair{at::Tensor(), step.readings_on(rank_, wire)})
                    .first->second;
      const bool in_parts = indices.size() > 1;
      const at::Tensor room = in_parts || wire.rank != rank_
                                  ? room_for(name, step.pass(wire.sliced, *index))
                                  : at::Tensor();
      if (it != back.end()) {
        if (in_parts) row -= room.size(0);
        add_to(sum, in_parts ? it->second.narrow(0, row, room.size(0)) : it->second);
      }
      if (--left > 0 || wire.rank == rank_) continue;
      // A wire without a gradient (nobody's loss depends on it) sends zeros: the writer waits for a
      // message of known size.
      const at::Tensor message =
          sum.defined() ? sum.to(room.scalar_type()).contiguous() : at::zeros_like(room);
      step.gradients.erase(key);
      if (message.numel() == 0 || !at::isFloatingType(message.scalar_type())) continue;
      step.sent_gradients.push_back(pp_->send(message, wire.rank, tag(wire, *index, true)));
    }
  }
  if (!step.weights_apart && step.last_slice) --step.backwards_left[action.stage];
}

void Pipeline::run_weights(Step& step, const Action& action) {
  const auto it = step.deferred.find({action.stage, action.microbatch});
  CONTEXTURE_INVARIANT(it != step.deferred.end(), "weight gradients of stage ", action.stage,
                       " before its input gradients");
  const StagePlan& stage = step.plan->stage(action.stage);
  stage.executor->finish(it->second);
  step.deferred.erase(it);
  if (!step.ends_microbatch(stage, action.microbatch)) return;
  const bool last = --step.backwards_left[action.stage] == 0;
  if (!after_backward_) return;
  for (const int b : stage.blocks) after_backward_(*(*blocks_)[b], last);
}

void Pipeline::forward_backward(const Passes& passes, const Roots& roots,
                                const std::vector<Passes>& slices) {
  if (!slices.empty() && slice_plan_ == nullptr) plan_slices();
  Step step;
  step.plan = slices.empty() ? &plan_ : slice_plan_.get();
  step.passes = &passes;
  step.slices = &slices;
  step.num_slices = slices.empty() ? 1 : static_cast<int>(slices.front().size());
  step.roots = &roots;
  const at::Device device = passes.front()->device;
  open_links(device);
  const std::vector<Action> actions = actions_for(step, rank_);
  for (const StagePlan& stage : step.plan->stages) {
    step.backwards_left[stage.stage] = static_cast<int>(passes.size());
    stage.executor->set_after_backward([this, &step, s = stage.stage](const Block& block) {
      if (after_backward_ && !step.weights_apart && step.last_slice)
        after_backward_(block, step.backwards_left[s] == 1);
    });
  }
  timeline_.clear();
  if (exact_times_) synchronize(device);
  const double begin = now_s();
  for (size_t i = 0; i < actions.size(); ++i) {
    for (size_t ahead = i; ahead < std::min(actions.size(), i + kReceivesAhead); ++ahead)
      receive_for(step, actions[ahead]);
    const double start = now_s();
    step.waited_s = 0.0;
    switch (actions[i].work) {
      case Work::kForward:
        run_forward(step, actions[i]);
        break;
      case Work::kBackward:
      case Work::kInputGrad:
        run_backward(step, actions[i]);
        break;
      case Work::kWeightGrad:
        run_weights(step, actions[i]);
        break;
    }
    if (exact_times_) synchronize(device);
    timeline_.push_back({actions[i], step.plan->stage(actions[i].stage).sliced, start - begin,
                         now_s() - begin, step.waited_s});
  }
  for (auto& [key, pending] : step.sent) pending.wait();
  for (Pending& pending : step.sent_gradients) pending.wait();
}

int Pipeline::rank_of(const std::string& wire) const { return plan_.wires.at(wire).rank; }

std::vector<WireValues> Pipeline::forward(const std::vector<const Pass*>& passes,
                                          const std::vector<std::string>& wanted,
                                          const WireValues& given,
                                          const std::vector<std::string>& here) {
  std::vector<WireValues> out(passes.size());
  if (!passes.empty()) open_links(passes.front()->device);
  std::vector<std::string> all = wanted;
  all.insert(all.end(), here.begin(), here.end());
  const std::vector<bool> needed = whole_.needed_for(all, given);
  // Ranks that read a wire in this pass: those that run a needed reader.
  const auto readers_of = [&](const std::string& name) {
    std::set<int> ranks;
    for (const int reader : whole_.wire(name).readers) {
      if (needed[reader])
        ranks.insert(plan_.placement.graph.rank_of[plan_.placement.stage_of[reader]]);
    }
    ranks.erase(plan_.wires.at(name).rank);
    return ranks;
  };
  // What this rank receives, by sender, in the order in which it is sent: stage by stage.
  std::map<int, std::vector<std::string>> incoming;
  for (const Wire& wire : whole_.wires()) {
    const WirePlan& plan = plan_.wires.at(wire.name);
    if (plan.rank != rank_ && needed[wire.producer] && given.count(wire.name) == 0 &&
        readers_of(wire.name).count(rank_) != 0)
      incoming[plan.rank].push_back(wire.name);
  }
  for (auto& [sender, names] : incoming) {
    std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
      return plan_.wires.at(a).stage < plan_.wires.at(b).stage;
    });
  }
  std::vector<Pending> sent;
  std::vector<at::Tensor> kept;
  for (size_t m = 0; m < passes.size(); ++m) {
    WireValues at_hand = given;
    for (const StagePlan& stage : plan_.stages) {
      if (std::none_of(stage.blocks.begin(), stage.blocks.end(), [&](int b) { return needed[b]; }))
        continue;
      for (const std::string& name : stage.reads) {
        const int sender = plan_.wires.at(name).rank;
        if (sender == rank_ || at_hand.count(name) != 0 || readers_of(name).count(rank_) == 0)
          continue;
        for (const std::string& next : incoming.at(sender)) {
          if (at_hand.count(next) != 0) continue;
          const at::Tensor room = room_for(next, *passes[m]);
          if (room.numel() > 0)
            pp_->receive(room, sender, tag(plan_.wires.at(next), static_cast<int>(m), false))
                .wait();
          at_hand[next] = room;
          if (next == name) break;
        }
      }
      const ForwardPass forward = stage.executor->forward(*passes[m], /*grad=*/false, all, at_hand);
      for (const std::string& name : stage.outputs) {
        const WirePlan& wire = plan_.wires.at(name);
        if (!forward.has(name) || given.count(name) != 0) continue;  // nobody else reads it
        at_hand[name] = forward.wire(name);
        if (wire.remote_ranks.empty() || at_hand[name].numel() == 0) continue;
        const std::set<int> readers = readers_of(name);
        if (readers.empty()) continue;
        kept.push_back(at_hand[name].contiguous());
        for (const int reader : readers)
          sent.push_back(pp_->send(kept.back(), reader, tag(wire, static_cast<int>(m), false)));
      }
    }
    for (const std::string& name : all) {
      const auto it = at_hand.find(name);
      if (it != at_hand.end() && plan_.wires.at(name).rank == rank_)
        out[m][name] = it->second.contiguous();
    }
  }
  for (Pending& pending : sent) pending.wait();
  if (!pp_) return out;
  for (size_t m = 0; m < passes.size(); ++m) {
    for (const std::string& name : wanted) {
      at::Tensor& value = out[m][name];
      if (!value.defined()) value = room_for(name, *passes[m]);
      if (value.numel() > 0) pp_->broadcast(value, plan_.wires.at(name).rank).wait();
    }
  }
  return out;
}

}  // namespace contexture::parallel
