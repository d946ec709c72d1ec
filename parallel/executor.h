// Runs a block list in one process. Autograd never crosses a block boundary: inputs are detached, backward runs
// block by block in reverse, and the gradients of a wire are summed over its readers in ascending block order,
// in fp32 or wider. Recomputed blocks keep only their inputs. This is the reference for every parallel layout.
#pragma once
#include <set>

#include "parallel/block.h"

namespace contexture::parallel {

// Wall-clock seconds a block has taken since the last reset.
struct BlockTime {
  double forward_s = 0.0;
  double backward_s = 0.0;
};

// What one forward pass left behind: wire values, and per block what its backward needs. Movable; freed by backward.
class ForwardPass {
 public:
  // The value of a wire, detached. Undefined if its block wrote none; throws Bug on an unknown name.
  const at::Tensor& wire(const std::string& name) const;

 private:
  friend class Executor;
  struct Record {
    Tensors inputs;   // detached leaves
    Tensors outputs;  // with their graph; empty when recomputed
  };
  std::map<std::string, at::Tensor> values_;
  std::vector<Record> records_;
  const Pass* pass_ = nullptr;
};

class Executor {
 public:
  // The list must outlive the executor. recompute: names of blocks whose activations are computed anew in backward.
  explicit Executor(const BlockList& blocks, std::set<std::string> recompute = {});

  // Runs blocks whose outputs are needed for `wanted` (all when empty). With grad, keeps what backward needs;
  // the pass (and its feeds) must live until then.
  ForwardPass forward(const Pass& pass, bool grad, const std::vector<std::string>& wanted = {}) const;

  // Backpropagates the given wire gradients (a loss wire takes a ones scalar) and adds the parameters' gradients
  // to Parameter::grad. Consumes the pass. Wires and parameters without a path to a gradient are skipped.
  void backward(ForwardPass forward, std::map<std::string, at::Tensor> gradients) const;

  const std::vector<Wire>& wires() const { return wires_; }
  std::map<std::string, BlockTime>& times() const { return times_; }  // per block name; written by both passes

 private:
  bool wants_grad(const std::string& wire) const { return differentiable_.count(wire) != 0; }
  const BlockList* blocks_;
  std::set<std::string> recompute_;
  std::vector<Wire> wires_;
  std::map<std::string, int> wire_index_;
  std::set<std::string> differentiable_;  // wires behind which there is a trainable parameter
  mutable std::map<std::string, BlockTime> times_;
};

}  // namespace contexture::parallel
