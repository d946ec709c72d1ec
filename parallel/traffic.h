// What a pipeline will send, known before it runs: from a placement and the shapes that blocks
// promise for given feeds. The communicators' counters must agree to the byte
// (tests/parity/traffic_test.cpp). Pure functions; nothing is computed or sent.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/placement.h"

namespace contexture::parallel {

// Messages and bytes of one Pipeline::forward_backward() over these passes, by (sending, receiving)
// pipeline rank; pairs that send nothing are left out. Each wire goes once to each rank that reads
// it, whatever the number of its readers there, and its gradient, where parameters behind it are
// trainable, comes back once from each. passes: of one replica, in any order.
std::map<std::pair<int, int>, Traffic> pipeline_traffic(const BlockList& blocks,
                                                        const Placement& placement,
                                                        const std::vector<const Pass*>& passes);

}  // namespace contexture::parallel
