// The tree partition of SageMaker (arXiv:2111.05972): modules are divided over devices from the
// root down.
#pragma once
#include <vector>

#include "parallel/trace.h"

namespace contexture::parallel {

// A device for each block. A module's cost is memory_weight * its share of memory + (1 -
// memory_weight) * its share of time; memory is state_factor * parameters + resident + activations
// of one microbatch. Modules that share a parameter count as one, at the first's place.
std::vector<int> tree_devices(const Trace& trace, int num_devices, double memory_weight,
                              double state_factor);

}  // namespace contexture::parallel
