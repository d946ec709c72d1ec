#include <malloc.h>  // mallopt

#include <exception>
#include <iostream>

#include "cli/command.h"
#include "core/error.h"
#include "core/json.h"
#include "core/log.h"
#include "core/signals.h"
#include "parallel/communicator.h"

namespace contexture::cli {

void SettingOptions::add_to(CLI::App& app) {
  app.add_option("--config", file, "JSON file of settings");
  app.add_option("--set", sets, "one setting, a.b=c; may be repeated, comes on top of --config")
      ->allow_extra_args(false);
}

void print_json(const Json& json) { std::cout << json.dump(1) << std::endl; }

Command command_group(CLI::App* app, std::vector<Command> commands) {
  app->require_subcommand(1);
  return {app, [commands = std::move(commands)] {
            for (const Command& command : commands) {
              if (command.app->parsed()) return command.run();
            }
            return 2;
          }};
}

namespace {

// Fresh pages are dear, and a step frees and takes the same memory again: glibc is told to keep
// what is freed instead of giving it back to the system each time. (32 MiB is the largest block
// that it agrees to keep.)
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

int run(int argc, char** argv) {
  CLI::App program("Contexture trains image-language transformers that look things up.",
                   "contexture");
  program.set_version_flag("--version", std::string("contexture ") + CONTEXTURE_VERSION);
  program.require_subcommand(1);
  program.set_help_all_flag("--help-all", "Print the help of every command");
  std::string level = "info";
  program.add_option("--log-level", level, "debug, info, warn, error or off")
      ->capture_default_str();
  program.fallthrough();  // --log-level may come after the command
  const std::vector<Command> commands{
      demo_command(program),       train_command(program), eval_command(program),
      generate_command(program),   ask_command(program),   data_command(program),
      tokenizer_command(program),  index_command(program), report_command(program),
      checkpoint_command(program), trace_command(program), plan_command(program),
      tune_command(program),       bench_command(program), env_command(program),
      launch_command(program)};
  check_names(program, argc, argv);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = program.exit(error);
    return code == 0 ? 0 : 2;
  }
  log::set_level(log::level_from_name(level));
  install_stop_signals();
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return 2;
}

}  // namespace
}  // namespace contexture::cli

int main(int argc, char** argv) {
  using namespace contexture;
  cli::keep_freed_memory();
  try {
    return cli::run(argc, argv);
  } catch (const parallel::PeerFailure& error) {
    std::cerr << "contexture: " << error.brief()
              << "\n";  // the first to fail tells the cause, once
    return error.exit_code();
  } catch (const parallel::AgreedError& error) {
    if (error.speaks()) std::cerr << "contexture: " << error.what() << "\n";
    return error.exit_code();
  } catch (const UserError& error) {
    std::cerr << "contexture: " << error.what() << "\n";
    return error.exit_code();
  } catch (const Bug& error) {
    std::cerr << "contexture: this is a fault of the program, please report it: " << error.what()
              << "\n";
  } catch (const c10::Error& error) {
    std::cerr << "contexture: " << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "contexture: " << error.what() << "\n";
  }
  return 1;
}
