// Shared by generate and ask: one question, with or without a picture, against a run.
#pragma once
#include <string>

#include "core/json.h"
#include "eval/generate.h"
#include "train/session.h"

namespace contexture::cli {

struct Question {
  std::string id, text, picture;  // picture: a file, or empty
};

// The answer with its sources: {"id","question","answer","log_prob","documents":[{"id","title","text","score",
// "probability","attention"}]}. `cache` keeps encoded documents between questions.
Json answer_with_sources(train::Session& session, const Question& question, const eval::GenerateOptions& options,
                         eval::DocumentCache* cache);

}  // namespace contexture::cli
