#include "cli/settings.h"
#include "core/json.h"
#include "core/log.h"
#include "eval/report.h"
#include "train/trainer.h"

namespace contexture::cli {

Command train_command(CLI::App& program) {
  struct Options {
    SettingOptions settings;
    bool resume = false, json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand("train", "Train a model and its retriever");
  options->settings.add_to(*app);
  app->add_flag("--resume", options->resume, "continue from the newest checkpoint of run.dir");
  app->add_flag("--json", options->json, "print the result as one JSON object on stdout");
  app->footer([] { return "Settings (--set name=value):\n" + help_text(train::RunConfig()); });
  return {app, [options] {
            const train::RunConfig config = run_config(options->settings);
            train::Trainer trainer(config, options->resume);
            const train::TrainResult result = trainer.run();
            eval::write_report(config.run.dir);
            log::info("{} steps, {:.1f} examples/s. Report: {}/report.html", result.steps, result.examples_per_s, config.run.dir);
            if (options->json) {
              print_json({{"steps", result.steps}, {"seconds", result.seconds}, {"examples_per_s", result.examples_per_s},
                          {"parameters", result.parameters}, {"run", config.run.dir}, {"stopped_by_signal", result.stopped_by_signal}});
            }
            return result.stopped_by_signal ? 75 : 0;
          }};
}

}  // namespace contexture::cli
