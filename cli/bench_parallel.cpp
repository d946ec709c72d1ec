#include "train/bench_parallel.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "cli/bench.h"
#include "cli/ranks.h"
#include "core/format.h"
#include "parallel/launch_env.h"
#include "train/session.h"

namespace contexture::cli {
namespace {

struct Case {
  const char* name;
  int ranks;
  const char* layout;  // of ours
  const char* peer;    // arguments of tests/bench/peers/parallel.py
};
const Case kCases[] = {
    {"pipeline, 2 ranks, 1F1B, 8 microbatches", 2, "--pp 2 --microbatches 8",
     "--mode pipeline --ranks 2 --microbatches 8"},
    {"pipeline, 4 ranks, 1F1B, 8 microbatches", 4, "--pp 4 --microbatches 8",
     "--mode pipeline --ranks 4 --microbatches 8"},
    {"data parallel, 2 ranks", 2, "", "--mode ddp --ranks 2"},
    {"weights in shares (ZeRO 3, FSDP2), 2 ranks", 2, "--zero 3", "--mode fsdp --ranks 2"},
};

struct Options {
  PeerOptions peers;
  train::ParallelBenchShape shape;
  train::RunConfig config;
  int64_t warmup = 3, steps = 9;
};

// As one of the ranks that the other half of this command started.
int run_rank(Options& options) {
  at::set_num_threads(1);
  parallel::Groups groups = join_ranks(options.config);
  const Json result = train::bench_engine(options.shape, options.config.parallel, std::move(groups),
                                          options.warmup, options.steps);
  if (!result.is_null()) std::cout << result.dump() << std::endl;
  return 0;
}

double most(const Json& numbers) { return *std::max_element(numbers.begin(), numbers.end()); }

Json compare(const Options& options, const Case& c) {
  const std::string sizes = format(
      "--width {} --heads {} --ffn-width {} --layers {} --vocab {} --batch {} --tokens {} --warmup "
      "{} --steps {}",
      options.shape.width, options.shape.heads, options.shape.ffn_width, options.shape.layers,
      options.shape.vocab, options.shape.batch, options.shape.tokens, options.warmup,
      options.steps);
  Json out{{"case", c.name}};
  out["contexture"] = run_command(format(
      "/proc/{}/exe --log-level warn launch --nproc {} -- --log-level warn bench parallel {} {}",
      getpid(), c.ranks, c.layout, sizes));
  if (!options.peers.scripts.empty()) {
    out["torch"] = run_peer(options.peers, format("parallel.py {} {}", c.peer, sizes));
    out["speed_ratio"] =
        out["torch"]["step_s"].get<double>() / out["contexture"]["step_s"].get<double>();
    out["memory_ratio"] = most(out["contexture"]["peak_mb"]) / most(out["torch"]["peak_mb"]);
  }
  if (options.peers.json) return out;
  const auto line = [&](const char* who, const Json& r) {
    std::cout << format(
        "  {:<12} step {:7.1f} ms   most memory of a rank {:7.1f} MB   loss {:.3f}\n", who,
        1000 * r["step_s"].get<double>(), most(r["peak_mb"]), r["loss"].get<double>());
  };
  std::cout << c.name << "\n";
  line("contexture", out["contexture"]);
  if (out.contains("torch")) {
    line("torch", out["torch"]);
    std::cout << format("  contexture is {:.2f} times as fast, with {:.2f} times the memory\n",
                        out["speed_ratio"].get<double>(), out["memory_ratio"].get<double>());
  }
  std::cout << std::flush;
  return out;
}

}  // namespace

Command bench_parallel_command(CLI::App& group) {
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand("parallel",
                                       "The engine on a plain transformer over processes, beside "
                                       "torch.distributed; one thread a rank");
  train::ParallelBenchShape& shape = options->shape;
  for (const auto& [name, value, what] :
       std::vector<std::tuple<const char*, int64_t*, const char*>>{
           {"--width", &shape.width, "of the residual stream"},
           {"--heads", &shape.heads, "attention heads"},
           {"--ffn-width", &shape.ffn_width, "of the SwiGLU layer"},
           {"--layers", &shape.layers, "transformer layers"},
           {"--vocab", &shape.vocab, "vocabulary"},
           {"--batch", &shape.batch, "sequences of the global batch"},
           {"--tokens", &shape.tokens, "of a sequence"},
           {"--warmup", &options->warmup, "steps before the clock starts"},
           {"--steps", &options->steps, "timed steps; the median counts"},
           {"--pp", &options->config.parallel.pp, "pipeline ranks, under launch"},
           {"--tp", &options->config.parallel.tp, "tensor-parallel ranks, under launch"},
           {"--zero", &options->config.parallel.zero, "ZeRO stage, under launch"},
           {"--microbatches", &options->config.parallel.microbatches,
            "of a replica, under launch"}}) {
    app->add_option(name, *value, what)->capture_default_str();
  }
  options->peers.add_to(*app);
  return {app, [options] {
            train::RunConfig& config = options->config;
            config.model.heads = config.model.kv_heads = options->shape.heads;
            config.train.batch_size = options->shape.batch;
            config.data.train = {{"none", 0.0, {}}};
            config.data.tokenizer = "none";
            if (parallel::detect_launch(parallel::process_environment()).rendezvous.size > 1)
              return run_rank(*options);
            at::set_num_threads(1);
            Json out{{"cases", Json::array()},
                     {"one_rank",
                      train::bench_overhead(options->shape, options->warmup, 3 * options->steps)}};
            if (!options->peers.json) {
              std::cout << format(
                  "one rank: engine {:.2f} ms, bare executor {:.2f} ms a step: ratio {:.4f}\n",
                  1000 * out["one_rank"]["engine_s"].get<double>(),
                  1000 * out["one_rank"]["plain_s"].get<double>(),
                  out["one_rank"]["ratio"].get<double>());
            }
            for (const Case& c : kCases) out["cases"].push_back(compare(*options, c));
            if (options->peers.json) print_json(out);
            return 0;
          }};
}

}  // namespace contexture::cli
