// Each test of this folder runs on the shadow device, and on a GPU where there is one.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shadow_device.h"

namespace contexture {

inline const std::vector<std::string> kDevices{"shadow", "cuda"};
inline at::Device device_named(const std::string& name) {
  return name == "shadow" ? shadow::device() : at::Device(at::kCUDA, 0);
}

#define SKIP_WITHOUT(name)                \
  if ((name) == "cuda" && !at::hasCUDA()) \
  GTEST_SKIP() << "no GPU here, or a build without CONTEXTURE_CUDA"

// |a - b| / |b|, of tensors on any device.
inline double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().to(at::kDouble), y = b.cpu().to(at::kDouble);
  const double size = y.norm().item<double>();
  return (x - y).norm().item<double>() / (size > 0 ? size : 1.0);
}

}  // namespace contexture
