#include "eval/has_answer.h"

#include <unicode/regex.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <memory>

#include "eval/internal/unicode_text.h"

namespace contexture::eval {

std::vector<std::string> dpr_tokens(std::string_view text) {
  constexpr uint32_t kWord = U_GC_L_MASK | U_GC_N_MASK | U_GC_M_MASK,
                     kNothing = U_GC_Z_MASK | U_GC_C_MASK;
  const std::u32string letters = internal::nfd(internal::to_utf32(text));
  std::vector<std::string> tokens;
  for (size_t i = 0; i < letters.size();) {
    size_t end = i;
    while (end < letters.size() && (internal::category(letters[end]) & kWord) != 0) ++end;
    if (end == i && (internal::category(letters[i]) & kNothing) != 0) {
      ++i;
      continue;
    }
    end = std::max(end, i + 1);
    tokens.push_back(
        internal::to_utf8(internal::lower(std::u32string_view(letters).substr(i, end - i))));
    i = end;
  }
  return tokens;
}

bool has_answer_tokens(const std::vector<std::string>& passage,
                       const std::vector<std::string>& answers) {
  return std::any_of(answers.begin(), answers.end(), [&](const std::string& answer) {
    const std::vector<std::string> wanted = dpr_tokens(answer);
    return wanted.empty() || std::search(passage.begin(), passage.end(), wanted.begin(),
                                         wanted.end()) != passage.end();
  });
}

bool has_answer(std::string_view passage, const std::vector<std::string>& answers) {
  return has_answer_tokens(dpr_tokens(passage), answers);
}

bool has_answer_regex(std::string_view passage, const std::vector<std::string>& patterns) {
  constexpr int32_t kTimeLimit = 2000;  // ICU's steps, about a millisecond each
  const auto unicode = [](std::u32string_view text) {
    return icu::UnicodeString::fromUTF8(internal::to_utf8(internal::nfd(text)));
  };
  const icu::UnicodeString text = unicode(internal::to_utf32(passage));
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    UErrorCode error = U_ZERO_ERROR;
    icu::RegexMatcher matcher(unicode(internal::to_utf32(pattern)),
                              UREGEX_CASE_INSENSITIVE | UREGEX_MULTILINE, error);
    if (U_FAILURE(error)) return false;
    matcher.setTimeLimit(kTimeLimit, error);
    matcher.reset(text);
    const UBool found = matcher.find(0, error);
    return U_SUCCESS(error) && found;
  });
}

}  // namespace contexture::eval
