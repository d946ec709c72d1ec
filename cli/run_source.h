// What the eval commands ask of a run: which checkpoint answers which examples.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "train/evaluator.h"

namespace contexture::cli {

// A run on one of its ranks, its weights loaded and its corpus indexed.
struct OpenRun {
  train::Session& session;
  const train::PictureSet& set;
  std::vector<const data::Example*> examples;  // of the set, those that were asked for
  data::BadRecords& bad;                       // met in the run's data, which are left out
  bool first;                                  // whether this rank writes and prints
};

struct RunSource {
  std::string run, data;
  std::vector<std::string> sets;
  int64_t step = -1, examples = 0;

  // Adds the run's folder and what goes with it alone; returns the folder's option.
  CLI::Option* add_to(CLI::App& app);

  // Opens the run on all ranks of the launch and calls body on each. Returns the exit code.
  int open(const std::function<int(const OpenRun&)>& body) const;
};

}  // namespace contexture::cli
