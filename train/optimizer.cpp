#include "train/optimizer.h"

#include <ATen/ops/_fused_adamw.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "train/state_memory.h"

namespace contexture::train {

using parallel::NamedTensors;

void OptimizerConfig::validate() const {
  CONTEXTURE_USAGE_REQUIRE(rate > 0, "optimizer.rate=", rate, " must be positive.");
  CONTEXTURE_USAGE_REQUIRE(warmup_steps >= 0, "optimizer.warmup_steps=", warmup_steps,
                           " must not be negative.");
  CONTEXTURE_USAGE_REQUIRE(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1,
                           "optimizer.beta1=", beta1, " and optimizer.beta2=", beta2,
                           " must lie in [0, 1).");
  CONTEXTURE_USAGE_REQUIRE(epsilon > 0 && weight_decay >= 0 && max_grad_norm >= 0,
                           "optimizer.epsilon=", epsilon,
                           " must be positive; weight_decay=", weight_decay,
                           " and max_grad_norm=", max_grad_norm, " not negative.");
}

double rate_at(const OptimizerConfig& config, int64_t step, int64_t steps) {
  if (step < config.warmup_steps)
    return config.rate * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  const double span = std::max<double>(1.0, static_cast<double>(steps - config.warmup_steps));
  const double done = std::min(1.0, static_cast<double>(step - config.warmup_steps) / span);
  return config.rate * (config.final_rate + (1.0 - config.final_rate) * 0.5 *
                                                (1.0 + std::cos(std::numbers::pi * done)));
}

namespace {

// Calls visit(group) for the groups that match a name, in order.
template <typename Visit>
void for_each_match(const OptimizerConfig& config, const std::string& name, Visit&& visit) {
  for (const ParameterGroup& group : config.groups) {
    if (name.find(group.match) != std::string::npos) visit(group);
  }
}

}  // namespace

void apply_groups(const OptimizerConfig& config, parallel::ParameterStore& store) {
  for (const ParameterGroup& group : config.groups) {
    const bool used = std::any_of(store.all().begin(), store.all().end(), [&](const auto& p) {
      return p->name.find(group.match) != std::string::npos;
    });
    CONTEXTURE_USAGE_REQUIRE(used, "optimizer.groups: match=", group.match,
                             " matches no parameter's name.");
  }
  for (const auto& p : store.all()) {
    bool frozen = false;
    for_each_match(config, p->name, [&](const ParameterGroup& group) { frozen = group.frozen; });
    p->trainable = !frozen;
    p->value.set_requires_grad(!frozen);
  }
}

AdamW::AdamW(const OptimizerConfig& config, parallel::Engine& engine, const std::string& offload)
    : config_(config), engine_(&engine) {
  std::vector<parallel::Shard>& shards = engine.sharding().shards();
  int64_t numbers = 0;
  for (const parallel::Shard& shard : shards) numbers += 3 * shard.value.numel();
  const at::Tensor any = shards.empty() ? at::empty({0}) : shards.front().value;
  const at::ScalarType wide = parallel::wide_dtype(any.scalar_type());
  StateMemory memory(offload, numbers, wide, any.device());
  apart_ = memory.apart();
  for (parallel::Shard& shard : shards) {
    const parallel::Parameter& parameter = *shard.parameter;
    // Vectors (norm gains, roles, gates) are not decayed.
    double rate = 1.0, decay = parameter.shape.size() > 1 ? 1.0 : 0.0;
    for_each_match(config, parameter.name, [&](const ParameterGroup& group) {
      rate = group.rate;
      decay *= group.decay;
    });
    const int64_t n = shard.value.numel();
    at::Tensor master = shard.value;
    if (apart_ || shard.value.scalar_type() != wide) {
      master = memory.zeros(n);
      master.copy_(shard.value.detach());
    }
    slots_.push_back({&shard, master, memory.zeros(n), memory.zeros(n),
                      at::zeros({}, master.options().dtype(at::kFloat).pinned_memory(false)), rate,
                      decay});
  }
}

double AdamW::clip(double loss_scale) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> grads, counted;
  for (const Slot& slot : slots_) {
    const at::Tensor& grad = slot.shard->grad;
    if (grad.numel() == 0) continue;
    grads.push_back(grad);
    if (slot.shard->counted) counted.push_back(grad);
  }
  double square = 0.0;
  if (!counted.empty()) {  // from a device they come back at once
    const at::Tensor norms = at::stack(at::_foreach_norm(counted)).to(at::kCPU, at::kDouble);
    for (int64_t i = 0; i < norms.numel(); ++i) square += std::pow(norms.data_ptr<double>()[i], 2);
  }
  const double norm = std::sqrt(engine_->sum_over_parameters(square)) / loss_scale;
  double factor = 1.0 / loss_scale;
  if (config_.max_grad_norm > 0 && norm > config_.max_grad_norm)
    factor *= config_.max_grad_norm / norm;
  if (factor != 1.0 && std::isfinite(norm) && !grads.empty()) at::_foreach_mul_(grads, factor);
  return norm;
}

void AdamW::update(const std::vector<Slot*>& slots, double rate, double decay) const {
  std::vector<at::Tensor> values, grads, first, second, counts;
  for (const Slot* slot : slots) {
    values.push_back(slot->master);
    grads.push_back(slot->shard->grad.to(slot->master.device()));
    first.push_back(slot->first);
    second.push_back(slot->second);
    counts.push_back(slot->count);
  }
  at::_fused_adamw_(values, grads, first, second, /*max_exp_avg_sqs=*/{}, counts, rate,
                    config_.beta1, config_.beta2, config_.weight_decay * decay, config_.epsilon,
                    /*amsgrad=*/false, /*maximize=*/false);
}

void AdamW::step(double rate) {
  const at::NoGradGuard no_grad;
  // One fused call per distinct (rate, decay): most models have two. From elsewhere parameter by
  // parameter, so that one's gradient at a time is copied.
  std::map<std::pair<double, double>, std::vector<Slot*>> together;
  std::vector<at::Tensor> all_counts;
  for (Slot& slot : slots_) all_counts.push_back(slot.count);
  if (!all_counts.empty()) at::_foreach_add_(all_counts, 1);
  for (Slot& slot : slots_) {
    if (slot.master.numel() == 0) continue;
    if (apart_) {
      update({&slot}, rate * slot.rate, slot.decay);
    } else {
      together[{slot.rate, slot.decay}].push_back(&slot);
    }
  }
  for (const auto& [scale, slots] : together) update(slots, rate * scale.first, scale.second);
  for (Slot& slot : slots_) {
    if (!slot.master.is_same(slot.shard->value)) slot.shard->value.copy_(slot.master);
  }
  engine_->sharding().publish();
}

int64_t AdamW::state_bytes() const {
  size_t bytes = 0;
  for (const Slot& slot : slots_) {
    bytes += slot.first.nbytes() + slot.second.nbytes();
    if (!slot.master.is_same(slot.shard->value)) bytes += slot.master.nbytes();
  }
  return static_cast<int64_t>(bytes);
}

void AdamW::save(NamedTensors& model, NamedTensors& optimizer, bool copies) const {
  const auto slot_of = slots_by_parameter();
  for (const auto& p : engine_->store().all()) {
    const at::ScalarType wide = parallel::wide_dtype(p->value.scalar_type());
    const auto known = slot_of.find(p.get());
    const Slot* slot = known != slot_of.end() ? known->second : nullptr;
    const auto put = [&](NamedTensors& into, const std::string& name, const at::Tensor& part) {
      const at::Tensor local =
          slot != nullptr
              ? engine_->sharding().whole(*slot->shard, part.to(slot->shard->value.device()))
          : engine_->owned(*p) ? part
                               : at::Tensor();
      const at::Tensor whole = engine_->logical_for_writer(*p, local, wide);
      if (whole.defined())
        into[name] = copies && whole.is_alias_of(part) ? whole.clone() : whole.cpu();
    };
    put(model, p->name, slot != nullptr ? slot->master : p->value.detach());
    if (!p->trainable) continue;
    put(optimizer, p->name + ".first", slot != nullptr ? slot->first : at::Tensor());
    put(optimizer, p->name + ".second", slot != nullptr ? slot->second : at::Tensor());
    if (engine_->writes(*p)) optimizer[p->name + ".count"] = slot->count.cpu().clone();
  }
}

namespace {

// The named tensor, of the shape wanted; else undefined, and a line in `problems`.
at::Tensor checked(const NamedTensors& from, const std::string& name,
                   const std::vector<int64_t>& shape, std::string& problems) {
  const auto it = from.find(name);
  if (it == from.end()) {
    problems += "\n  " + name + " is missing";
  } else if (it->second.sizes() != at::IntArrayRef(shape)) {
    problems +=
        concat("\n  ", name, " has shape ", it->second.sizes(), ", not ", at::IntArrayRef(shape));
  } else {
    return it->second;
  }
  return {};
}

// A shard's part of a parameter's whole value.
at::Tensor shard_of(const parallel::Shard& shard, const at::Tensor& whole) {
  return shard.parameter->local(whole).reshape(-1).narrow(0, shard.begin, shard.end - shard.begin);
}

}  // namespace

std::map<const parallel::Parameter*, const AdamW::Slot*> AdamW::slots_by_parameter() const {
  std::map<const parallel::Parameter*, const Slot*> out;
  for (const Slot& slot : slots_) out[slot.shard->parameter] = &slot;
  return out;
}

void AdamW::start_from(const std::function<at::Tensor(const parallel::Parameter&)>& value) {
  const at::NoGradGuard no_grad;
  const auto slot_of = slots_by_parameter();
  for (const auto& p : engine_->store().all()) {
    const auto known = slot_of.find(p.get());
    if (known == slot_of.end() && !engine_->owned(*p)) continue;
    const at::Tensor whole = value(*p);
    if (!whole.defined()) continue;
    if (known == slot_of.end()) {
      p->value.detach().copy_(p->local(whole));
      continue;
    }
    const Slot& slot = *known->second;
    slot.master.copy_(shard_of(*slot.shard, whole));
    if (!slot.master.is_same(slot.shard->value)) slot.shard->value.copy_(slot.master);
  }
  engine_->sharding().publish();
}

void AdamW::load(const NamedTensors& model, const NamedTensors& optimizer) {
  const at::NoGradGuard no_grad;
  std::string problems;
  const auto slot_of = slots_by_parameter();
  for (const auto& p : engine_->store().all()) {
    const auto take = [&](const NamedTensors& from, const std::string& name, const at::Tensor& to) {
      const at::Tensor whole = checked(from, name, p->shape, problems);
      if (!whole.defined()) return;
      const auto known = slot_of.find(p.get());
      to.copy_(known == slot_of.end() ? p->local(whole) : shard_of(*known->second->shard, whole));
    };
    const auto known = slot_of.find(p.get());
    if (known == slot_of.end()) {
      if (engine_->owned(*p)) take(model, p->name, p->value.detach());
      continue;
    }
    const Slot& slot = *known->second;
    take(model, p->name, slot.master);
    take(optimizer, p->name + ".first", slot.first);
    take(optimizer, p->name + ".second", slot.second);
    const at::Tensor count = checked(optimizer, p->name + ".count", {}, problems);
    if (count.defined()) slot.count.copy_(count);
    if (!slot.master.is_same(slot.shard->value)) slot.shard->value.copy_(slot.master);
  }
  CONTEXTURE_DATA_REQUIRE(problems.empty(), "the checkpoint does not fit this model:", problems);
  engine_->sharding().publish();
}

void load_parameters(parallel::Engine& engine, const NamedTensors& model) {
  std::string problems;
  for (const auto& p : engine.store().all()) {
    const at::Tensor value = checked(model, p->name, p->shape, problems);
    if (value.defined() && engine.owned(*p)) engine.sharding().set_value(*p, p->local(value));
  }
  CONTEXTURE_DATA_REQUIRE(problems.empty(), "the checkpoint does not fit this model:", problems);
}

}  // namespace contexture::train
