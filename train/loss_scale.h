// Dynamic loss scaling for fp16 (Micikevicius et al., arXiv:1710.03740): gradients are computed of
// the loss times a power of two, so that small ones do not vanish below fp16's range, and divided
// by it in fp32. A step whose gradients overflow is left out and the scale halved; after enough
// steps without one it is doubled.
#pragma once
#include <cstdint>
#include <string>

#include "core/json.h"

namespace contexture::train {

struct LossScaleConfig {
  double first = 65536.0;
  int64_t growth_steps = 2000;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("first", first, "factor at the start; a power of two");
    visit("growth_steps", growth_steps, "steps without an overflow after which it is doubled");
  }
  void validate() const;  // throws UsageError
};

class LossScale {
 public:
  LossScale() = default;  // off: 1 for ever, and every step is accepted
  explicit LossScale(const LossScaleConfig& config)
      : growth_steps_(config.growth_steps), scale_(config.first) {}

  double scale() const { return scale_; }
  bool on() const { return growth_steps_ > 0; }
  // Whether the step with this gradient norm (of unscaled gradients, over all ranks) may be taken;
  // adapts the scale to the answer. Throws UserError when gradients overflow at a scale of 1: then
  // the scale is not what is wrong.
  bool accepts(double grad_norm);
  int64_t skipped() const { return skipped_; }  // steps so far, over all processes of the run

  Json state() const {
    return {{"scale", scale_}, {"good_steps", good_steps_}, {"skipped", skipped_}};
  }
  void load(const Json& state, const std::string& where);  // does nothing when off

 private:
  int64_t growth_steps_ = 0;
  double scale_ = 1.0;
  int64_t good_steps_ = 0, skipped_ = 0;  // good_steps_: since the scale last changed
};

}  // namespace contexture::train
