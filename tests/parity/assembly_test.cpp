// Grouping inputs by their documents changes what is encoded and sent, not what is learned.
#include <gtest/gtest.h>

#include "layouts.h"
#include "train/prepared.h"

namespace contexture::train {
namespace {

int64_t encoded(RunConfig config) {
  int64_t out = 0;
  on_threads(config.parallel, [&](const parallel::Groups& groups) {
    Prepared made(config, 0, groups);
    group(config, made.session, made.step, made.lookup);
    const StepStats stats = made.forward_backward();
    if (groups.rank() == 0) out = stats.encoded;
  });
  return out;
}

TEST(GroupedAssembly, LeavesTheTrainingAsItIsInEveryLayout) {
  const TinyWorld world;
  RunConfig config = tiny(world);
  config.retriever.documents = 2;
  config.retriever.gold = false;
  config.model.dropout = 0.1;
  const Outcome want = outcome_of(config, {}, /*steps=*/10);
  config.data.assembly = "grouped";
  for (const auto& [dp, pp, tp, microbatches] : std::vector<std::array<int64_t, 4>>{
           {1, 1, 1, 3}, {2, 1, 1, 1}, {2, 2, 1, 2}, {1, 2, 2, 4}, {4, 1, 1, 2}}) {
    SCOPED_TRACE(concat("dp ", dp, " pp ", pp, " tp ", tp, " microbatches ", microbatches));
    config.parallel.dp = dp;
    config.parallel.pp = pp;
    config.parallel.tp = tp;
    config.parallel.microbatches = microbatches;
    const Difference difference = compare(want, train_threads(config, /*steps=*/10));
    EXPECT_LT(difference.loss, 1e-10);  // fp64: sums in another order
    EXPECT_LT(difference.gradient, 1e-10) << difference.worst_parameter;
    EXPECT_LT(difference.step, 1e-10) << difference.worst_parameter;
  }
}

TEST(GroupedAssembly, EncodesFewerDocumentsWhereInputsShareThem) {
  const TinyWorld world;
  RunConfig config = tiny(world);
  config.retriever.documents = 1;  // the gold one, which several examples share
  config.data.group_size = 1;
  config.parallel.microbatches = 5;
  const int64_t arrived = encoded(config);
  config.data.assembly = "grouped";
  EXPECT_LT(encoded(config), arrived);
}

}  // namespace
}  // namespace contexture::train
