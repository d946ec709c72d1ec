// Dropout masks drawn by counter: an element depends on the stream, its row's key and its column
// alone, whatever the device.
#pragma once
#include <ATen/ATen.h>

#include "core/rng.h"

namespace contexture::model::internal {

// 0 with probability p, else 1 / (1 - p): [N, width] fp32, where the keys are. key_N: int64.
at::Tensor dropout_mask(const at::Tensor& key_N, int64_t width, double p, const StreamKey& stream);

}  // namespace contexture::model::internal
