// Ranks as threads of the test, and the model that they train.
#pragma once
#include <ATen/Parallel.h>

#include <exception>
#include <thread>

#include "train/parity.h"
#include "train/tiny_world.h"

namespace contexture::train {

// Calls body(groups) on config's dp x pp x tp ranks, each a thread, and on as many more that only
// refresh the index. Throws what the first failing
// rank threw. Messages are matched by order, as between GPUs, and must agree in their tags, too.
template <typename Body>
void on_threads(const parallel::ParallelConfig& p, const Body& body, int refresh_ranks = 0) {
  const auto world = static_cast<int>(p.dp * p.pp * p.tp) + refresh_ranks;
  auto communicators =
      parallel::make_thread_communicators(world, /*deadline_s=*/120.0, /*by_order=*/true);
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(world);
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r, communicator = std::move(communicators[r])] {
      at::set_num_threads(1);
      try {
        body(parallel::groups_of(communicator, p, refresh_ranks));
      } catch (const std::exception& error) {
        errors[r] = std::current_exception();
        communicator->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr consequence;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const parallel::PeerFailure&) {
      consequence = error;
    }
  }
  if (consequence) std::rethrow_exception(consequence);
}

// What every table of layouts here has: the ranks by axis, ZeRO and the schedule.
template <typename Layout>
void lay_out(RunConfig& config, const Layout& layout) {
  config.parallel.dp = layout.dp;
  config.parallel.pp = layout.pp;
  config.parallel.tp = layout.tp;
  config.parallel.zero = layout.zero;
  config.parallel.schedule = layout.schedule;
}

inline Outcome train_threads(const RunConfig& config, int64_t steps) {
  Outcome out;
  on_threads(config.parallel, [&](const parallel::Groups& groups) {
    Outcome mine = outcome_of(config, groups, steps);
    if (groups.rank() == 0) out = std::move(mine);
  });
  return out;
}

// The tiny model, wide enough in heads for four tensor-parallel ranks; a vocabulary (330) and a
// hidden layer (26) that four ranks cannot share evenly, and a batch that does not divide into the
// microbatches.
inline RunConfig tiny(const TinyWorld& world, const std::string& precision = "fp64") {
  RunConfig config = world.config(precision);
  config.model.heads = config.model.kv_heads = 4;
  config.model.head_width = 4;
  config.model.ffn_width = 26;
  config.data.pairs = "pairs.jsonl";
  config.data.pairs_per_step = 3;
  config.train.batch_size = 10;
  config.parallel.dp = 1;
  return config;
}

}  // namespace contexture::train
