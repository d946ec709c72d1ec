// Joining the other ranks of a run, however they were started.
#pragma once
#include "parallel/config.h"
#include "parallel/engine.h"

namespace contexture::cli {

// Finds this process's rank (parallel/launch_env.h), connects to the others and lays the mesh that the settings ask for. Alone:
// groups of nothing. config.dp 0 becomes what pp and tp leave of the world. Throws AgreedError, on every rank, where settings and
// world do not fit, DistributedError when not all ranks come.
parallel::Groups join_ranks(parallel::ParallelConfig& config);

}  // namespace contexture::cli
