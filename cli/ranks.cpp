#include "cli/ranks.h"

#include <algorithm>

#include "core/error.h"
#include "core/log.h"
#include "parallel/launch_env.h"

namespace contexture::cli {

parallel::Groups join_ranks(train::RunConfig& config) {
  const parallel::LaunchEnv env = parallel::detect_launch(parallel::process_environment());
  parallel::ParallelConfig& p = config.parallel;
  const int size = env.rendezvous.size, rank = env.rendezvous.rank;
  if (rank != 0) log::set_level(log::Level::warn);  // before the first message
  std::shared_ptr<parallel::Communicator> world;
  if (size > 1) world = parallel::connect(env.rendezvous, "gloo", static_cast<double>(p.first_timeout_s));
  try {
    if (p.dp == 0) p.dp = std::max<int64_t>(1, size / std::max<int64_t>(1, p.pp * p.tp));
    config.validate();
    parallel::MeshLayout(size, static_cast<int>(p.dp), static_cast<int>(p.pp), static_cast<int>(p.tp), p.order);
  } catch (const UsageError& error) {
    throw parallel::AgreedError(error.what(), rank);
  }
  if (!world) return {};
  return parallel::groups_of(std::make_shared<const parallel::Mesh>(world, static_cast<int>(p.dp), static_cast<int>(p.pp),
                                                                    static_cast<int>(p.tp), p.order));
}

}  // namespace contexture::cli
