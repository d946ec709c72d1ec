// N rows, D width, V vocabulary.
#include "train/bench_parallel.h"

#include <fstream>

#include "core/error.h"
#include "core/rng.h"
#include "core/timing.h"
#include "model/init.h"
#include "train/optimizer.h"

namespace contexture::train {
namespace {

using parallel::Pass;
using parallel::Tensors;

// A line of /proc/self/status, in MB.
double status_mb(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key, 0) == 0) return std::stod(line.substr(key.size() + 1)) / 1024.0;
  }
  return 0.0;
}

void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

// Cross-entropy at every row.
class Loss : public parallel::Block {
 public:
  Loss(parallel::ParameterStore& store, const model::ModelConfig& config)
      : Block("loss", {"x.states"}, {"loss"}) {
    head_ = &use(store, "head", {config.vocab, config.width}, model::fan_in_init(config.width));
  }
  Tensors forward(const Tensors& inputs, const Pass& pass) const override {
    const at::Tensor log_prob_NV = model::ops::linear(inputs[0], head_->value).log_softmax(1);
    return {-log_prob_NV.gather(1, pass.feed("target").unsqueeze(1)).sum() /
            pass.feed("loss.tokens").item<double>()};
  }
  std::vector<parallel::WireShape> shapes(const Pass&) const override { return {{{}, at::kFloat}}; }

 private:
  const parallel::Parameter* head_;
};

// The transformer and the feeds of this rank's microbatches.
struct Transformer {
  Transformer(const ParallelBenchShape& shape, const parallel::ParallelConfig& parallel,
              const parallel::Groups& groups)
      : store(groups.tp) {
    config.vocab = shape.vocab;
    config.width = shape.width;
    config.heads = config.kv_heads = shape.heads;
    config.head_width = shape.width / shape.heads;
    config.ffn_width = shape.ffn_width;
    config.encoder_layers = shape.layers;
    config.token_shift = false;
    blocks.push_back(std::make_unique<model::Embed>(store, config, "x", ""));
    for (int64_t i = 0; i < shape.layers; ++i)
      blocks.push_back(std::make_unique<model::EncoderLayer>(store, config, "x", "layers", i));
    blocks.push_back(std::make_unique<model::FinalNorm>(store, config, concat("x.h.", shape.layers),
                                                        "x.states", "norm"));
    blocks.push_back(std::make_unique<Loss>(store, config));
    parallel::Placement placement = parallel::placement_for(parallel, blocks, groups);
    store.materialise(at::kFloat, at::kCPU, 1, [&](const parallel::Parameter& p) {
      return parallel::Engine::owns(placement, blocks, p, groups.pp_rank());
    });
    const int64_t mine = shape.batch / groups.dp_size();
    for (int64_t m = 0; m < parallel.microbatches; ++m) {
      const auto [begin, end] =
          parallel::part_of(mine, {static_cast<int>(m), static_cast<int>(parallel.microbatches)});
      feeds.push_back(
          make_feeds(shape, groups.dp_rank() * mine + begin, groups.dp_rank() * mine + end));
    }
    for (const parallel::Feeds& f : feeds) passes.emplace_back(f, /*training=*/true);
    for (const Pass& pass : passes) pass_pointers.push_back(&pass);
    engine =
        std::make_unique<parallel::Engine>(parallel, groups, std::move(placement), blocks, store);
  }

  parallel::Feeds make_feeds(const ParallelBenchShape& shape, int64_t begin, int64_t end) const {
    std::vector<model::Sequence> sequences;
    std::vector<int64_t> target;
    for (int64_t i = begin; i < end; ++i) {
      Stream stream(7, "bench", static_cast<uint64_t>(i));
      model::Sequence& s = sequences.emplace_back();
      for (int64_t t = 0; t < shape.tokens; ++t) {
        s.tokens.push_back(static_cast<int32_t>(stream.below(static_cast<uint64_t>(shape.vocab))));
        target.push_back((s.tokens.back() + 1) % shape.vocab);  // something to learn
      }
    }
    std::vector<const model::Sequence*> pointers;
    for (const model::Sequence& s : sequences) pointers.push_back(&s);
    parallel::Feeds out;
    model::add_tower_feeds(config, "x", pointers, false, at::kFloat, at::kCPU, out);
    out["target"] = at::tensor(at::ArrayRef<int64_t>(target), at::kLong);
    out["loss.tokens"] = at::full({}, static_cast<double>(shape.batch * shape.tokens), at::kDouble);
    return out;
  }

  model::ModelConfig config;
  parallel::ParameterStore store;
  parallel::BlockList blocks;
  std::vector<parallel::Feeds> feeds;
  std::vector<Pass> passes;
  std::vector<const Pass*> pass_pointers;
  std::unique_ptr<parallel::Engine> engine;
};

double engine_step(Transformer& t, AdamW& optimizer) {
  double loss = 0.0;
  t.engine->sharding().begin_step();
  t.engine->pipeline().forward_backward(
      t.pass_pointers, [&](int, const parallel::ForwardPass& forward) {
        if (!forward.has("loss")) return parallel::WireValues();
        loss += forward.wire("loss").item<double>();
        return parallel::WireValues{{"loss", at::ones({}, at::kFloat)}};
      });
  t.engine->sharding().finish();
  optimizer.clip();
  optimizer.step(1e-3);
  return loss;
}

}  // namespace

Json bench_engine(const ParallelBenchShape& shape, const parallel::ParallelConfig& config,
                  parallel::Groups groups, int64_t warmup, int64_t steps) {
  const double before_mb = status_mb("VmRSS:");
  reset_peak();
  const auto world = groups.world;
  const bool first = groups.rank() == 0;
  Transformer t(shape, config, groups);
  AdamW optimizer(OptimizerConfig(), *t.engine);
  std::vector<double> seconds, losses;
  for (int64_t s = 0; s < warmup + steps; ++s) {
    if (world) world->barrier();
    const double start = now_s();
    const double mine = engine_step(t, optimizer);
    const at::Tensor loss = at::full({1}, groups.tp_rank() == 0 ? mine : 0.0, at::kDouble);
    if (world) world->all_reduce(loss).wait();
    if (s >= warmup) seconds.push_back(now_s() - start);
    losses.push_back(loss.item<double>());
  }
  CONTEXTURE_INVARIANT(losses.back() < losses.front(), "the loss did not fall: ", losses.front(),
                       " to ", losses.back());
  const at::Tensor peak = at::full({1}, status_mb("VmHWM:") - before_mb, at::kDouble);
  at::Tensor peaks = peak;
  if (world) {
    peaks = at::empty({world->size()}, at::kDouble);
    world->all_gather(peaks, peak).wait();
  }
  if (!first) return nullptr;
  Json out{{"step_s", median(seconds)},
           {"loss", losses.back()},
           {"parameters", t.store.num_elements()},
           {"peak_mb", Json::array()}};
  for (int64_t r = 0; r < peaks.size(0); ++r) out["peak_mb"].push_back(peaks[r].item<double>());
  return out;
}

Json bench_overhead(const ParallelBenchShape& shape, int64_t warmup, int64_t steps) {
  const parallel::ParallelConfig alone;
  Transformer engine_model(shape, alone, {}), plain_model(shape, alone, {});
  AdamW engine_optimizer(OptimizerConfig(), *engine_model.engine),
      plain_optimizer(OptimizerConfig(), *plain_model.engine);
  const parallel::Executor executor(plain_model.blocks);
  std::vector<double> by_engine, plain;
  for (int64_t s = 0; s < warmup + steps; ++s) {
    double start = now_s();
    engine_step(engine_model, engine_optimizer);
    if (s >= warmup) by_engine.push_back(now_s() - start);
    start = now_s();
    plain_model.store.zero_grad();
    executor.backward(executor.forward(plain_model.passes[0], /*grad=*/true),
                      {{"loss", at::ones({}, at::kFloat)}});
    plain_model.engine->sharding()
        .finish();  // the optimizer's view of the gradients; moves nothing in one process
    plain_optimizer.clip();
    plain_optimizer.step(1e-3);
    if (s >= warmup) plain.push_back(now_s() - start);
  }
  return {{"engine_s", median(by_engine)},
          {"plain_s", median(plain)},
          {"ratio", median(by_engine) / median(plain)}};
}

}  // namespace contexture::train
