#include "cli/bench.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>

#include "core/error.h"

namespace contexture::cli {

void PeerOptions::add_to(CLI::App& app) {
  app.add_option("--peers", scripts,
                 "folder of the peers' scripts (tests/bench/peers): times them in the same run");
  app.add_option("--python", python,
                 "interpreter for the peers (tests/bench/peers/setup.sh prints one)")
      ->capture_default_str();
  app.add_option("--threads", threads, "threads, for all")->capture_default_str();
  app.add_flag("--json", json, "print one JSON object on stdout");
}

Json run_peer(const PeerOptions& options, const std::string& script_and_arguments) {
  return run_command(options.python + " " + options.scripts + "/" + script_and_arguments);
}

Json run_command(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  CONTEXTURE_REQUIRE(pipe != nullptr, "cannot run ", command);
  std::string out;
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe))
    out.append(buffer.data(), n);
  const int status = pclose(pipe);
  CONTEXTURE_REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0 && !out.empty(), command,
                     " failed. Its words are above.");
  out.erase(out.find_last_not_of('\n') + 1);
  return parse_json(out.substr(out.find_last_of('\n') + 1), command);
}

Command bench_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("bench",
                                         "Time training, reading and searching, beside what others "
                                         "use; links and storage, for contexture plan");
  return command_group(
      app, {bench_train_command(*app), bench_loader_command(*app), bench_search_command(*app),
            bench_index_command(*app), bench_encode_command(*app), bench_parallel_command(*app),
            bench_links_command(*app), bench_storage_command(*app)});
}

}  // namespace contexture::cli
