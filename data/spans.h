// Spans of a sentence to mask: what can only be filled in by knowing something (REALM's salient
// spans, arXiv:2002.08909, found there by a tagger, here by rules), or any run of words
// (SpanBERT's, arXiv:1907.10529). Offsets are bytes of valid UTF-8; thread-safe.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/rng.h"

namespace contexture::data {

struct TextSpan {
  size_t begin = 0, end = 0;
  bool operator==(const TextSpan&) const = default;
};

// Runs of letters, digits and marks, with what joins them inside: "O'Neill", "well-known", "3.5",
// "1,000".
std::vector<TextSpan> words(std::string_view text);

// In order, none over another: numbers, with the day, month or year beside them ("12 May 1809"),
// and names, runs of capitalised words ("University of Oxford"). A sentence's first word counts
// only as part of a longer name, and not if it is an English function word. Months and function
// words are English; scripts without capitals have numbers only. A span whose text stands in the
// sentence twice is left out: the other one would tell.
std::vector<TextSpan> salient_spans(std::string_view sentence);

// One to ten words, short ones more often (geometric, 0.2), at any place; not the whole sentence.
// Nothing where there are fewer than two words.
std::optional<TextSpan> random_span(std::string_view sentence, Stream& stream);

// A text's sentences: cut after '.', '!' or '?' before a blank.
std::vector<std::string> sentences(const std::string& text);

}  // namespace contexture::data
