// Shared by generate and ask: one question, with or without a picture, against a run.
#pragma once
#include <string>

#include "cli/command.h"
#include "core/json.h"
#include "eval/generate.h"
#include "train/session.h"

namespace contexture::cli {

struct Question {
  std::string id, text, picture;  // picture: a file, or empty
};

// What generate and ask take besides settings: how an answer is written is the run's eval.decoder,
// .beams and .thorough.
struct WritingFlags {
  int64_t max_new_tokens = 24;
  double temperature = 0.0;
  uint64_t seed = 0;
  void add_to(CLI::App& app);
  eval::GenerateOptions options(const train::RunConfig& config) const;
};

// The answer with its sources:
// {"id","question","answer","log_prob","documents":[{"id","title","text","score",
// "probability","attention"}]}. `cache` keeps encoded documents between questions; may be null.
// Collective in the replica; throws DataError, before it has spoken to other ranks, when the
// picture can't be read.
Json answer_with_sources(train::Session& session, const Question& question,
                         const eval::GenerateOptions& options, eval::DocumentCache* cache);

}  // namespace contexture::cli
