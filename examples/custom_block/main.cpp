// A model of one's own: blocks that the engine has never seen, traced, cut into two pipeline stages
// and trained there, with the losses of one process. All that a block has to say: the wires it
// reads and writes, its parameters, its forward, and the shapes of what it writes.
#include <ATen/Parallel.h>
#include <ATen/ops/mse_loss.h>

#include <iostream>
#include <thread>

#include "core/format.h"
#include "parallel/partition.h"
#include "parallel/trace_blocks.h"
#include "train/optimizer.h"

// N rows, D width, C context rows.
namespace {

using namespace contexture;
using parallel::Block;
using parallel::Init;
using parallel::Parameter;
using parallel::ParameterStore;
using parallel::Pass;
using parallel::Tensors;
using parallel::WireShape;

constexpr int64_t kRows = 64, kWidth = 48, kContext = 32;
constexpr int kMixers = 5, kMicrobatches = 4, kSteps = 30;

// The context that every mixer reads: the engine sends it once to each stage that needs it, however
// many mixers are there.
class Context : public Block {
 public:
  explicit Context(ParameterStore& store) : Block("context", {}, {"context"}) {
    weight_ = &use(store, "context.weight", {kWidth, kWidth}, Init::normal(0.1));
  }
  Tensors forward(const Tensors&, const Pass& pass) const override {
    return {at::tanh(at::matmul(pass.feed("context"), weight_->value))};
  }
  std::vector<WireShape> shapes(const Pass&) const override {
    return {{{kContext, kWidth}, at::kFloat}};
  }

 private:
  const Parameter* weight_;
};

// h + tanh(softmax(h K^T) context W): a mixture of context rows for each row of h.
class Mixer : public Block {
 public:
  Mixer(ParameterStore& store, int index)
      : Block(concat("mixer.", index),
              index == 0 ? std::vector<std::string>{"context"}
                         : std::vector<std::string>{"context", concat("h.", index - 1)},
              {concat("h.", index)}) {
    key_ = &use(store, name() + ".key", {kWidth, kWidth}, Init::normal(0.1));
    weight_ = &use(store, name() + ".weight", {kWidth, kWidth}, Init::normal(0.1));
  }
  Tensors forward(const Tensors& in, const Pass& pass) const override {
    const at::Tensor& context_CD = in[0];
    const at::Tensor h_ND = in.size() > 1 ? in[1] : pass.feed("x");
    const at::Tensor share_NC =
        at::softmax(at::matmul(at::matmul(h_ND, key_->value), context_CD.t()), 1);
    return {h_ND + at::tanh(at::matmul(at::matmul(share_NC, context_CD), weight_->value))};
  }
  std::vector<WireShape> shapes(const Pass&) const override {
    return {{{kRows, kWidth}, at::kFloat}};
  }

 private:
  const Parameter *key_, *weight_;
};

class Loss : public Block {
 public:
  Loss() : Block("loss", {concat("h.", kMixers - 1)}, {"loss"}) {}
  Tensors forward(const Tensors& in, const Pass& pass) const override {
    return {at::mse_loss(in[0], pass.feed("y")) / kMicrobatches};
  }
  std::vector<WireShape> shapes(const Pass&) const override { return {{{}, at::kFloat}}; }
};

parallel::BlockList my_model(ParameterStore& store) {
  parallel::BlockList blocks;
  blocks.push_back(std::make_unique<Context>(store));
  for (int i = 0; i < kMixers; ++i) blocks.push_back(std::make_unique<Mixer>(store, i));
  blocks.push_back(std::make_unique<Loss>());
  return blocks;
}

std::vector<parallel::Feeds> my_data() {
  at::manual_seed(3);
  std::vector<parallel::Feeds> feeds;
  const at::Tensor context = at::randn({kContext, kWidth});
  for (int m = 0; m < kMicrobatches; ++m) {
    const at::Tensor x = at::randn({kRows, kWidth});
    feeds.push_back({{"x", x}, {"context", context}, {"y", x + 0.5 * at::sin(x)}});
  }
  return feeds;
}

// Trains on the plan's stages, each rank a thread here (with parallel::connect they would be
// processes). Returns the losses.
std::vector<double> losses_of(const parallel::Plan& plan, int ranks) {
  const auto data = my_data();
  std::vector<double> losses(kSteps, 0.0);
  const auto worlds = parallel::make_thread_communicators(ranks);
  const auto rank_body = [&](int rank) {
    at::set_num_threads(1);
    const parallel::Groups groups =
        parallel::groups_of(std::make_shared<const parallel::Mesh>(worlds[rank], 1, ranks, 1));
    ParameterStore store;
    const parallel::BlockList blocks = my_model(store);
    const parallel::Placement placement =
        parallel::place(blocks, plan.stage_of_block, plan.device_of_stage, ranks);
    store.materialise(at::kFloat, at::kCPU, /*seed=*/7, [&](const Parameter& p) {
      return parallel::Engine::owns(placement, blocks, p, rank);
    });
    parallel::ParallelConfig config;
    config.pp = ranks;
    config.schedule = "list";
    config.microbatches = kMicrobatches;
    parallel::Engine engine(config, groups, placement, blocks, store);
    train::AdamW optimizer(train::OptimizerConfig(), engine);
    std::vector<Pass> passes;
    std::vector<const Pass*> pointers;
    for (const parallel::Feeds& feeds : data) passes.emplace_back(feeds, /*training=*/true);
    for (const Pass& pass : passes) pointers.push_back(&pass);
    for (double& loss : losses) {
      engine.sharding().begin_step();
      engine.pipeline().forward_backward(pointers, [&](int, const parallel::ForwardPass& forward) {
        if (!forward.has("loss")) return parallel::WireValues();
        loss += forward.wire("loss").item<double>();
        return parallel::WireValues{{"loss", at::ones({})}};
      });
      engine.sharding().finish();
      optimizer.clip();
      optimizer.step(/*rate=*/3e-3);
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(rank_body, r);
  for (std::thread& thread : threads) thread.join();
  return losses;
}

}  // namespace

int main() {
  ParameterStore store;
  const parallel::BlockList blocks = my_model(store);
  const auto data = my_data();
  parallel::TraceOptions options;
  options.timed = true;
  const parallel::Trace trace =
      parallel::trace_blocks(blocks, store, Pass(data[0], /*training=*/true), options);
  std::cout << "block       forward us   backward us   kept bytes\n";
  for (const parallel::TraceBlock& block : trace.blocks) {
    std::cout << format("{:<10}{:12.1f}{:14.1f}{:13}\n", block.name, 1e6 * block.forward_s,
                        1e6 * parallel::backward_s(block), block.activation_bytes);
  }
  parallel::PartitionOptions cut;
  cut.num_devices = 2;
  cut.microbatches = kMicrobatches;
  const parallel::Plan two = parallel::partition(trace, cut);
  cut.num_devices = 1;
  const parallel::Plan one = parallel::partition(trace, cut);
  for (size_t s = 0; s < two.stages.size(); ++s) {
    std::cout << "stage " << s << ":";
    for (const int b : two.stages[s].blocks) std::cout << " " << blocks[b]->name();
    std::cout << "\n";
  }
  const std::vector<double> alone = losses_of(one, 1), split = losses_of(two, 2);
  double difference = 0.0;
  for (int s = 0; s < kSteps; ++s)
    difference = std::max(difference, std::abs(alone[s] - split[s]) / alone[s]);
  std::cout << format(
      "loss {:.4f} -> {:.4f} on one rank, {:.4f} -> {:.4f} on two; largest relative difference "
      "{:.1e}\n",
      alone.front(), alone.back(), split.front(), split.back(), difference);
  return alone.back() < 0.5 * alone.front() && difference < 1e-5 ? 0 : 1;
}
