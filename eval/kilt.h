// KILT's scores: answers, evidence, and answers that count only with their evidence.
// Pure functions: any thread.
#pragma once
#include <string_view>
#include <vector>

#include "data/kilt.h"
#include "eval/score_table.h"

namespace contexture::eval {

// ROUGE-L as KILT's scorer has it (the `rouge` 1.0.1 package): sentences end at full stops, words
// count once. 0 when a side has no sentence.
double kilt_rouge_l(std::string_view prediction, std::string_view reference);

struct KiltOptions {
  std::vector<int> cutoffs{1, 5};  // of recall, precision and success rate; each at least 1
};

// Columns: accuracy (the answer stands among the gold ones as it is), em, f1, rougel, rprec (best
// over the evidence sets), recall@k, precision@k, success_rate@k (an evidence set counts once,
// where its last page was found), answer_in_context@k (a gold answer within the text of the first k
// evidences), and kilt-accuracy, kilt-em, kilt-f1, kilt-rougel, which are 0 unless rprec is 1.
// Pages are told apart by wikipedia_id. Every gold record needs an answer and a guess with exactly
// one output and an answer; ids are distinct in each list and the guesses may come in any order.
// DataError naming the id otherwise.
ScoreTable score_kilt(const std::vector<data::KiltRecord>& gold,
                      const std::vector<data::KiltRecord>& guesses,
                      const KiltOptions& options = {});

}  // namespace contexture::eval
