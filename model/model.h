// The assembled image-language model: a block list over one parameter store (docs/design.md 1).
#pragma once
#include <memory>
#include <string>

#include "model/decoder.h"
#include "model/objective_loss.h"
#include "parallel/executor.h"

namespace contexture::model {

// Owns parameters and blocks. Without materialise() it is shapes only: counting a model of 17
// billion parameters takes no memory. Not thread-safe; two models do not share anything.
class Model {
 public:
  // tp: the group that shares every layer (tensor parallelism); null: none. shares_rows: and the
  // rows between its branches (sequence parallelism). objectives: what a training run wants besides
  // the reader's loss. Throws UsageError when the config is invalid.
  explicit Model(const ModelConfig& config, std::shared_ptr<parallel::Communicator> tp = nullptr,
                 bool shares_rows = false, const ObjectiveOptions& objectives = {});

  const ModelConfig& config() const { return config_; }
  const ObjectiveOptions& objectives() const { return objectives_; }
  const parallel::BlockList& blocks() const { return blocks_; }
  parallel::ParameterStore& parameters() { return store_; }
  const parallel::ParameterStore& parameters() const { return store_; }
  // owned: which parameters get memory and values (ParameterStore::materialise); null: all.
  void materialise(at::ScalarType dtype, at::Device device, uint64_t seed,
                   const std::function<bool(const parallel::Parameter&)>& owned = nullptr);
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }

  const std::string& memory_wire() const {
    return memory_wire_;
  }  // doc.states, reader.states or dec.states

  // Unit-length retrieval embeddings without gradient, [n, E] fp32 (fp64 in an fp64 model), on the
  // CPU. tower: "doc" or "query". Cut into passes of at most max_rows rows, longest sequences
  // together; the result does not depend on the cut.
  at::Tensor embed(const std::string& tower, const std::vector<const Sequence*>& sequences,
                   int64_t max_rows = 16384) const;
  // The same with the passes run elsewhere (a pipeline): `run` gets one pass a call and returns the
  // embeddings. agree_on_passes gets the number of passes needed and returns how many to run: ranks
  // that must run as many as others do run fillers.
  using RunPass = std::function<at::Tensor(const parallel::Pass&)>;
  at::Tensor embed(const std::string& tower, const std::vector<const Sequence*>& sequences,
                   const RunPass& run, const std::function<int64_t(int64_t)>& agree_on_passes,
                   int64_t max_rows = 16384) const;

  // Multiply-adds x 2 of one forward pass; backward costs twice that.
  double forward_flops(const parallel::Pass& pass) const;

 private:
  void add_tower(const std::string& tower, const std::string& prefix, const std::string& role);
  ModelConfig config_;
  ObjectiveOptions objectives_;
  parallel::ParameterStore store_;
  parallel::BlockList blocks_;
  std::unique_ptr<parallel::Executor> executor_;
  at::ScalarType dtype_ = at::kFloat;
  at::Device device_ = at::kMeta;
  std::string memory_wire_;
};

}  // namespace contexture::model
