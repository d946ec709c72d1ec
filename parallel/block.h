// A model is an ordered list of blocks joined by named wires. A block names the wires it reads and
// writes, the feeds (tensors of the microbatch: token ids, offsets, pixels) it needs, and its
// parameters. Nothing else of a model is known to what runs, traces, partitions or recomputes it
// (docs/design.md 2).
#pragma once
#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/parameters.h"

namespace contexture::parallel {

using Tensors = std::vector<at::Tensor>;
using Feeds = std::map<std::string, at::Tensor>;

struct Slice;
class Decoding;

// What a block may know of the pass besides its wires. Feeds are read by name; a missing one is a
// Bug.
class Pass {
 public:
  explicit Pass(const Feeds& feeds, bool training = false, uint64_t seed = 0, int64_t step = 0)
      : training(training), seed(seed), step(step), feeds_(&feeds) {}
  const at::Tensor& feed(const std::string& name) const;
  at::Device device = at::kCPU;  // where wires live
  const bool training;           // dropout is drawn only in training
  const uint64_t seed;
  const int64_t step;
  const Slice* slice =
      nullptr;  // the rows that this pass is about, if not all of the microbatch (parallel/slice.h)
  Decoding* decoding =
      nullptr;  // new rows of sequences whose earlier rows went before (parallel/decoding.h)

 private:
  const Feeds* feeds_;
};

// What a wire will hold in a pass, known before it starts: ranks that receive it make room for it.
struct WireShape {
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
};

class Block {
 public:
  Block(std::string name, std::vector<std::string> inputs, std::vector<std::string> outputs)
      : name_(std::move(name)), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}
  virtual ~Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Computes the outputs from the inputs, in the order they were named. Must be a pure function of
  // inputs, feeds, parameters and (seed, step): it runs a second time when its activations are
  // recomputed. An output that is undefined means: no value in this pass (no document has a
  // picture, say).
  virtual Tensors forward(const Tensors& inputs, const Pass& pass) const = 0;

  // The shapes of the outputs for these feeds, without computing them. Called on ranks that don't
  // own the block, too.
  virtual std::vector<WireShape> shapes(const Pass& pass) const = 0;

  // Multiply-adds x 2 of one forward: by default, each row of the first output times each of the
  // block's matrices.
  virtual double forward_flops(const Pass& pass) const;

  // Whether it may run on consecutive runs of its rows, each after the other (token slices): its
  // row n then depends on rows up to n alone, and it keeps what later slices need in Pass::slice.
  // Its feeds are those of the slice. The first dimension of its wires counts rows: a block that
  // does not, and reads one, gets those of all slices one after the other.
  virtual bool by_rows() const { return false; }

  const std::string& name() const { return name_; }
  const std::vector<std::string>& inputs() const { return inputs_; }
  const std::vector<std::string>& outputs() const { return outputs_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }

 protected:
  // Declares a parameter (or shares the one of that name) and records that this block reads it.
  const Parameter& use(ParameterStore& store, const std::string& name, std::vector<int64_t> shape,
                       Init init, Split split = {});

 private:
  std::string name_;
  std::vector<std::string> inputs_;
  std::vector<std::string> outputs_;
  std::vector<Parameter*> parameters_;
};

using BlockList = std::vector<std::unique_ptr<Block>>;

// A wire: one producer, any number of readers, as indices into the block list (ascending).
struct Wire {
  std::string name;
  int producer = -1;
  std::vector<int> readers;
};

// The wires of a list, in order of production. Throws Bug when a wire is written twice or read
// before it is written.
std::vector<Wire> wires_of(const BlockList& blocks);

}  // namespace contexture::parallel
