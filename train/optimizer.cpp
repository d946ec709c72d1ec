#include "train/optimizer.h"

#include <ATen/ops/_fused_adamw.h>

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace contexture::train {

using parallel::NamedTensors;

void OptimizerConfig::validate() const {
  CONTEXTURE_USAGE_REQUIRE(rate > 0, "optimizer.rate=", rate, " must be positive.");
  CONTEXTURE_USAGE_REQUIRE(warmup_steps >= 0, "optimizer.warmup_steps=", warmup_steps, " must not be negative.");
  CONTEXTURE_USAGE_REQUIRE(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "optimizer.beta1=", beta1, " and optimizer.beta2=",
                           beta2, " must lie in [0, 1).");
  CONTEXTURE_USAGE_REQUIRE(epsilon > 0 && weight_decay >= 0 && max_grad_norm >= 0, "optimizer.epsilon=", epsilon,
                           " must be positive; weight_decay=", weight_decay, " and max_grad_norm=", max_grad_norm, " not negative.");
}

double rate_at(const OptimizerConfig& config, int64_t step, int64_t steps) {
  if (step < config.warmup_steps) return config.rate * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  const double span = std::max<double>(1.0, static_cast<double>(steps - config.warmup_steps));
  const double done = std::min(1.0, static_cast<double>(step - config.warmup_steps) / span);
  return config.rate * (config.final_rate + (1.0 - config.final_rate) * 0.5 * (1.0 + std::cos(std::numbers::pi * done)));
}

AdamW::AdamW(const OptimizerConfig& config, parallel::ParameterStore& store) : config_(config) {
  std::vector<bool> used(config.groups.size(), false);
  for (const auto& parameter : store.all()) {
    // Vectors (norm gains, roles, gates) are not decayed.
    double rate = 1.0, decay = parameter->shape.size() > 1 ? 1.0 : 0.0;
    bool frozen = false;
    for (size_t g = 0; g < config.groups.size(); ++g) {
      if (parameter->name.find(config.groups[g].match) == std::string::npos) continue;
      rate = config.groups[g].rate;
      decay *= config.groups[g].decay;
      frozen = config.groups[g].frozen;
      used[g] = true;
    }
    parameter->trainable = !frozen;
    parameter->value.set_requires_grad(!frozen);
    at::Tensor master = parameter->value.detach();
    const at::ScalarType wide = parallel::wide_dtype(master.scalar_type());
    if (master.scalar_type() != wide) master = master.to(wide);
    const auto zeros = [&] { return frozen ? at::Tensor() : at::zeros_like(master); };
    slots_.push_back({parameter.get(), master, zeros(), zeros(), at::zeros({}, at::kFloat), rate, decay});
  }
  for (size_t g = 0; g < used.size(); ++g) {
    CONTEXTURE_USAGE_REQUIRE(used[g], "optimizer.groups.", g, ".match=", config.groups[g].match, " matches no parameter's name.");
  }
}

double AdamW::clip() {
  const at::NoGradGuard no_grad;
  double square = 0.0;
  for (const Slot& slot : slots_) {
    if (slot.parameter->grad.defined()) square += std::pow(slot.parameter->grad.norm().item<double>(), 2);
  }
  const double norm = std::sqrt(square);
  if (config_.max_grad_norm > 0 && norm > config_.max_grad_norm) {
    for (const Slot& slot : slots_) {
      if (slot.parameter->grad.defined()) slot.parameter->grad.mul_(config_.max_grad_norm / norm);
    }
  }
  return norm;
}

void AdamW::step(double rate) {
  const at::NoGradGuard no_grad;
  // One fused call per distinct (rate, decay): most models have two.
  std::map<std::pair<double, double>, std::array<std::vector<at::Tensor>, 5>> calls;
  for (Slot& slot : slots_) {
    if (!slot.parameter->grad.defined() || !slot.parameter->trainable) continue;
    slot.count += 1;
    auto& [values, grads, first, second, counts] = calls[{slot.rate, slot.decay}];
    values.push_back(slot.master);
    grads.push_back(slot.parameter->grad);
    first.push_back(slot.first);
    second.push_back(slot.second);
    counts.push_back(slot.count);
  }
  for (auto& [scale, lists] : calls) {
    auto& [values, grads, first, second, counts] = lists;
    at::_fused_adamw_(values, grads, first, second, /*max_exp_avg_sqs=*/{}, counts, rate * scale.first, config_.beta1,
                      config_.beta2, config_.weight_decay * scale.second, config_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  }
  for (Slot& slot : slots_) {
    at::Tensor& value = slot.parameter->value;
    if (value.scalar_type() != slot.master.scalar_type()) value.copy_(slot.master);
  }
}

void AdamW::save(NamedTensors& model, NamedTensors& optimizer) const {
  for (const Slot& slot : slots_) {
    const std::string& name = slot.parameter->name;
    model[name] = slot.master;
    if (!slot.first.defined()) continue;
    optimizer[name + ".first"] = slot.first;
    optimizer[name + ".second"] = slot.second;
    optimizer[name + ".count"] = slot.count;
  }
}

namespace {

void copy_checked(const NamedTensors& from, const std::string& name, const at::Tensor& to, std::string& problems) {
  const auto it = from.find(name);
  if (it == from.end()) {
    problems += "\n  " + name + " is missing";
  } else if (it->second.sizes() != to.sizes()) {
    problems += concat("\n  ", name, " has shape ", it->second.sizes(), ", not ", to.sizes());
  } else {
    const at::NoGradGuard no_grad;
    const_cast<at::Tensor&>(to).copy_(it->second);
  }
}

}  // namespace

void AdamW::load(const NamedTensors& model, const NamedTensors& optimizer) {
  std::string problems;
  for (Slot& slot : slots_) {
    const std::string& name = slot.parameter->name;
    copy_checked(model, name, slot.master, problems);
    if (slot.first.defined()) {
      copy_checked(optimizer, name + ".first", slot.first, problems);
      copy_checked(optimizer, name + ".second", slot.second, problems);
      copy_checked(optimizer, name + ".count", slot.count, problems);
    }
    const at::NoGradGuard no_grad;
    if (slot.parameter->value.scalar_type() != slot.master.scalar_type()) slot.parameter->value.copy_(slot.master);
  }
  CONTEXTURE_DATA_REQUIRE(problems.empty(), "the checkpoint does not fit this model:", problems);
}

void load_parameters(parallel::ParameterStore& store, const NamedTensors& model) {
  std::string problems;
  for (const auto& p : store.all()) copy_checked(model, p->name, p->value.detach(), problems);
  CONTEXTURE_DATA_REQUIRE(problems.empty(), "the checkpoint does not fit this model:", problems);
}

}  // namespace contexture::train
