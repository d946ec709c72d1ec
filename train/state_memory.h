// Where an optimizer keeps masters and moments: beside the weights, in host memory, or in a file
// that is mapped into memory (parallel.offload). They are read and written once a step, so they may
// lie far from where the step computes.
#pragma once
#include <ATen/ATen.h>

#include <string>

namespace contexture::train {

class StateMemory {
 public:
  // place: "device", "host" (pinned where `device` is a GPU), or an existing folder. numbers: of
  // that type, how many zeros() will hand out in all; a folder then gets one file of that size,
  // already unlinked: it is gone when the process ends, however it ends. Throws UserError naming
  // the folder when it cannot be written or has no room.
  StateMemory(std::string place, int64_t numbers, at::ScalarType type, at::Device device);

  at::Tensor zeros(int64_t n);  // [n]
  bool apart() const { return place_ != "device"; }

 private:
  std::string place_;
  at::TensorOptions options_;
  at::Tensor file_;  // folder: all of it
  int64_t used_ = 0;
};

}  // namespace contexture::train
