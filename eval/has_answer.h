// Does a passage hold an answer, as open-domain QA (DPR) asks it. Pure functions: any thread.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace contexture::eval {

// DPR's tokens: canonically decomposed (NFD) text cut into runs of letters, digits and marks, and
// single other characters that are neither white space nor control characters; each lower-cased.
std::vector<std::string> dpr_tokens(std::string_view text);

// True if the tokens of an answer stand in a row among the passage's. An answer without tokens
// matches every passage, as the reference has it.
bool has_answer(std::string_view passage, const std::vector<std::string>& answers);

// The same, the passage tokenised before.
bool has_answer_tokens(const std::vector<std::string>& passage,
                       const std::vector<std::string>& answers);

// CuratedTREC's way: an answer is a regular expression (ICU's dialect), searched in the decomposed
// passage, case ignored, ^ and $ at line ends. An expression that is none matches nothing, as does
// one that takes too long.
bool has_answer_regex(std::string_view passage, const std::vector<std::string>& patterns);

}  // namespace contexture::eval
