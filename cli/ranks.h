// Joining the other ranks of a run, however they were started.
#pragma once
#include "parallel/engine.h"
#include "train/config.h"

namespace contexture::cli {

// Finds this process's rank (parallel/launch_env.h), connects to the others and lays the mesh that the settings ask for. Alone:
// groups of nothing. parallel.dp=0 becomes what pp and tp leave of the world, and the settings are validated. Throws AgreedError, on
// every rank, where they do not fit; DistributedError when not all ranks come.
parallel::Groups join_ranks(train::RunConfig& config);

}  // namespace contexture::cli
