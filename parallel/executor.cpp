#include "parallel/executor.h"

#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "core/error.h"

namespace contexture::parallel {
namespace {

class Clock {
 public:
  explicit Clock(double& sink) : sink_(sink), start_(std::chrono::steady_clock::now()) {}
  ~Clock() {
    sink_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& sink_;
  std::chrono::steady_clock::time_point start_;
};

// Backward runs on the calling thread, whatever the device: what it does there (Deferred, a
// communicator, a stream) belongs to the thread.
class OnThisThread {
 public:
  OnThisThread() { state().set_multithreading_enabled(false); }
  ~OnThisThread() { state().set_multithreading_enabled(before_); }
  OnThisThread(const OnThisThread&) = delete;
  OnThisThread& operator=(const OnThisThread&) = delete;

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }
  const bool before_ = state().get_multithreading_enabled();
};

bool is_differentiable(const at::Tensor& t) {
  return t.defined() && at::isFloatingType(t.scalar_type());
}

void accumulate(at::Tensor& sum, const at::Tensor& term) {
  if (!term.defined()) return;
  const at::ScalarType wide = wide_dtype(term.scalar_type());
  if (!sum.defined()) {
    // The sum is added to in place, so it must own its memory: the engine may hand one tensor to
    // two leaves. And all of it: a part of a larger tensor would keep that alive until the next
    // step.
    const bool own = term.scalar_type() == wide && term.is_contiguous() && term.use_count() == 1 &&
                     term.storage().nbytes() == term.nbytes();
    sum = own ? term : at::empty(term.sizes(), term.options().dtype(wide)).copy_(term);
  } else {
    sum.add_(term);
  }
}

}  // namespace

at::Tensor sum_in_order(const Tensors& terms, at::ScalarType dtype) {
  at::Tensor sum;
  int64_t count = 0;
  for (const at::Tensor& term : terms) {
    if (!term.defined()) continue;
    if (count == 0) {
      sum = term;
    } else {
      const at::ScalarType wide = wide_dtype(dtype);
      sum = sum.to(wide).add(term.to(wide));
    }
    ++count;
  }
  return sum.defined() ? sum.to(dtype) : sum;
}

const at::Tensor& ForwardPass::wire(const std::string& name) const {
  const auto it = values_.find(name);
  CONTEXTURE_INVARIANT(it != values_.end(), "no wire called '", name,
                       "' was computed in this pass");
  return it->second;
}

Executor::Executor(const BlockList& blocks, std::set<std::string> recompute, std::vector<int> stage)
    : blocks_(&blocks),
      recompute_(std::move(recompute)),
      stage_(std::move(stage)),
      wires_(wires_of(blocks)) {
  if (stage_.empty()) {
    stage_.resize(blocks.size());
    std::iota(stage_.begin(), stage_.end(), 0);
  }
  for (size_t w = 0; w < wires_.size(); ++w) wire_index_[wires_[w].name] = static_cast<int>(w);
  for (const auto& block : blocks) {
    const auto& in = block->inputs();
    const auto& params = block->parameters();
    const bool grad =
        std::any_of(in.begin(), in.end(), [&](const auto& name) { return wants_grad(name); }) ||
        std::any_of(params.begin(), params.end(), [](const Parameter* p) { return p->trainable; });
    if (grad) differentiable_.insert(block->outputs().begin(), block->outputs().end());
  }
}

void Executor::set_parameter_hooks(BlockHook before, BlockHook after) {
  before_use_ = std::move(before);
  after_use_ = std::move(after);
}

const Wire& Executor::wire(const std::string& name) const {
  const auto it = wire_index_.find(name);
  CONTEXTURE_INVARIANT(it != wire_index_.end(), "no block writes wire '", name, "'");
  return wires_[it->second];
}

std::vector<bool> Executor::needed_for(const std::vector<std::string>& wanted,
                                       const WireValues& given) const {
  std::vector<bool> needed(blocks_->size(), wanted.empty());
  std::vector<std::string> todo = wanted;
  while (!todo.empty()) {
    const Wire& next = wire(todo.back());
    todo.pop_back();
    const int producer = next.producer;
    if (needed[producer] || given.count(next.name) != 0) continue;
    needed[producer] = true;
    const auto& in = (*blocks_)[producer]->inputs();
    todo.insert(todo.end(), in.begin(), in.end());
  }
  return needed;
}

// Forgets what a block has read, if nobody else will.
void Executor::free_inputs(const Block& block, int index, const std::vector<bool>& needed,
                           const std::vector<std::string>& wanted, WireValues& values) const {
  for (const std::string& name : block.inputs()) {
    if (std::find(wanted.begin(), wanted.end(), name) != wanted.end()) continue;
    const std::vector<int>& readers = wire(name).readers;
    const bool read = std::all_of(readers.begin(), readers.end(), [&](int r) {
      return !needed[r] || (r <= index && std::binary_search(stage_.begin(), stage_.end(), r));
    });
    if (read) values.erase(name);
  }
}

ForwardPass Executor::forward(const Pass& pass, bool grad, const std::vector<std::string>& wanted,
                              const WireValues& given) const {
  const std::vector<bool> needed = needed_for(wanted, given);
  ForwardPass result;
  result.pass_ = &pass;
  result.records_.resize(stage_.size());
  result.values_ = given;
  for (size_t i = 0; i < stage_.size(); ++i) {
    if (!needed[stage_[i]]) continue;
    const Block& block = *(*blocks_)[stage_[i]];
    const Clock clock(times_[block.name()].forward_s);
    const bool keep = grad && !block.outputs().empty() && wants_grad(block.outputs()[0]);
    const bool with_graph = keep && recompute_.count(block.name()) == 0;
    ForwardPass::Record record;
    for (const std::string& name : block.inputs()) {
      at::Tensor leaf = result.wire(name);
      if (leaf.defined()) leaf = leaf.detach();
      if (keep && wants_grad(name) && is_differentiable(leaf)) leaf.set_requires_grad(true);
      record.inputs.push_back(leaf);
    }
    if (before_use_) before_use_(block);
    {
      const at::AutoGradMode mode(with_graph);
      record.outputs = block.forward(record.inputs, pass);
    }
    if (after_use_) after_use_(block);
    CONTEXTURE_INVARIANT(record.outputs.size() == block.outputs().size(), "block '", block.name(),
                         "' wrote ", record.outputs.size(), " wires, not ", block.outputs().size());
    for (size_t o = 0; o < record.outputs.size(); ++o) {
      const at::Tensor& out = record.outputs[o];
      result.values_[block.outputs()[o]] = out.defined() ? out.detach() : out;
      record.dtypes.push_back(out.defined() ? out.scalar_type() : at::ScalarType::Undefined);
    }
    if (!with_graph) record.outputs.clear();
    if (keep) result.records_[i] = std::move(record);
    if (!grad && !wanted.empty()) free_inputs(block, stage_[i], needed, wanted, result.values_);
  }
  return result;
}

WireValues Executor::backward(ForwardPass forward, WireValues gradients, Deferred* deferred) const {
  // terms[wire][r]: the gradient that reader r (ascending) returned; the caller's own comes last.
  std::map<std::string, Tensors> terms;
  for (const Wire& wire : wires_) terms[wire.name].resize(wire.readers.size() + 1);
  for (auto& [name, gradient] : gradients) {
    CONTEXTURE_INVARIANT(terms.count(name) != 0, "a gradient is given for '", name,
                         "', which is no wire");
    terms[name].back() = gradient;
  }
  for (size_t i = stage_.size(); i-- > 0;) {
    const Block& block = *(*blocks_)[stage_[i]];
    ForwardPass::Record record = std::move(forward.records_[i]);
    forward.records_[i] = {};
    Tensors grads;
    bool any = false;
    for (size_t o = 0; o < block.outputs().size(); ++o) {
      const std::string& name = block.outputs()[o];
      const bool live = o < record.dtypes.size() && record.dtypes[o] != at::ScalarType::Undefined;
      grads.push_back(live ? sum_in_order(terms[name], record.dtypes[o]) : at::Tensor());
      terms.erase(name);
      any = any || grads.back().defined();
    }
    if (any)
      run_backward(block, static_cast<int>(stage_[i]), std::move(record), grads, *forward.pass_,
                   terms, deferred);
    if (after_backward_) after_backward_(block);
  }
  WireValues out;
  for (auto& [name, values] : terms) {
    const auto defined =
        std::find_if(values.begin(), values.end(), [](const at::Tensor& t) { return t.defined(); });
    if (defined == values.end()) continue;
    at::Tensor sum = sum_in_order(values, defined->scalar_type());
    if (sum.defined()) out[name] = std::move(sum);
  }
  return out;
}

void Executor::run_backward(const Block& block, int index, ForwardPass::Record record,
                            const Tensors& grads, const Pass& pass,
                            std::map<std::string, Tensors>& terms, Deferred* deferred) const {
  const Clock clock(times_[block.name()].backward_s);
  if (before_use_) before_use_(block);
  if (record.outputs.empty()) {
    const at::AutoGradMode mode(true);
    record.outputs = block.forward(record.inputs, pass);
  }
  Tensors roots, root_grads, leaves;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined() || !record.outputs[i].requires_grad()) continue;
    roots.push_back(record.outputs[i]);
    root_grads.push_back(grads[i]);
  }
  std::vector<at::Tensor*> sinks;
  for (size_t i = 0; i < record.inputs.size(); ++i) {
    if (!record.inputs[i].defined() || !record.inputs[i].requires_grad()) continue;
    const Wire& wire = wires_[wire_index_.at(block.inputs()[i])];
    const auto reader =
        std::find(wire.readers.begin(), wire.readers.end(), index) - wire.readers.begin();
    leaves.push_back(record.inputs[i]);
    sinks.push_back(&terms[wire.name][reader]);
  }
  const size_t num_inputs = leaves.size();
  std::vector<Parameter*> params;
  for (Parameter* p : block.parameters()) {
    if (!p->value.requires_grad()) continue;
    params.push_back(p);
    leaves.push_back(p->value);
  }
  if (!roots.empty() && !leaves.empty()) {
    const Deferred::Scope scope(deferred);
    const OnThisThread on_this_thread;
    const Tensors found = torch::autograd::grad(roots, leaves, root_grads, /*retain_graph=*/false,
                                                /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < num_inputs;
         ++i) {  // a block that lists a wire twice adds up its two gradients
      *sinks[i] = sinks[i]->defined() && found[i].defined() ? *sinks[i] + found[i]
                  : found[i].defined()                      ? found[i]
                                                            : *sinks[i];
    }
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < params.size(); ++i) accumulate(params[i]->grad, found[num_inputs + i]);
  }
  if (after_use_) after_use_(block);
}

void Executor::finish(Deferred& deferred) const {
  const at::NoGradGuard no_grad;
  std::map<const at::TensorImpl*, Parameter*> by_value;
  for (const int b : stage_) {
    for (Parameter* p : (*blocks_)[b]->parameters()) by_value[p->value.unsafeGetTensorImpl()] = p;
  }
  for (const Deferred::Product& product : deferred.take()) {
    Parameter* parameter = by_value.at(product.weight.unsafeGetTensorImpl());
    accumulate(parameter->grad, product.compute());
  }
}

}  // namespace contexture::parallel
