// Scores of short answers to open-domain questions, with the passages read where they are known.
// Pure functions: any thread.
#pragma once
#include <string>
#include <vector>

#include "data/predictions.h"
#include "data/records.h"
#include "eval/score_table.h"

namespace contexture::eval {

struct QaOptions {
  std::vector<int> cutoffs{1, 5, 20, 100};  // of the passages; each at least 1
  bool patterns =
      false;  // answers are regular expressions when looked for in passages (CuratedTREC)
};

// Columns em, f1 (answers.h) and acc (a normalised answer stands within the normalised prediction),
// all scale 100; not when the predictions hold passages alone (DPR's output). When predictions
// carry passages: has_answer@k (an answer within the text of the first k, has_answer.h) if they
// have texts, gold@k (a gold document among the first k) if they and the references have ids.
// `predictions` runs parallel to `references`. DataError when a reference has no answer.
ScoreTable score_qa(const std::vector<data::Example>& references,
                    const std::vector<data::Prediction>& predictions,
                    const QaOptions& options = {});

}  // namespace contexture::eval
