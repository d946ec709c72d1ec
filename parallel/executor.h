// Runs a block list, or a stage's share of it, in one process. Autograd never crosses a block
// boundary: inputs are detached, backward runs block by block in reverse, and the gradients of a
// wire are summed over its readers in ascending block order, in fp32 or wider. Recomputed blocks
// keep only their inputs. Over the whole list this is the reference for every parallel layout; over
// a share, wires come in from other stages and their gradients go back.
#pragma once
#include <functional>
#include <set>

#include "parallel/block.h"
#include "parallel/deferred_gradients.h"

namespace contexture::parallel {

using WireValues = std::map<std::string, at::Tensor>;
using BlockHook = std::function<void(const Block&)>;

// Sums a wire's gradients in order, in fp32 or wider, and returns the sum in the wire's own dtype.
// Undefined terms are left out.
at::Tensor sum_in_order(const Tensors& terms, at::ScalarType dtype);

// Wall-clock seconds a block has taken since the last reset. On a device that works in streams: the
// time to ask for its work.
struct BlockTime {
  double forward_s = 0.0;
  double backward_s = 0.0;
};

// What one forward pass left behind: wire values, and per block what its backward needs. Movable;
// freed by backward.
class ForwardPass {
 public:
  // The value of a wire, detached. Undefined if its block wrote none; throws Bug on an unknown
  // name.
  const at::Tensor& wire(const std::string& name) const;
  bool has(const std::string& name) const { return values_.count(name) != 0; }
  // Forgets a wire's value (not what backward needs of it): it has been sent to all who read it.
  void drop(const std::string& name) { values_.erase(name); }

 private:
  friend class Executor;
  struct Record {
    Tensors inputs;                      // detached leaves
    Tensors outputs;                     // with their graph; empty when recomputed
    std::vector<at::ScalarType> dtypes;  // of the outputs; kUndefined: none
  };
  WireValues values_;
  std::vector<Record> records_;
  const Pass* pass_ = nullptr;
};

class Executor {
 public:
  // The list must outlive the executor. recompute: names of blocks whose activations are computed
  // anew in backward. stage: the blocks this one runs, as ascending indices; empty: all.
  explicit Executor(const BlockList& blocks, std::set<std::string> recompute = {},
                    std::vector<int> stage = {});

  // Runs those of its blocks whose outputs are needed for `wanted` (all when empty). With grad,
  // keeps what backward needs; the pass (and its feeds) must live until then; without, and with
  // `wanted`, frees every other wire after its last reader, unless that is of another stage. given:
  // values of wires that are known, or that other stages write.
  ForwardPass forward(const Pass& pass, bool grad, const std::vector<std::string>& wanted = {},
                      const WireValues& given = {}) const;

  // Backpropagates the given wire gradients (a loss wire takes a ones scalar) and adds the
  // parameters' gradients to Parameter::grad. Consumes the pass. Wires and parameters without a
  // path to a gradient are skipped. Returns the gradients of the given wires, where there are any.
  // deferred: takes weight gradients of linear operators, for later.
  WireValues backward(ForwardPass forward, WireValues gradients,
                      Deferred* deferred = nullptr) const;

  // Computes put-off weight gradients and adds them to Parameter::grad.
  void finish(Deferred& deferred) const;

  const std::vector<Wire>& wires() const { return wires_; }  // of the whole list
  const Wire& wire(const std::string& name) const;           // throws Bug on an unknown name
  // True for wires behind which there is a trainable parameter.
  bool wants_grad(const std::string& wire) const { return differentiable_.count(wire) != 0; }
  // Blocks of the whole list that are needed for `wanted` by those who have the given wires.
  std::vector<bool> needed_for(const std::vector<std::string>& wanted,
                               const WireValues& given = {}) const;
  // Called around every use of a block's parameters.
  void set_parameter_hooks(BlockHook before, BlockHook after);
  // Called after each block's backward, whether it had a gradient or not.
  void set_after_backward(BlockHook hook) { after_backward_ = std::move(hook); }
  std::map<std::string, BlockTime>& times() const {
    return times_;
  }  // per block name; written by both passes

 private:
  void free_inputs(const Block& block, int index, const std::vector<bool>& needed,
                   const std::vector<std::string>& wanted, WireValues& values) const;
  void run_backward(const Block& block, int index, ForwardPass::Record record, const Tensors& grads,
                    const Pass& pass, std::map<std::string, Tensors>& terms,
                    Deferred* deferred) const;
  const BlockList* blocks_;
  std::set<std::string> recompute_;
  std::vector<int> stage_;
  std::vector<Wire> wires_;
  std::map<std::string, int> wire_index_;
  std::set<std::string> differentiable_;
  BlockHook before_use_, after_use_, after_backward_;
  mutable std::map<std::string, BlockTime> times_;
};

}  // namespace contexture::parallel
