// A subcommand of the one binary: registers its options, and runs. Each lives in a file of its own.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "core/json_fwd.h"

namespace contexture::cli {

// The exit code of a finished command (docs/design.md 9): 0 ok, 1 failure, 2 usage, 3 bad data, 4
// distributed failure, 75 saved and wants to be requeued.
using Run = std::function<int()>;

// Adds the subcommand to the program and returns what runs it. Options live as long as the returned
// function.
struct Command {
  CLI::App* app;
  Run run;
};
Command train_command(CLI::App& program);
Command demo_command(CLI::App& program);
Command eval_command(CLI::App& program);
Command generate_command(CLI::App& program);
Command ask_command(CLI::App& program);
Command data_command(CLI::App& program);
Command tokenizer_command(CLI::App& program);
Command index_command(CLI::App& program);
Command checkpoint_command(CLI::App& program);
Command report_command(CLI::App& program);
Command trace_command(CLI::App& program);
Command plan_command(CLI::App& program);
Command tune_command(CLI::App& program);
Command bench_command(CLI::App& program);
Command env_command(CLI::App& program);
Command launch_command(CLI::App& program);

// A command that has commands of its own ("data check"): runs the one that was given.
Command command_group(CLI::App* app, std::vector<Command> commands);

// Throws UsageError naming the nearest known one when the arguments hold an unknown command or
// option. Must be called before CLI11 parses, which would say only that something was not expected.
void check_names(const CLI::App& program, int argc, const char* const* argv);

// --config FILE and any number of --set a.b=c, the same on every command that reads settings.
struct SettingOptions {
  std::string file;
  std::vector<std::string> sets;
  void add_to(CLI::App& app);
};

// --json: one object on stdout and nothing else there.
void print_json(const Json& json);

}  // namespace contexture::cli
