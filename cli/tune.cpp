#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <sstream>

#include "cli/bench.h"
#include "cli/settings.h"
#include "core/error.h"
#include "core/files.h"
#include "core/format.h"
#include "core/json.h"
#include "core/log.h"
#include "core/timing.h"
#include "train/planning.h"
#include "train/published_encoder.h"

namespace contexture::cli {
namespace {

struct Options {
  SettingOptions settings;
  std::vector<int64_t> counts;
  int64_t steps = 8, top = 3;
  bool json = false;
};

constexpr int64_t kWarmUp = 2;  // steps before the clock counts

struct Trial {
  int64_t microbatches = 0;
  double predicted = 0.0;  // relative: this machine's speed is unknown
  double step_s = 0.0;
};

// The counts that the planner expects to be fastest in the run's own layout.
std::vector<Trial> candidates(const Options& options, const train::RunConfig& config, int ranks) {
  const parallel::ParallelConfig& p = config.parallel;
  parallel::Planner planner(train::planned_model(config, {}), parallel::default_cluster(1, ranks));
  const int64_t share = config.train.batch_size / p.dp;
  std::vector<int64_t> counts = options.counts;
  for (int64_t m = 1; options.counts.empty() && m <= share; ++m) {
    const bool possible =
        share % m == 0 && (p.schedule != "interleaved" || p.pp == 1 || m % p.pp == 0);
    if (possible) counts.push_back(m);
  }
  std::vector<Trial> out;
  for (const int64_t m : counts) {
    CONTEXTURE_USAGE_REQUIRE(m >= 1 && m <= share, "--counts ", m, ": a replica has ", share,
                             " inputs a step (train.batch_size=", config.train.batch_size,
                             " over parallel.dp=", p.dp, "), so 1 to ", share,
                             " microbatches are possible.");
    const parallel::Layout layout{
        .dp = static_cast<int>(p.dp),
        .pp = static_cast<int>(p.pp),
        .tp = static_cast<int>(p.tp),
        .schedule = p.schedule == "list" ? "1f1b" : p.schedule,
        .chunks = p.schedule == "interleaved" ? static_cast<int>(p.chunks) : 1,
        .microbatches = m,
        .zero = static_cast<int>(p.zero),
        .recompute = p.recompute};
    out.push_back({m, planner.price(layout).step_s, 0.0});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Trial& a, const Trial& b) { return a.predicted < b.predicted; });
  if (options.counts.empty() && static_cast<int64_t>(out.size()) > options.top)
    out.resize(options.top);
  return out;
}

// Seconds a step of a short training, by its own metrics: the median of those after the warm-up.
double measured_step_s(const Options& options, int64_t microbatches, int ranks) {
  const TempDir folder;
  std::string command = format("/proc/{}/exe --log-level warn ", getpid());
  if (ranks > 1) command += format("launch --nproc {} -- --log-level warn ", ranks);
  command += "train";
  const auto quoted = [](const std::string& text) {
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
  };
  if (!options.settings.file.empty()) command += " --config " + quoted(options.settings.file);
  std::vector<std::string> sets = options.settings.sets;
  const int64_t steps = kWarmUp + options.steps;
  for (const std::string& set :
       {concat("parallel.microbatches=", microbatches),
        concat("run.dir=", (folder.path() / "run").string()), concat("train.steps=", steps),
        std::string("train.stop_at=0"), std::string("train.log_every=1"),
        std::string("eval.every=0"), std::string("checkpoint.every=0")}) {
    sets.push_back(set);
  }
  for (const std::string& set : sets) command += " --set " + quoted(set);
  const int status = std::system((command + " >&2").c_str());
  CONTEXTURE_REQUIRE(status == 0, "training with parallel.microbatches=", microbatches,
                     " failed. Its words are above.");
  std::istringstream lines(read_file(folder.path() / "run" / "metrics.jsonl"));
  std::vector<double> seconds;
  int64_t step = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json record = parse_json(line, "metrics.jsonl");
    if (!record.contains("seconds") || ++step <= kWarmUp) continue;
    seconds.push_back(record["seconds"].get<double>());
  }
  CONTEXTURE_REQUIRE(!seconds.empty(), "training with parallel.microbatches=", microbatches,
                     " wrote no step after the first ", kWarmUp);
  return median(seconds);
}

int run(const Options& options) {
  train::RunConfig config = run_config(options.settings);
  train::read_text_encoder(config);
  CONTEXTURE_USAGE_REQUIRE(options.steps >= 1 && options.top >= 1, "--steps ", options.steps,
                           " and --top ", options.top, " must be at least 1.");
  if (config.parallel.dp == 0) config.parallel.dp = 1;
  parallel::ParallelConfig& p = config.parallel;
  const auto ranks = static_cast<int>(p.dp * p.pp * p.tp);
  p.microbatches = 1;  // the count is what is looked for
  config.validate();
  std::vector<Trial> trials = candidates(options, config, ranks);
  for (Trial& trial : trials) {
    trial.step_s = measured_step_s(options, trial.microbatches, ranks);
    log::info("parallel.microbatches={}: {:.1f} ms a step", trial.microbatches, 1e3 * trial.step_s);
  }
  const auto winner =
      std::min_element(trials.begin(), trials.end(),
                       [](const Trial& a, const Trial& b) { return a.step_s < b.step_s; });
  Json out{{"ranks", ranks},
           {"microbatches", winner->microbatches},
           {"setting", concat("parallel.microbatches=", winner->microbatches)},
           {"tried", Json::array()}};
  for (const Trial& trial : trials) {
    out["tried"].push_back({{"microbatches", trial.microbatches},
                            {"step_s", trial.step_s},
                            {"predicted_relative", trial.predicted / trials.front().predicted}});
  }
  if (options.json) {
    print_json(out);
    return 0;
  }
  std::cout << format(
      "{} rank{}, {} timed steps each\nmicrobatches      step ms   predicted, best = 1\n", ranks,
      ranks == 1 ? "" : "s", options.steps);
  for (const Json& trial : out["tried"]) {
    std::cout << format("{:>12}{:>13.1f}{:>12.2f}{}\n", trial["microbatches"].get<int64_t>(),
                        1e3 * trial["step_s"].get<double>(),
                        trial["predicted_relative"].get<double>(),
                        trial["microbatches"] == out["microbatches"] ? "  <- fastest" : "");
  }
  std::cout << "--set " << out["setting"].get<std::string>() << "\n";
  return 0;
}

}  // namespace

Command tune_command(CLI::App& program) {
  CLI::App* app =
      program.add_subcommand("tune", "Try settings in short trainings and name the fastest");
  auto options = std::make_shared<Options>();
  CLI::App* microbatches =
      app->add_subcommand("microbatches",
                          "parallel.microbatches: the counts that the planner expects to be "
                          "fastest, on as many ranks of this machine as parallel.dp x pp x tp say");
  options->settings.add_to(*microbatches);
  microbatches->add_option("--counts", options->counts,
                           "try these instead of the planner's choice");
  microbatches->add_option("--top", options->top, "counts to try, of the planner's order")
      ->capture_default_str();
  microbatches->add_option("--steps", options->steps, "timed steps of each, after two that are not")
      ->capture_default_str();
  microbatches->add_flag("--json", options->json, "print one JSON object on stdout");
  return command_group(app, {{microbatches, [options] { return run(*options); }}});
}

}  // namespace contexture::cli
