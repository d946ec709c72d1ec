#include "cli/ranks.h"

#include "core/log.h"
#include "parallel/launch_env.h"

namespace contexture::cli {

parallel::Groups join_ranks(parallel::ParallelConfig& config) {
  const parallel::LaunchEnv env = parallel::detect_launch(parallel::process_environment());
  const int size = env.rendezvous.size;
  const auto pp = static_cast<int>(config.pp), tp = static_cast<int>(config.tp);
  if (config.dp == 0) config.dp = std::max<int64_t>(1, size / (config.pp * config.tp));
  if (size == 1) {
    parallel::MeshLayout(1, static_cast<int>(config.dp), pp, tp, config.order);  // refuses more ranks than there are
    return {};
  }
  if (env.rendezvous.rank != 0) log::set_level(log::Level::warn);
  const auto world = parallel::connect(env.rendezvous, "gloo", static_cast<double>(config.first_timeout_s));
  return parallel::groups_of(std::make_shared<const parallel::Mesh>(world, static_cast<int>(config.dp), pp, tp, config.order));
}

}  // namespace contexture::cli
