// Times messages between two ranks.
#pragma once
#include "parallel/communicator.h"

namespace contexture::parallel {

// Half of what a message there and an equal one back take, the median of several; each end has its
// own. Two unmeasured rounds come first. Called by ranks a and b only.
double one_way_s(Communicator& world, int a, int b, int64_t bytes, int64_t repeats);

}  // namespace contexture::parallel
