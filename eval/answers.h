// Scores of short answers as SQuAD defines them: exact match and bag-of-tokens F1, both after the
// same normalisation and both the best over all references.
//
// Text is UTF-8; bytes that are not are read as U+FFFD. Lower-casing, white space and word
// boundaries follow Unicode as the reference scorer's (Python's) do. Pure functions: any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace contexture::eval {

// Lower case, then ASCII punctuation out, then a/an/the as whole words out, then white space
// squeezed. The order matters: "a-ha" is one word, never an article. Other punctuation stays.
std::string normalize_answer(std::string_view text);

// The normalised text cut at white space.
std::vector<std::string> answer_tokens(std::string_view text);

// 1 if the normalised prediction equals any normalised reference, else 0; 0 without references.
double exact_match(std::string_view prediction, const std::vector<std::string>& references);

// Best token F1 over the references, 0..1. If one side has no tokens it is 1 when both have none.
double f1_score(std::string_view prediction, const std::vector<std::string>& references);

struct AnswerScores {
  double em = 0.0;                       // percent, 0..100
  double f1 = 0.0;                       // percent, 0..100
  std::vector<double> em_each, f1_each;  // [n] 0..1 per prediction, for bootstrap intervals
};

// predictions and references run in parallel; UserError if their lengths differ or are zero.
AnswerScores score_answers(const std::vector<std::string>& predictions,
                           const std::vector<std::vector<std::string>>& references);

}  // namespace contexture::eval
