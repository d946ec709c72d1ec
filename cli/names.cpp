#include <algorithm>

#include "cli/command.h"
#include "core/did_you_mean.h"
#include "core/error.h"

namespace contexture::cli {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* level = &app; level != nullptr; level = level->get_parent()) {
    for (const CLI::Option* option : level->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    }
  }
  return names;
}

// "contexture data check"
std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name()
                                     : full_name(*app.get_parent()) + " " + app.get_name();
}

const CLI::Option* find_option(const CLI::App& app, const std::string& name) {
  for (const CLI::App* level = &app; level != nullptr; level = level->get_parent()) {
    if (const CLI::Option* option = level->get_option_no_throw(name)) return option;
  }
  return nullptr;
}

bool takes_arguments(const CLI::App& app) {
  const auto options = app.get_options();
  return std::any_of(options.begin(), options.end(),
                     [](const CLI::Option* option) { return option->get_positional(); });
}

}  // namespace

void check_names(const CLI::App& program, int argc, const char* const* argv) {
  const CLI::App* app = &program;
  for (int i = 1; i < argc; ++i) {
    const std::string given = argv[i];
    if (given == "--") return;
    if (given.size() > 1 && given[0] == '-') {
      const bool is_long = given[1] == '-';
      const size_t equals = given.find('=');
      const std::string name =
          is_long ? given.substr(0, equals) : given.substr(0, 2);  // -k5 is -k 5
      const CLI::Option* option = find_option(*app, name);
      CONTEXTURE_USAGE_REQUIRE(option != nullptr, full_name(*app), " has no option '", name, "'.",
                               did_you_mean_hint(name, option_names(*app)), " See ",
                               full_name(*app), " --help.");
      const bool value_follows = is_long ? equals == std::string::npos : given.size() == 2;
      if (option->get_items_expected_max() > 0 && value_follows) ++i;
      continue;
    }
    const std::vector<std::string> names = command_names(*app);
    const bool known = std::find(names.begin(), names.end(), given) != names.end();
    if (names.empty() || (!known && takes_arguments(*app))) continue;  // an argument
    CONTEXTURE_USAGE_REQUIRE(known, full_name(*app), " has no command '", given, "'.",
                             did_you_mean_hint(given, names), " See ", full_name(*app), " --help.");
    app = app->get_subcommand(given);
  }
}

}  // namespace contexture::cli
