#include "train/loss_scale.h"

#include <cmath>

#include "core/error.h"

namespace contexture::train {

void LossScaleConfig::validate() const {
  int exponent = 0;
  CONTEXTURE_USAGE_REQUIRE(
      first >= 1.0 && std::frexp(first, &exponent) == 0.5, "train.loss_scale.first=", first,
      " must be a power of two, 1 or more: other factors would round every gradient.");
  CONTEXTURE_USAGE_REQUIRE(growth_steps > 0, "train.loss_scale.growth_steps=", growth_steps,
                           " must be positive.");
}

bool LossScale::accepts(double grad_norm) {
  if (!on()) return true;
  if (!std::isfinite(grad_norm)) {
    CONTEXTURE_REQUIRE(scale_ > 1.0,
                       "gradients overflow fp16 without any loss scale (gradient norm ", grad_norm,
                       "). Lower optimizer.rate, or train with train.precision=bf16 or fp32.");
    scale_ /= 2.0;
    good_steps_ = 0;
    ++skipped_;
    return false;
  }
  if (++good_steps_ == growth_steps_) {
    scale_ *= 2.0;
    good_steps_ = 0;
  }
  return true;
}

void LossScale::load(const Json& state, const std::string& where) {
  if (!on()) return;
  scale_ = json_get<double>(state, "scale", where);
  good_steps_ = json_get<int64_t>(state, "good_steps", where);
  skipped_ = json_get<int64_t>(state, "skipped", where);
}

}  // namespace contexture::train
