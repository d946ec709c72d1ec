#include "eval/report.h"

#include <filesystem>
#include <iostream>

#include "cli/command.h"
#include "core/json.h"

namespace contexture::cli {

Command report_command(CLI::App& program) {
  struct Options {
    std::string run;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app =
      program.add_subcommand("report", "Write report.html of a run, running or ended, anew");
  app->add_option("run", options->run, "run folder")->required();
  app->add_flag("--json", options->json, "print what the page shows as one JSON object on stdout");
  return {app, [options] {
            eval::write_report(options->run);
            if (options->json) {
              print_json(eval::report_data(options->run));
            } else {
              std::cout << (std::filesystem::path(options->run) / "report.html").string() << "\n";
            }
            return 0;
          }};
}

}  // namespace contexture::cli
