// Places at which a test may kill a process, so that a death in each phase of a step is met on
// purpose and not by chance.
#pragma once

namespace contexture {

// With CONTEXTURE_KILL_AT="RANK POINT N" in the environment, the process that `contexture launch`
// numbered RANK ends itself with SIGKILL when it comes upon the point of that name for the Nth
// time. Otherwise nothing. Thread-safe. Points: data (a step's samples are there), forward (a
// stage's forward is done, its wires not all sent), all-reduce (a bucket of gradients is about to
// be reduced), refresh (documents are embedded, not yet shared), save (this rank's files are
// written, the manifest is not).
void fault_point(const char* name) noexcept;

}  // namespace contexture
