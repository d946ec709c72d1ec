// Proof that a layout trains what one process would: loss, every gradient, and the parameters after
// some steps of AdamW, side by side.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "train/config.h"
#include "train/session.h"

namespace contexture::train {

// What the first steps of a run came to: the same things whatever the layout.
struct Outcome {
  std::vector<double> losses, contrastive, grad_norms;  // one a step
  std::vector<double> objectives;                       // of all steps, one after another
  parallel::NamedTensors gradients;   // of the first step, before clipping; logical
  parallel::NamedTensors parameters;  // after the last step; logical
};

// Trains `steps` steps of the run, from its start, writing nothing but a missing tokenizer (and
// RUN/encoder). Tensors are on rank 0. Collective.
Outcome outcome_of(const RunConfig& config, parallel::Groups groups, int64_t steps);

// Largest differences, relative. Tensors are compared by their norms; one whose norm is below a
// millionth of the largest is held against that.
struct Difference {
  double loss = 0.0, gradient = 0.0, step = 0.0;
  std::string worst_parameter;
};
Difference compare(const Outcome& want, const Outcome& got);

// Ten steps in this layout and, on rank 0, in one process, both in fp64 whatever the configuration
// says. Collective; the result is on rank 0.
Difference verify_parity(RunConfig config, parallel::Groups groups);

}  // namespace contexture::train
