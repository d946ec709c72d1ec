#include <iostream>

#include "cli/held_out.h"
#include "cli/settings.h"
#include "core/error.h"
#include "core/json.h"
#include "core/log.h"
#include "train/trainer.h"

namespace contexture::cli {

extern const char* const kDemoConfig;  // configs/demo.json, compiled in

namespace {

void print_figures(const Json& held_out, const Json& samples) {
  const auto percent = [](const Json& value) { return format("{:5.1f}", value.get<double>()); };
  std::cout << "\nHeld-out entities (never in any training signal), " << held_out["n"]
            << " questions:\n"
            << "  exact match   retrieved " << percent(held_out["em"]["retrieved"])
            << "   gold document " << percent(held_out["em"]["gold"]) << "   wrong document "
            << percent(held_out["em"]["wrong"]) << "   closed book "
            << percent(held_out["em"]["closed_book"]) << "\n"
            << "  retrieval     recall@1  " << percent(held_out["recall_at"]["1"]) << "   recall@5 "
            << percent(held_out["recall_at"]["5"]) << "\n"
            << "  edit-follow   " << percent(held_out["edit_follow"]) << "\n\n";
  for (size_t i = 0; i < 5 && i < samples.size(); ++i) {
    const Json& card = samples[i * samples.size() / 5];
    std::cout << "  " << card["question"].get<std::string>() << "  ["
              << card["id"].get<std::string>()
              << "]\n    answer: " << card["answer"].get<std::string>()
              << "   (expected: " << card["references"][0].get<std::string>() << ")\n";
    if (!card["documents"].empty()) {
      std::cout << "    read:   " << card["documents"][0]["title"].get<std::string>()
                << " (p = " << format("{:.2f}", card["documents"][0]["probability"].get<double>())
                << ")\n";
    }
  }
}

}  // namespace

Command demo_command(CLI::App& program) {
  struct Options {
    SettingOptions settings;
    bool resume = false, json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "demo", "Train on the demo set, evaluate on unseen entities, write the report");
  options->settings.add_to(*app);
  app->add_flag("--resume", options->resume, "continue from the newest checkpoint of run.dir");
  app->add_flag("--json", options->json, "print summary.json on stdout, and nothing else there");
  return {
      app, [options] {
        train::RunConfig config;
        apply_json(config, kDemoConfig, "demo.json (built in)");
        apply_settings(config, options->settings);
        const std::string corpus = train::data_path(config.data, config.data.corpus);
        CONTEXTURE_REQUIRE(std::filesystem::exists(corpus), "the demo set is not there: ", corpus,
                           " is missing. Build it with tools/demo_data, or name its folder with "
                           "--set data.root=FOLDER.");
        train::Trainer trainer(config, options->resume);
        const train::TrainResult result = trainer.run();
        if (result.stopped_by_signal) return 75;
        train::Session& session = trainer.session();
        if (session.retriever().refreshed_at() != result.steps)
          session.retriever().refresh_now(result.steps);
        data::BadRecords bad;
        const train::PictureSet test(config, config.data.test, config.eval.types,
                                     session.documents(), bad);
        const HeldOut found = evaluate_held_out(session, test, train::Evaluator::choose(test, 0),
                                                /*edits=*/true);
        const Json summary = keep_held_out(config, found,
                                           {{"seconds", result.seconds},
                                            {"steps", result.steps},
                                            {"examples_per_s", result.examples_per_s},
                                            {"parameters", result.parameters}});
        if (options->json) {
          print_json(summary);
        } else {
          print_figures(found.figures, found.samples);
          std::cout << "\nReport: " << config.run.dir << "/report.html\n";
        }
        return 0;
      }};
}

}  // namespace contexture::cli
