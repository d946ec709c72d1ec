#include <iostream>

#include "cli/ranks.h"
#include "cli/settings.h"
#include "core/error.h"
#include "core/format.h"
#include "core/json.h"
#include "core/log.h"
#include "eval/report.h"
#include "train/parity.h"
#include "train/trainer.h"

namespace contexture::cli {

namespace {

int verify(const train::RunConfig& config, parallel::Groups groups, bool json) {
  CONTEXTURE_USAGE_REQUIRE(config.retriever.refresh_ranks == 0,
                           "retriever.refresh_ranks=", config.retriever.refresh_ranks,
                           " has no part in --verify-parity, which refreshes nothing. Leave it "
                           "out, with its ranks.");
  train::apply_threads(config.run);
  const bool first = groups.rank() == 0;
  const train::Difference d = train::verify_parity(config, std::move(groups));
  if (!first) return 0;
  if (json) {
    print_json({{"loss_max_rel", d.loss},
                {"grad_max_rel", d.gradient},
                {"step_max_rel", d.step},
                {"worst_parameter", d.worst_parameter}});
  } else {
    std::cout << format(
        "largest relative differences from one process, over ten steps in fp64:\n  loss {:.2e}\n  "
        "gradients of step 1 {:.2e}\n"
        "  parameters after step 10 {:.2e}\n  worst parameter {}\n",
        d.loss, d.gradient, d.step, d.worst_parameter);
  }
  return 0;
}

int train_run(const train::RunConfig& config, parallel::Groups groups, bool resume, bool json) {
  if (groups.refreshes()) return train::serve_refreshes(config, groups) ? 75 : 0;
  const bool first = groups.rank() == 0;
  train::Trainer trainer(config, resume, std::move(groups));
  const train::TrainResult result = trainer.run();
  if (first) {
    eval::write_report(config.run.dir);
    log::info("{} steps, {:.1f} examples/s. Report: {}/report.html", result.steps,
              result.examples_per_s, config.run.dir);
  }
  if (json && first) {
    print_json({{"steps", result.steps},
                {"seconds", result.seconds},
                {"examples_per_s", result.examples_per_s},
                {"parameters", result.parameters},
                {"run", config.run.dir},
                {"stopped_by_signal", result.stopped_by_signal}});
  }
  return result.stopped_by_signal ? 75 : 0;
}

}  // namespace

Command train_command(CLI::App& program) {
  struct Options {
    SettingOptions settings;
    bool resume = false, json = false, verify_parity = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "train", "Train a model and its retriever, on one process or many (contexture launch)");
  options->settings.add_to(*app);
  app->add_flag("--resume", options->resume, "continue from the newest checkpoint of run.dir");
  app->add_flag("--verify-parity", options->verify_parity,
                "train nothing: run ten steps in this layout and in one process, in fp64, and "
                "print the largest differences");
  app->add_flag("--json", options->json, "print the result as one JSON object on stdout");
  app->footer([] { return "Settings (--set name=value):\n" + help_text(train::RunConfig()); });
  return {app, [options] {
            train::RunConfig config = run_config(options->settings);
            return on_ranks(config, /*finished=*/false, [&](parallel::Groups groups) {
              return options->verify_parity
                         ? verify(config, std::move(groups), options->json)
                         : train_run(config, std::move(groups), options->resume, options->json);
            });
          }};
}

}  // namespace contexture::cli
