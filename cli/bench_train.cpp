#include <iostream>

#include "cli/bench.h"
#include "core/format.h"
#include "train/bench.h"
#include "train/session.h"

namespace contexture::cli {
namespace {

struct Options {
  PeerOptions peers;
  std::vector<std::string> shapes{"small"}, fusions{"memory"}, precisions{"fp32"};
  int64_t warmup = 3, steps = 9;
};

void print_line(const std::string& name, const Json& result, double ours) {
  const double theirs = result["examples_per_s"].get<double>();
  std::cout << format(
                   "  {:<14} {:9.1f} examples/s   step {:8.1f} ms, {:8.1f} ms of processors   "
                   "contexture is {:.2f} times as fast\n",
                   name, theirs, 1000 * result["config"]["step_s"].get<double>(),
                   1000 * result["config"]["cpu_step_s"].get<double>(), ours / theirs)
            << std::flush;
}

Json run(const Options& options, const std::string& shape, const std::string& fusion,
         const std::string& precision) {
  const train::BenchShape sizes = train::bench_shape(shape);
  Json all{{"contexture",
            train::bench_training(sizes, fusion, precision, options.warmup, options.steps)}};
  const double ours = all["contexture"]["examples_per_s"].get<double>();
  if (!options.peers.json) {
    std::cout << format("{}, width {}, {} + {} layers, {}, {}, {} threads\n", shape, sizes.width,
                        sizes.layers, sizes.layers, fusion, precision, options.peers.threads);
    print_line("contexture", all["contexture"], ours);
  }
  if (options.peers.scripts.empty()) return all;
  const std::string common =
      format(" --shape {} --precision {} --threads {} --steps {} --warmup {}", shape, precision,
             options.peers.threads, options.steps, options.warmup);
  const std::vector<std::pair<std::string, std::string>> peers{
      {"pytorch_eager", "eager.py --fusion " + fusion + common},
      {"hf_t5_fid", "hf_fid.py" + common}};
  for (const auto& [name, command] : peers) {
    all[name] = run_peer(options.peers, command);
    all["ratio"][name] = ours / all[name]["examples_per_s"].get<double>();
    if (!options.peers.json) print_line(name, all[name], ours);
  }
  return all;
}

}  // namespace

Command bench_train_command(CLI::App& group) {
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(
      "train", "Training steps on random text: forward, backward, clipping, AdamW");
  app->add_option("--shape", options->shapes,
                  "small (width 128, 2+2 layers) or medium (width 512, 6+6); a list times each: "
                  "small,medium")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--fusion", options->fusions,
                  "memory (half of the documents read are distinct), fid or prefix, or a list")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--precision", options->precisions, "fp32, bf16 or fp64, or a list")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--warmup", options->warmup, "steps before the clock starts")
      ->capture_default_str();
  app->add_option("--steps", options->steps, "timed steps; the median counts")
      ->capture_default_str();
  options->peers.add_to(*app);
  return {app, [options] {
            train::RunSettings settings;
            settings.threads = options->peers.threads;
            train::apply_threads(settings);
            Json runs = Json::array();
            for (const std::string& shape : options->shapes) {
              for (const std::string& fusion : options->fusions) {
                for (const std::string& precision : options->precisions)
                  runs.push_back(run(*options, shape, fusion, precision));
              }
            }
            if (options->peers.json) print_json({{"runs", runs}});
            return 0;
          }};
}

}  // namespace contexture::cli
