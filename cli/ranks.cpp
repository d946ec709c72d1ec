#include "cli/ranks.h"

#include <algorithm>

#include "core/error.h"
#include "core/log.h"
#include "parallel/device.h"
#include "parallel/launch_env.h"

namespace contexture::cli {

std::shared_ptr<parallel::Communicator> join_world(double deadline_s) {
  const parallel::LaunchEnv env = parallel::detect_launch(parallel::process_environment());
  if (env.rendezvous.rank != 0) log::set_level(log::Level::warn);  // before the first message
  return env.rendezvous.size > 1
             ? parallel::connect(env.rendezvous, at::hasCUDA() ? "nccl" : "gloo", deadline_s)
             : nullptr;
}

int run_on_rank(const std::shared_ptr<parallel::Communicator>& world,
                const std::function<int()>& body) {
  try {
    return body();
  } catch (const UsageError&
               error) {  // arguments are the same on all ranks, and so is what is wrong with them
    throw parallel::AgreedError(error.what(), world ? world->rank() : 0);
  } catch (const DistributedError&) {
    throw;
  } catch (const std::exception& error) {
    if (world) world->abort(error.what());  // so that the others can say why
    throw;
  }
}

parallel::Groups join_ranks(train::RunConfig& config) {
  parallel::ParallelConfig& p = config.parallel;
  const std::shared_ptr<parallel::Communicator> world =
      join_world(static_cast<double>(p.first_timeout_s));
  const int size = world ? world->size() : 1, rank = world ? world->rank() : 0;
  const int64_t refresh_ranks = config.retriever.refresh_ranks;
  try {
    config.retriever.validate();
    CONTEXTURE_USAGE_REQUIRE(refresh_ranks < size, "retriever.refresh_ranks=", refresh_ranks,
                             " of ", size, size == 1 ? " rank" : " ranks",
                             " leaves none to train. Start more (contexture launch --nproc ",
                             refresh_ranks + 1, "), or set it to 0.");
    const int training = size - static_cast<int>(refresh_ranks);
    if (p.dp == 0) p.dp = std::max<int64_t>(1, training / std::max<int64_t>(1, p.pp * p.tp));
    config.validate();
    try {
      parallel::MeshLayout(training, static_cast<int>(p.dp), static_cast<int>(p.pp),
                           static_cast<int>(p.tp), p.order);
    } catch (const UsageError& error) {
      if (refresh_ranks == 0) throw;
      throw UsageError(concat(error.what(), " (", refresh_ranks, " more of the ", size,
                              " do not train: retriever.refresh_ranks.)"));
    }
  } catch (const UsageError& error) {
    throw parallel::AgreedError(error.what(), rank);
  }
  parallel::agree_on_device(config.run.device,
                            parallel::detect_launch(parallel::process_environment()), world.get());
  if (!world) return {};
  return parallel::groups_of(world, p, static_cast<int>(refresh_ranks));
}

int on_ranks(train::RunConfig& config, bool finished,
             const std::function<int(parallel::Groups)>& body) {
  if (finished && parallel::detect_launch(parallel::process_environment()).rendezvous.size == 1)
    return body({});
  parallel::Groups groups = join_ranks(config);
  const std::shared_ptr<parallel::Communicator> world = groups.all ? groups.all : groups.world;
  return run_on_rank(world, [&] { return body(std::move(groups)); });
}

}  // namespace contexture::cli
