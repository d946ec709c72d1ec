#include "train/loss_scale.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"
#include "prepared.h"
#include "tiny_world.h"
#include "train/optimizer.h"

namespace contexture::train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(LossScale, HalvesAtAnOverflowAndDoublesAfterEnoughStepsWithoutOne) {
  LossScale scale({.first = 8.0, .growth_steps = 2});
  EXPECT_TRUE(scale.accepts(1.0));
  EXPECT_EQ(scale.scale(), 8.0);
  EXPECT_FALSE(scale.accepts(kInfinity));
  EXPECT_EQ(scale.scale(), 4.0);
  EXPECT_TRUE(scale.accepts(1.0));  // the count starts anew
  EXPECT_EQ(scale.scale(), 4.0);
  EXPECT_TRUE(scale.accepts(1.0));
  EXPECT_EQ(scale.scale(), 8.0);
  EXPECT_FALSE(scale.accepts(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(scale.skipped(), 2);

  LossScale again({.first = 1.0, .growth_steps = 2});
  again.load(scale.state(), "state");
  EXPECT_EQ(again.state(), scale.state());
}

TEST(LossScale, GivesUpWhereNoScaleHelps) {
  LossScale scale({.first = 1.0, .growth_steps = 2});
  EXPECT_THROW(scale.accepts(kInfinity), UserError);
  EXPECT_TRUE(LossScale().accepts(kInfinity)) << "off, it is not its business";
}

TEST(LossScale, RefusesFactorsThatWouldRound) {
  for (const double first : {0.0, 0.5, 3.0, -4.0, kInfinity}) {
    EXPECT_THROW((LossScaleConfig{.first = first, .growth_steps = 1}.validate()), UsageError)
        << first;
  }
}

// Scaling by a power of two commutes with every rounding, short of the ends of the range.
TEST(LossScale, ChangesNoBitOfAnFp64Step) {
  const TinyWorld world;
  std::vector<at::Tensor> gradients[2];
  double norms[2];
  for (const int scaled : {0, 1}) {
    const double scale = scaled != 0 ? 4096.0 : 1.0;
    const RunConfig config = world.config("fp64");
    Prepared made(config);
    parallel::Engine& engine = made.session.engine();
    AdamW optimizer(config.optimizer, engine);
    forward_backward(config, made.session.model(), engine, made.step, made.assembled(),
                     &made.lookup, scale);
    norms[scaled] = optimizer.clip(scale);
    for (const parallel::Shard& shard : engine.sharding().shards())
      gradients[scaled].push_back(shard.grad.clone());
  }
  EXPECT_EQ(norms[1], norms[0]);
  ASSERT_EQ(gradients[1].size(), gradients[0].size());
  for (size_t i = 0; i < gradients[0].size(); ++i)
    EXPECT_TRUE(at::equal(gradients[1][i], gradients[0][i])) << i;
}

// Ten thousand times smaller gradients vanish in fp16 unless they are scaled.
TEST(LossScale, KeepsSmallGradientsOfFp16) {
  const TinyWorld world;
  const auto gradients = [&](const std::string& precision, double scale) {
    RunConfig config = world.config(precision);
    config.optimizer.max_grad_norm = 0;
    config.retriever.objectives.erase("contrastive");
    Prepared made(config);
    Assembled assembled = made.assembled();
    for (model::Microbatch& batch : assembled.batches)
      batch.global_target_tokens *= 100000;  // a huge batch, of which this is a part
    forward_backward(config, made.session.model(), made.session.engine(), made.step, assembled,
                     &made.lookup, scale);
    AdamW(config.optimizer, made.session.engine()).clip(scale);
    std::vector<at::Tensor> all;
    for (const parallel::Shard& shard : made.session.engine().sharding().shards())
      all.push_back(shard.grad.to(at::kDouble));
    return at::cat(all);
  };
  const at::Tensor want = gradients("fp64", 1.0);
  const auto error = [&](double scale) {
    return ((gradients("fp16", scale) - want).norm() / want.norm()).item<double>();
  };
  EXPECT_LT(error(65536.0),
            0.02);  // 11 bits of mantissa: 0.05 % a rounding, through some ten operators
  EXPECT_GT(error(1.0), 0.1);
}

}  // namespace
}  // namespace contexture::train
