// What each rank did in a step, and when: Chrome's trace format (chrome://tracing, Perfetto),
// beside the simulated one of `contexture plan`.
#pragma once
#include <filesystem>

#include "parallel/engine.h"

namespace contexture::train {

// The last forward_backward() of every pipeline rank of every replica, written by world rank 0
// (docs/formats/run-folder.md). Each rank's clock starts where its step does, so rows of different
// ranks are aligned to within the time of a barrier. Collective over the world; with one process
// there is no world and the one row is written. Throws UserError when the file cannot be written.
void write_timeline(parallel::Engine& engine, const std::filesystem::path& path);

}  // namespace contexture::train
