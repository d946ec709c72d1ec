// fp16 over many ranks: they agree on which steps overflow, wherever the overflow is.
#include <gtest/gtest.h>

#include <fstream>

#include "layouts.h"
#include "train/trainer.h"

namespace contexture::train {
namespace {

struct Record {
  std::vector<double> losses, scales;
  int64_t skipped = 0;
};

Record run_of(const std::string& dir) {
  Record out;
  std::ifstream file(dir + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    if (!record.contains("loss")) continue;
    out.losses.push_back(record["loss"].get<double>());
    out.scales.push_back(record["loss_scale"].get<double>());
    out.skipped = record["skipped_steps"].get<int64_t>();
  }
  return out;
}

TEST(LossScaleOnManyRanks, LeavesOutTheStepsThatOneProcessWould) {
  const TinyWorld world;
  RunConfig config = tiny(world, "fp16");
  config.train.steps = 12;
  config.train.loss_scale = {.first = 33554432.0,
                             .growth_steps = 4};  // 2^25: the first steps overflow
  config.eval.every = 0;
  Trainer(config, false).run();
  const Record alone = run_of(config.run.dir);
  ASSERT_EQ(alone.losses.size(), 12u);
  EXPECT_GT(alone.skipped, 0);
  EXPECT_LT(alone.skipped, 12);
  config.data.tokenizer = config.run.dir + "/tokenizer.model";
  struct Layout {
    int64_t dp, pp, tp, zero, token_slices;
  };
  int number = 0;
  for (const Layout& l :
       {Layout{2, 1, 1, 0, 1}, Layout{2, 1, 1, 1, 1}, Layout{2, 1, 1, 3, 1}, Layout{1, 2, 1, 0, 1},
        Layout{1, 2, 1, 0, 2}, Layout{1, 1, 2, 0, 1}, Layout{2, 2, 1, 2, 1}}) {
    SCOPED_TRACE(concat("dp ", l.dp, " pp ", l.pp, " tp ", l.tp, " zero ", l.zero, " slices ",
                        l.token_slices));
    RunConfig c = config;
    c.run.dir = concat(world.path(), "/layout-", number++);
    c.parallel.dp = l.dp;
    c.parallel.pp = l.pp;
    c.parallel.tp = l.tp;
    c.parallel.zero = l.zero;
    c.parallel.token_slices = l.token_slices;
    c.parallel.microbatches = 2;
    on_threads(c.parallel,
               [&](const parallel::Groups& groups) { Trainer(c, false, groups).run(); });
    const Record got = run_of(c.run.dir);
    ASSERT_EQ(got.losses.size(), 12u);
    EXPECT_GT(got.skipped, 0);
    // A partial sum may overflow where the whole does not, and the other way round: a step more or
    // less.
    EXPECT_NEAR(got.skipped, alone.skipped, 1);
    for (size_t s = 0; s < got.losses.size(); ++s)
      EXPECT_NEAR(got.losses[s], alone.losses[s], 0.02 * alone.losses[s]) << s;  // fp16 rounding
  }
}

}  // namespace
}  // namespace contexture::train
