#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <iostream>

#include "cli/command.h"
#include "core/error.h"
#include "core/format.h"
#include "core/json.h"
#include "core/log.h"
#include "train/bench.h"
#include "train/session.h"

namespace contexture::cli {
namespace {

// The last line of what `command` prints, as JSON.
Json run_peer(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  CONTEXTURE_REQUIRE(pipe != nullptr, "cannot run ", command);
  std::string out;
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) out.append(buffer.data(), n);
  const int status = pclose(pipe);
  CONTEXTURE_REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0 && !out.empty(), command, " failed. Its words are above.");
  out.erase(out.find_last_not_of('\n') + 1);
  return parse_json(out.substr(out.find_last_of('\n') + 1), command);
}

void print_line(const std::string& name, const Json& result, double ours) {
  const double theirs = result["examples_per_s"].get<double>();
  std::cout << format("  {:<16} {:9.1f} examples/s   step {:8.1f} ms   contexture is {:.2f} times as fast\n", name, theirs,
                      1000 * result["config"]["step_s"].get<double>(), ours / theirs);
}

}  // namespace

Command bench_command(CLI::App& program) {
  struct Options {
    std::string shape = "small", fusion = "memory", precision = "fp32", peers, python = "python3";
    int64_t warmup = 3, steps = 9, threads = 2;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand("bench", "Time training on random text of stated shapes, beside its peers");
  CLI::App* train = app->add_subcommand("train", "Training steps: forward, backward, clipping, AdamW");
  app->require_subcommand(1);
  train->add_option("--shape", options->shape, "small (width 128, 2+2 layers) or medium (width 512, 6+6)")->capture_default_str();
  train->add_option("--fusion", options->fusion, "memory (half of the documents read are distinct), fid or prefix")->capture_default_str();
  train->add_option("--precision", options->precision, "fp32, bf16 or fp64")->capture_default_str();
  train->add_option("--threads", options->threads, "threads, for all")->capture_default_str();
  train->add_option("--warmup", options->warmup, "steps before the clock starts")->capture_default_str();
  train->add_option("--steps", options->steps, "timed steps; the median counts")->capture_default_str();
  train->add_option("--peers", options->peers, "folder of the peers' scripts (tests/bench/peers): times them in the same run");
  train->add_option("--python", options->python, "interpreter for the peers (tests/bench/peers/setup.sh prints one)")->capture_default_str();
  train->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            train::RunSettings settings;
            settings.threads = options->threads;
            train::apply_threads(settings);
            const train::BenchShape shape = train::bench_shape(options->shape);
            Json all{{"contexture", train::bench_training(shape, options->fusion, options->precision, options->warmup, options->steps)}};
            const double ours = all["contexture"]["examples_per_s"].get<double>();
            if (!options->json) print_line("contexture", all["contexture"], ours);
            if (!options->peers.empty()) {
              const std::string common = format(" --shape {} --precision {} --threads {} --steps {} --warmup {}", options->shape,
                                                options->precision, options->threads, options->steps, options->warmup);
              const std::string start = options->python + " " + options->peers;
              all["pytorch_eager"] = run_peer(start + "/eager.py --fusion " + options->fusion + common);
              all["hf_t5_fid"] = run_peer(start + "/hf_fid.py" + common);
              for (const char* peer : {"pytorch_eager", "hf_t5_fid"}) {
                all["ratio"][peer] = ours / all[peer]["examples_per_s"].get<double>();
                if (!options->json) print_line(peer, all[peer], ours);
              }
            }
            if (options->json) print_json(all);
            return 0;
          }};
}

}  // namespace contexture::cli
