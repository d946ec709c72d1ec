// Passes without gradient, wherever a model's blocks are: all in this process, or on the stages of
// a replica. The ranks of a replica call the same functions with the same arguments, in the same
// order. With ZeRO 3 all replicas gather a block's weights together whenever one uses it: they then
// have to make equally many passes, over the same blocks (most()).
#pragma once
#include "parallel/engine.h"

namespace contexture::parallel {

class Inference {
 public:
  explicit Inference(const BlockList& blocks);  // all in this process
  explicit Inference(Engine& engine);           // which must outlive this

  // everywhere: wires whose values all ranks of the replica get. here: wires whose values only
  // those get that write them. given: values of wires that all ranks have; what writes them does
  // not run.
  WireValues run(const Pass& pass, const std::vector<std::string>& everywhere,
                 const WireValues& given = {}, const std::vector<std::string>& here = {}) const;
  // What the ranks that write a wire have in `tensor`, on all ranks of the replica, to the bit.
  // CPU.
  void tell(const std::string& wire, const at::Tensor& tensor) const;
  // The sum over the stages of the replica.
  void sum_over_stages(const at::Tensor& tensor) const;
  // With ZeRO 3 the largest number that any replica brings, otherwise mine. Collective over the
  // replicas.
  int64_t most(int64_t mine) const;
  bool together() const { return together_; }  // whether replicas have to

 private:
  std::unique_ptr<Pipeline> alone_;
  Pipeline* pipeline_;
  Groups groups_;
  bool together_ = false;
};

}  // namespace contexture::parallel
