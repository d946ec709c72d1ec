// Child processes that are the ranks of one node: their lines on stderr get a prefix, signals are
// passed on, and the first failure ends all.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace contexture::cli {

struct RankCommand {
  int rank = 0;
  std::vector<std::string> arguments;              // of this program, run again
  std::map<std::string, std::string> environment;  // on top of this process's
};

// Starts all and waits for all. Rank 0's stdout is this process's; the stdout of others joins their
// stderr. stdin is empty. Stop signals (core/signals.h) that this process gets are passed on. After
// the first failure the others have grace_s to end, then they are killed; if this process dies,
// they are killed. Returns 0 when all ended well, 75 when some saved and want to be requeued and
// the others ended well, else the exit code of the first failure that is not just a lost peer (4),
// which a rank that a signal killed counts as.
int run_ranks(const std::vector<RankCommand>& commands, int world_size, double grace_s);

}  // namespace contexture::cli
