// Joining the other ranks of a run, however they were started.
#pragma once
#include <functional>

#include "parallel/engine.h"
#include "train/config.h"

namespace contexture::cli {

// Finds this process's rank (parallel/launch_env.h), connects to the others and lays the mesh that
// the settings ask for. Alone: groups of nothing. The device that run.device asks for becomes this
// thread's. parallel.dp=0 becomes what pp and tp leave of the world, and the settings are
// validated. Throws AgreedError, on every rank, where they do not fit; DistributedError when not
// all ranks come.
parallel::Groups join_ranks(train::RunConfig& config);

// The world of this process's ranks for a command without a mesh, over Gloo; null: alone. Ranks but
// 0 log warnings only.
std::shared_ptr<parallel::Communicator> join_world(double deadline_s);

// Runs `body` on a rank so that no other waits for it when it fails: a usage error, alike on all
// ranks, is told by rank 0 alone, what else goes wrong here is told to the others. world null: just
// runs it.
int run_on_rank(const std::shared_ptr<parallel::Communicator>& world,
                const std::function<int()>& body);

// Joins and runs body(groups) so. finished: a run to be used, not trained: alone, this process
// takes all of it, whatever layout it was trained in.
int on_ranks(train::RunConfig& config, bool finished,
             const std::function<int(parallel::Groups)>& body);

}  // namespace contexture::cli
