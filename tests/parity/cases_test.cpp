// Faults of parallel training that users of other trainers met (the numbers are those of the list
// of cases).
#include <gtest/gtest.h>

#include "layouts.h"
#include "train/optimizer.h"

namespace contexture::train {
namespace {

// Case 36: a mean of per-microbatch means is not the mean over tokens. Nine tokens in one
// microbatch, one in the other.
TEST(Cases, TheLossIsDividedByTheTokensOfTheWholeBatch) {
  const TinyWorld world;
  const RunConfig config = tiny(world);
  data::BadRecords bad;
  Session session(config, bad);
  const auto microbatch = [](std::vector<int64_t> lengths) {
    model::Microbatch out;
    out.documents.push_back({{10, 11, 12}, nullptr, 1});
    for (const int64_t n : lengths) {
      out.inputs.push_back({{{5, 6}, nullptr, 2},
                            {{7, 8}, nullptr, 3},
                            std::vector<int32_t>(static_cast<size_t>(n), 9),
                            {0}});
    }
    out.global_target_tokens = 10;
    return out;
  };
  const parallel::Executor executor(session.model().blocks());
  const auto run = [&](const std::vector<model::Microbatch>& batches) {
    double loss = 0.0;
    session.model().parameters().zero_grad();
    for (const model::Microbatch& batch : batches) {
      const parallel::Feeds feeds = model::make_feeds(config.model, batch, at::kDouble, at::kCPU);
      const parallel::Pass pass(feeds, true);
      parallel::ForwardPass forward = executor.forward(pass, true);
      loss += forward.wire("loss.reader").item<double>();
      executor.backward(std::move(forward), {{"loss.reader", at::ones({}, at::kDouble)}});
    }
    return std::pair{loss, session.model().parameters().at("decoder.norm").grad.clone()};
  };
  const auto [together, gradient] = run({microbatch({1, 9})});
  const auto [apart, gradient_apart] = run({microbatch({1}), microbatch({9})});
  EXPECT_NEAR(apart, together, 1e-12 * together);  // fp64 sums in another order
  EXPECT_LE((gradient - gradient_apart).norm().item<double>(),
            1e-10 * gradient.norm().item<double>());
  const auto [with_empty, gradient_empty] =
      run({microbatch({1, 9}), microbatch({0, 0})});  // nothing to predict: 0, not NaN
  EXPECT_EQ(with_empty, together);
  EXPECT_TRUE(gradient_empty.isfinite().all().item<bool>());
}

// y = x + w, where every block has the same w.
class Tied : public parallel::Block {
 public:
  Tied(parallel::ParameterStore& store, int index)
      : Block(concat("tied.", index),
              index == 0 ? std::vector<std::string>{} : std::vector{concat("h.", index)},
              {concat("h.", index + 1)}) {
    weight_ = &use(store, "w", {200}, parallel::Init::constant(0.5));
  }
  parallel::Tensors forward(const parallel::Tensors& inputs, const parallel::Pass&) const override {
    return {inputs.empty() ? weight_->value * 1.0 : inputs[0] + weight_->value};
  }
  std::vector<parallel::WireShape> shapes(const parallel::Pass&) const override {
    return {{{200}, at::kDouble}};
  }

 private:
  const parallel::Parameter* weight_;
};

// Case 37: a tied parameter on two stages counts once in the global norm: 200 gradients of 2
// make 28.28, not 40.
TEST(Cases, TheGlobalNormCountsATiedParameterOnce) {
  for (const auto& [dp, pp, zero] :
       std::vector<std::array<int, 3>>{{1, 1, 0}, {1, 2, 0}, {2, 2, 0}, {2, 2, 1}, {2, 1, 3}}) {
    SCOPED_TRACE(concat("dp ", dp, " pp ", pp, " zero ", zero));
    parallel::ParallelConfig config;
    config.dp = dp;
    config.pp = pp;
    config.zero = zero;
    std::vector<double> norms(dp * pp);
    on_threads(config, [&](const parallel::Groups& groups) {
      parallel::ParameterStore store;
      parallel::BlockList blocks;
      for (int i = 0; i < 2; ++i) blocks.push_back(std::make_unique<Tied>(store, i));
      store.materialise(at::kDouble, at::kCPU, 1);
      parallel::Engine engine(config, groups, parallel::placement_for(config, blocks, groups),
                              blocks, store);
      AdamW optimizer(OptimizerConfig(), engine);
      const parallel::Feeds feeds;
      const parallel::Pass pass(feeds, true);
      engine.sharding().begin_step();
      engine.pipeline().forward_backward({&pass}, [&](int, const parallel::ForwardPass&) {
        return parallel::WireValues{{"h.2", at::full({200}, 1.0 / groups.dp_size(), at::kDouble)}};
      });
      engine.sharding().finish();
      norms[groups.rank()] = optimizer.clip();
    });
    for (const double norm : norms) EXPECT_NEAR(norm, std::sqrt(200.0 * 4.0), 1e-9);
  }
}

// Case 40: layers that do not divide over stages are all used, each once.
TEST(Cases, EveryBlockLandsOnOneStageForAnyNumberOfStages) {
  const TinyWorld world;
  RunConfig config = tiny(world);
  config.model.encoder_layers = 3;
  const model::Model model(config.model);
  const auto blocks = static_cast<int>(model.blocks().size());
  for (int ranks = 1; ranks <= blocks; ++ranks) {
    for (const char* by : {"uniform", "parameters"}) {
      const parallel::Placement placement =
          parallel::place_in_order(model.blocks(), by, ranks, 1, false);
      size_t placed = 0;
      for (int s = 0; s < placement.graph.num_stages; ++s) placed += placement.blocks_of(s).size();
      EXPECT_EQ(placed, model.blocks().size());
      EXPECT_EQ(placement.graph.num_stages, ranks);
    }
  }
  EXPECT_THROW(parallel::place_in_order(model.blocks(), "uniform", blocks + 1, 1, false),
               UsageError);
}

// Case 40: fewer microbatches than stages, and a batch of ten inputs that three microbatches do not
// divide, finish and are right. Case 41: a vocabulary (331, a prime) that no number of ranks
// divides changes neither loss nor export.
TEST(Cases, UnevenBatchesAndVocabulariesGiveTheResultOfOneProcess) {
  const TinyWorld world;
  RunConfig config = tiny(world);
  config.model.vocab = config.data.tokenizer_options.vocab_size = 331;
  const Outcome want = outcome_of(config, {}, 3);
  for (const auto& [pp, tp, microbatches] :
       std::vector<std::array<int64_t, 3>>{{4, 1, 1}, {2, 1, 3}, {1, 2, 1}, {1, 4, 3}}) {
    SCOPED_TRACE(concat("pp ", pp, " tp ", tp, " microbatches ", microbatches));
    config.parallel.pp = pp;
    config.parallel.tp = tp;
    config.parallel.microbatches = microbatches;
    const Outcome got = train_threads(config, 3);
    const Difference d = compare(want, got);
    EXPECT_LE(std::max({d.loss, d.gradient, d.step}), 1e-10)
        << d.worst_parameter;  // fp64 sums in another order
    EXPECT_EQ(got.parameters.at("embed.token").sizes(),
              (std::vector<int64_t>{331, config.model.width}));
  }
}

}  // namespace
}  // namespace contexture::train
