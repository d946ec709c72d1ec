#include <filesystem>

#include "cli/ranks.h"
#include "cli/scores.h"
#include "cli/settings.h"
#include "core/did_you_mean.h"
#include "core/error.h"
#include "core/json.h"
#include "eval/report.h"
#include "train/evaluator.h"
#include "train/session.h"

namespace contexture::cli {

namespace {

struct EvalOptions {
  std::string run, data;
  std::vector<std::string> sets;
  int64_t step = -1, examples = 0;
  bool edits = false;
};

int evaluate(const train::RunConfig& config, const EvalOptions& options, parallel::Groups groups) {
  const bool first = groups.rank() == 0;
  data::BadRecords bad(data::BadRecords::Policy::kSkip);
  const auto session = train::open_run(config, bad, options.step, /*with_index=*/true, std::move(groups));
  const std::string path = options.data.empty() ? config.data.test : options.data;
  CONTEXTURE_USAGE_REQUIRE(!path.empty(), "the run names no data.test. Give --data FILE.");
  const train::PictureSet set(session->config(), path, session->config().eval.types, session->documents(), bad);
  const train::Evaluator evaluator(*session);
  const auto examples = train::Evaluator::choose(set, options.examples);
  Json figures = evaluator.held_out(set, examples, nullptr);
  if (options.edits) {
    int64_t asked = 0;
    figures["edit_follow"] = evaluator.edit_follow(set, examples, &asked, nullptr);
    figures["edits"] = asked;
  }
  figures["bad_records"] = bad.count;
  if (first) print_json(figures);
  return 0;
}

}  // namespace

Command eval_command(CLI::App& program) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* app = program.add_subcommand(
      "eval", "Evaluate a run, on one process or many (contexture launch): answers with retrieved, gold, wrong and no documents; retrieval; "
              "edited documents. Or score files, with a command below");
  app->add_option("run", options->run, "run folder");
  app->add_option("--data", options->data, "examples, below data.root; default: data.test of the run");
  app->add_option("--set", options->sets, "one setting, a.b=c, on top of the run's own; may be repeated")->allow_extra_args(false);
  app->add_option("--step", options->step, "checkpoint to evaluate; default: the newest");
  app->add_option("--examples", options->examples, "evenly spaced examples; 0: all")->capture_default_str();
  app->add_flag("--edits", options->edits, "also edit documents and see whether the answers follow");
  app->add_flag("--json")->description("results are always one JSON object on stdout");
  const std::vector<Command> on_files{eval_retrieval_command(*app), eval_qa_command(*app), eval_vqa_command(*app),
                                       eval_caption_command(*app)};
  return {app, [options, on_files] {
            std::vector<std::string> names;
            for (const Command& command : on_files) {
              if (command.app->parsed()) return command.run();
              names.push_back(command.app->get_name());
            }
            CONTEXTURE_USAGE_REQUIRE(!options->run.empty(), "contexture eval needs a run folder, or a command: see --help.");
            CONTEXTURE_USAGE_REQUIRE(std::filesystem::exists(options->run), "there is no run folder '", options->run, "'.",
                                     did_you_mean_hint(options->run, names));
            train::RunConfig config = train::settings_of(options->run, options->sets);
            return on_ranks(config, /*finished=*/true, [&](parallel::Groups groups) { return evaluate(config, *options, std::move(groups)); });
          }};
}

}  // namespace contexture::cli
