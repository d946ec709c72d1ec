#include "train/bench.h"

#include <ATen/Parallel.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/rng.h"
#include "core/timing.h"
#include "train/optimizer.h"
#include "train/step.h"

namespace contexture::train {
namespace {

constexpr int64_t kVocab = 1500;

std::vector<int32_t> text(Stream& stream, int64_t n) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i)
    out.push_back(static_cast<int32_t>(10 + stream.below(kVocab - 10)));
  return out;
}

double process_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

// Pairs of neighbouring inputs read the same documents, each with another one first.
void fill(const BenchShape& shape, PreparedStep& step, Assembled& assembled) {
  Stream stream(0, "bench");
  model::Microbatch batch;
  assembled.rows.resize(1);
  for (int64_t d = 0; d < shape.inputs * shape.documents / 2; ++d) {
    batch.documents.push_back(
        {text(stream, shape.document_tokens), nullptr, static_cast<uint64_t>(d)});
    assembled.rows[0].push_back(d);
  }
  for (int64_t i = 0; i < shape.inputs; ++i) {
    model::Input input;
    input.query.tokens = text(stream, shape.question_tokens);
    input.prompt.tokens = input.query.tokens;
    input.prompt.tokens.back() = 2;
    for (int64_t k = 0; k < shape.documents; ++k) {
      input.documents.push_back(
          static_cast<int32_t>(i / 2 * shape.documents + (k + i) % shape.documents));
    }
    const auto& first = batch.documents[input.documents[0]].tokens;
    input.target.assign(first.begin() + 5, first.begin() + 4 + shape.target_tokens);
    input.target.push_back(3);
    PreparedInput prepared;
    prepared.gold = {input.documents[0]};
    step.inputs.push_back(std::move(prepared));
    batch.inputs.push_back(std::move(input));
  }
  assembled.batches.push_back(std::move(batch));
}

}  // namespace

BenchShape bench_shape(const std::string& name) {
  if (name == "small") return {name, 128, 4, 2, 32, 344, 2, 16, 4, 96};
  CONTEXTURE_USAGE_REQUIRE(name == "medium", "--shape ", name,
                           " is not known. Use small or medium.");
  return {name, 512, 8, 8, 64, 1376, 6, 4, 4, 128};
}

Json bench_training(const BenchShape& shape, const std::string& fusion,
                    const std::string& precision, int64_t warmup, int64_t steps) {
  RunConfig config;
  config.model.vocab = kVocab;
  config.model.width = shape.width;
  config.model.heads = shape.heads;
  config.model.kv_heads = shape.kv_heads;
  config.model.head_width = shape.head_width;
  config.model.ffn_width = shape.ffn_width;
  config.model.encoder_layers = config.model.decoder_layers = shape.layers;
  config.model.fusion = fusion;
  config.model.pooling = "mean";
  config.train.precision = precision;
  config.retriever.objectives["contrastive"] = 0.5;
  model::Model model(config.model);
  model.materialise(precision_of(precision), at::kCPU, 1);
  parallel::Engine engine(config.parallel, {},
                          parallel::placement_for(config.parallel, model.blocks(), {}),
                          model.blocks(), model.parameters());
  AdamW optimizer(config.optimizer, engine);
  PreparedStep step;
  Assembled assembled;
  fill(shape, step, assembled);
  std::vector<double> seconds, cpu_seconds, losses;
  for (int64_t s = 0; s < warmup + steps; ++s) {
    const auto start = std::chrono::steady_clock::now();
    const double cpu_start = process_seconds();
    losses.push_back(forward_backward(config, model, engine, step, assembled).loss);
    optimizer.clip();
    optimizer.step(1e-3);
    if (s < warmup) continue;
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    cpu_seconds.push_back(process_seconds() - cpu_start);
  }
  CONTEXTURE_INVARIANT(losses.back() < losses.front(), "the loss did not fall: ", losses.front(),
                       " to ", losses.back());
  std::sort(seconds.begin(), seconds.end());
  const double step_s = median(seconds);
  const parallel::Feeds feeds =
      model::make_feeds(config.model, assembled.batches[0], model.dtype(), at::kCPU);
  Json blocks = Json::object();
  for (const auto& [name, time] : engine.pipeline().times()) {
    blocks[name] = {{"forward_s", time.forward_s / static_cast<double>(warmup + steps)},
                    {"backward_s", time.backward_s / static_cast<double>(warmup + steps)}};
  }
  return {{"examples_per_s", static_cast<double>(shape.inputs) / step_s},
          {"config",
           {{"peer", "contexture"},
            {"shape", shape.name},
            {"fusion", fusion},
            {"precision", precision},
            {"steps", steps},
            {"threads", at::get_num_threads()},
            {"step_s", step_s},
            {"fastest_step_s", seconds.front()},
            {"slowest_step_s", seconds.back()},
            {"cpu_step_s", median(cpu_seconds)},
            {"parameters", model.parameters().num_elements()},
            {"gflop_per_s", 3 * model.forward_flops(parallel::Pass(feeds)) / step_s / 1e9},
            {"blocks", blocks}}}};
}

}  // namespace contexture::train
