#include "train/state_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace contexture::train {
namespace {

// Makes a file of the given size in a folder, maps it and unlinks it.
at::Tensor mapped(const std::string& folder, int64_t numbers, at::ScalarType type) {
  std::string path = folder + "/optimizer-XXXXXX";
  const int file = mkstemp(path.data());
  CONTEXTURE_REQUIRE(file >= 0, "parallel.offload=", folder,
                     ": no file can be made there: ", std::strerror(errno), ".");
  const auto bytes = numbers * static_cast<int64_t>(c10::elementSize(type));
  // Reserved at once: writing to a mapped page for which the disk has no room would end the
  // process.
  const int error = posix_fallocate(file, 0, bytes);
  close(file);
  at::Tensor out;
  if (error == 0)
    out = at::from_file(path, /*shared=*/true, numbers, at::TensorOptions().dtype(type));
  unlink(path.c_str());
  CONTEXTURE_REQUIRE(error == 0, "parallel.offload=", folder, ": ", bytes,
                     " bytes of optimizer state do not fit there: ", std::strerror(error),
                     ". Name another folder.");
  return out;
}

}  // namespace

StateMemory::StateMemory(std::string place, int64_t numbers, at::ScalarType type, at::Device device)
    : place_(std::move(place)), options_(at::TensorOptions().dtype(type)) {
  if (place_ == "device") {
    options_ = options_.device(device);
  } else if (place_ == "host") {
    options_ = options_.pinned_memory(device.is_cuda());
  } else {
    file_ = mapped(place_, std::max<int64_t>(1, numbers), type);
  }
}

at::Tensor StateMemory::zeros(int64_t n) {
  if (!file_.defined()) return at::zeros({n}, options_);
  CONTEXTURE_INVARIANT(used_ + n <= file_.numel(), "more optimizer state than was asked for");
  used_ += n;
  return file_.narrow(0, used_ - n, n);  // a new file reads as zeros
}

}  // namespace contexture::train
