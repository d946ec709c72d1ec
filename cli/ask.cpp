#include <iostream>

#include "cli/answers.h"
#include "cli/command.h"
#include "cli/ranks.h"
#include "core/error.h"
#include "core/format.h"

namespace contexture::cli {
namespace {

struct AskCommand {
  std::string run, picture, question;
  std::vector<std::string> sets;
  WritingFlags writing;
  bool json = false;
};

// Replicas ask the same.
int answer_one(const train::RunConfig& config, const AskCommand& options, parallel::Groups groups) {
  data::BadRecords bad(data::BadRecords::Policy::kSkip);
  const bool prints = groups.rank() == 0;
  const auto session =
      train::open_run(config, bad, /*step=*/-1, /*with_index=*/true, std::move(groups));
  const Json answer = answer_with_sources(*session, {"", options.question, options.picture},
                                          options.writing.options(session->config()), nullptr);
  if (!prints) return 0;
  if (options.json) {
    print_json(answer);
    return 0;
  }
  std::cout << answer["answer"].get<std::string>() << "\n\nread:\n";
  for (const Json& document : answer["documents"]) {
    std::cout << format("  {:.3f} score  {:5.1f}% retrieval  {:5.1f}% attention  ",
                        document["score"].get<double>(),
                        100 * document["probability"].get<double>(),
                        100 * document["attention"].get<double>())
              << document["id"].get<std::string>() << "  " << document["title"].get<std::string>()
              << "\n    " << document["text"].get<std::string>() << "\n";
  }
  return 0;
}

}  // namespace

Command ask_command(CLI::App& program) {
  auto options = std::make_shared<AskCommand>();
  CLI::App* app = program.add_subcommand("ask",
                                         "Ask a run one question: the answer, and the documents it "
                                         "read; on one process or many (contexture launch)");
  app->add_option("run", options->run, "run folder")->required();
  app->add_option("question", options->question, "the question")->required();
  app->add_option("--picture", options->picture, "a picture file that the question is about");
  app->add_option("--set", options->sets,
                  "one setting, a.b=c, on top of the run's own; may be repeated")
      ->allow_extra_args(false);
  options->writing.add_to(*app);
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            train::RunConfig config = train::settings_of(options->run, options->sets);
            return on_ranks(config, /*finished=*/true, [&](parallel::Groups groups) {
              return answer_one(config, *options, std::move(groups));
            });
          }};
}

}  // namespace contexture::cli
