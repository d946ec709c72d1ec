// Local search from a plan, for objectives and sizes that the dynamic programme does not cover.
#pragma once
#include "parallel/partition.h"

namespace contexture::parallel {

// Moves single blocks to neighbouring stages, and whole runs of them across one boundary, while the
// objective falls. A plan that breaks the caps counts as infinitely bad, unless the start does.
// Keeps the number of stages.
Plan improve(const Trace& trace, const Plan& start, const PartitionOptions& options);

}  // namespace contexture::parallel
