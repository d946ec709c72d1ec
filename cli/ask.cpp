#include <iostream>

#include "cli/answers.h"
#include "cli/command.h"
#include "core/error.h"
#include "core/format.h"

namespace contexture::cli {

Command ask_command(CLI::App& program) {
  struct Options {
    std::string run, picture, question;
    std::vector<std::string> sets;
    WritingFlags writing;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand("ask", "Ask a run one question: the answer, and the documents it read");
  app->add_option("run", options->run, "run folder")->required();
  app->add_option("question", options->question, "the question")->required();
  app->add_option("--picture", options->picture, "a picture file that the question is about");
  app->add_option("--set", options->sets, "one setting, a.b=c, on top of the run's own; may be repeated")->allow_extra_args(false);
  options->writing.add_to(*app);
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            data::BadRecords bad(data::BadRecords::Policy::kSkip);
            const auto session = train::open_run(train::settings_of(options->run, options->sets), bad);
            const Json answer = answer_with_sources(*session, {"", options->question, options->picture}, options->writing.options(session->config()), nullptr);
            if (options->json) {
              print_json(answer);
              return 0;
            }
            std::cout << answer["answer"].get<std::string>() << "\n\nread:\n";
            for (const Json& document : answer["documents"]) {
              std::cout << format("  {:.3f} score  {:5.1f}% retrieval  {:5.1f}% attention  ", document["score"].get<double>(),
                                  100 * document["probability"].get<double>(), 100 * document["attention"].get<double>())
                        << document["id"].get<std::string>() << "  " << document["title"].get<std::string>() << "\n    "
                        << document["text"].get<std::string>() << "\n";
            }
            return 0;
          }};
}

}  // namespace contexture::cli
