// Reading the run's configuration from the command line.
#pragma once
#include "cli/command.h"
#include "core/config.h"
#include "core/files.h"
#include "train/config.h"

namespace contexture::cli {

// `config` (the defaults), then the file, then every --set in order.
inline train::RunConfig run_config(const SettingOptions& options, train::RunConfig config = {}) {
  if (!options.file.empty()) apply_json(config, read_file(options.file), options.file);
  for (const std::string& set : options.sets) apply_set(config, set);
  return config;
}

}  // namespace contexture::cli
