#include <filesystem>

#include "cli/held_out.h"
#include "cli/run_source.h"
#include "cli/scores.h"
#include "core/did_you_mean.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"

namespace contexture::cli {

namespace {

int evaluate(const OpenRun& run, bool edits, const std::string& per_query) {
  const HeldOut found = evaluate_held_out(run.session, run.set, run.examples, edits);
  if (!run.first) return 0;
  if (!per_query.empty()) {
    std::string lines;
    for (const Json& record : found.records) lines += record.dump() + "\n";
    write_file_atomic(per_query, lines);
  }
  Json figures = found.figures;
  figures["bad_records"] = run.bad.count;
  print_json(figures);
  keep_held_out(run.session.config(), found);
  return 0;
}

}  // namespace

Command eval_command(CLI::App& program) {
  struct Options {
    RunSource source;
    bool edits = false;
    std::string per_query;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "eval",
      "Evaluate a run, on one process or many (contexture launch): answers with retrieved, gold, "
      "wrong and no documents; retrieval and what documents are worth; edited documents; the run's "
      "report then shows them. Or score one thing with a command below, of a run or of files");
  options->source.add_to(*app);
  app->add_flag("--edits", options->edits,
                "also edit documents and see whether the answers follow");
  app->add_option("--per-query", options->per_query,
                  "write what was measured of every example, one JSON object a line");
  app->add_flag("--json")->description("results are always one JSON object on stdout");
  const std::vector<Command> scores{eval_retrieval_command(*app), eval_qa_command(*app),
                                    eval_vqa_command(*app), eval_caption_command(*app)};
  return {app, [options, scores] {
            std::vector<std::string> names;
            for (const Command& command : scores) {
              if (command.app->parsed()) return command.run();
              names.push_back(command.app->get_name());
            }
            const std::string& run = options->source.run;
            CONTEXTURE_USAGE_REQUIRE(
                !run.empty(), "contexture eval needs a run folder, or a command: see --help.");
            CONTEXTURE_USAGE_REQUIRE(std::filesystem::exists(run), "there is no run folder '", run,
                                     "'.", did_you_mean_hint(run, names));
            return options->source.open([&](const OpenRun& opened) {
              return evaluate(opened, options->edits, options->per_query);
            });
          }};
}

}  // namespace contexture::cli
