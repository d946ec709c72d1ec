// What the commands that score files share: options, the table on stdout, --per-query, --compare.
#pragma once
#include <functional>
#include <string>

#include "cli/command.h"
#include "data/records.h"
#include "eval/score_table.h"

namespace contexture::cli {

struct ScoreOptions {
  std::string per_query, compare, bad_records = "fail";
  eval::BootstrapOptions bootstrap;
  bool json = false;

  // `system` names what --compare takes: "run", "predictions".
  void add_to(CLI::App& app, const std::string& system);
};

// Scores one file of a system's results. `bad` has the policy of --bad-records.
using ScoreFile = std::function<eval::ScoreTable(const std::string& file, data::BadRecords& bad)>;
// Scores what is at hand, counting in `bad` what had to be left out.
using ScoreOwn = std::function<eval::ScoreTable(data::BadRecords& bad)>;

// Scores `own`, and --compare's file with `other` when given; writes --per-query; prints. Returns
// the exit code.
int report_scores(const ScoreOptions& options, const ScoreOwn& own, const ScoreFile& other);

Command eval_retrieval_command(CLI::App& group);
Command eval_qa_command(CLI::App& group);
Command eval_vqa_command(CLI::App& group);
Command eval_caption_command(CLI::App& group);

}  // namespace contexture::cli
