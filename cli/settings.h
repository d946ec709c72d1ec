// Reading the run's configuration from the command line.
#pragma once
#include "cli/command.h"
#include "core/config.h"
#include "core/files.h"
#include "train/config.h"

namespace contexture::cli {

// The file's settings, then every --set in order.
inline void apply_settings(train::RunConfig& config, const SettingOptions& options) {
  if (!options.file.empty()) apply_json(config, read_file(options.file), options.file);
  for (const std::string& set : options.sets) apply_set(config, set);
}

// The same on top of the defaults.
inline train::RunConfig run_config(const SettingOptions& options) {
  train::RunConfig config;
  apply_settings(config, options);
  return config;
}

}  // namespace contexture::cli
