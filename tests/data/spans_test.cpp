// Which spans of a sentence are worth masking.
#include "data/spans.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace contexture::data {
namespace {

std::vector<std::string> texts(const std::string& sentence, const std::vector<TextSpan>& spans) {
  std::vector<std::string> out;
  for (const TextSpan& span : spans)
    out.push_back(sentence.substr(span.begin, span.end - span.begin));
  return out;
}
using Texts = std::vector<std::string>;
Texts salient(const std::string& sentence) { return texts(sentence, salient_spans(sentence)); }

TEST(Spans, WordsKeepWhatJoinsThem) {
  const std::string sentence = "O'Neill's well-known \u00c9cole: 3.5 m, 1,000 (x). No.";
  EXPECT_EQ(texts(sentence, words(sentence)),
            (Texts{"O'Neill's", "well-known", "\u00c9cole", "3.5", "m", "1,000", "x", "No"}));
  EXPECT_TRUE(words("... -- !").empty());
}

TEST(Spans, NamesAreRunsOfCapitalisedWords) {
  EXPECT_EQ(salient("He studied at the University of Oxford and met Ludwig van Beethoven."),
            (Texts{"University of Oxford", "Ludwig van Beethoven"}));
  EXPECT_EQ(salient("the \u00c9cole Normale in \u041c\u043e\u0441\u043a\u0432\u0430"),
            (Texts{"\u00c9cole Normale", "\u041c\u043e\u0441\u043a\u0432\u0430"}));
  EXPECT_EQ(salient("It was Oxford, Cambridge and UNESCO that I saw"),
            (Texts{"Oxford", "Cambridge", "UNESCO"}));
}

TEST(Spans, TheFirstWordCountsOnlyInALongerName) {
  EXPECT_EQ(salient("Sugar is sweet in Cuba."), (Texts{"Cuba"}));
  EXPECT_EQ(salient("Marie Curie was born in Warsaw."), (Texts{"Marie Curie", "Warsaw"}));
  EXPECT_EQ(salient("In Paris it rains."), (Texts{"Paris"}));
  EXPECT_EQ(salient("The Netherlands are flat."), (Texts{"Netherlands"}));
}

TEST(Spans, NumbersTakeTheirMonthsAndYears) {
  EXPECT_EQ(salient("He was born on 12 May 1809 and died on June 3, 1882."),
            (Texts{"12 May 1809", "June 3, 1882"}));
  EXPECT_EQ(salient("In May 1809 there were 1,000 of them, 3.5 m long."),
            (Texts{"May 1809", "1,000", "3.5"}));
  EXPECT_EQ(salient("it may rain, and May follows"), Texts{});
  EXPECT_EQ(salient("from 1809, 1812 and 1815"), (Texts{"1809", "1812", "1815"}));
}

TEST(Spans, WhatStandsTwiceIsNoRiddle) {
  EXPECT_EQ(salient("we met in Rome, for Rome is old, and in 1900"), (Texts{"1900"}));
  EXPECT_EQ(salient("\u6771\u4eac\u306f1868\u5e74"), Texts{}) << "no blanks, so one word";
  EXPECT_EQ(salient(""), Texts{});
}

TEST(Spans, RandomOnesAreOneToTenWordsAndNeverAll) {
  const std::string sentence = "one two three four five six seven eight nine ten eleven twelve";
  std::map<size_t, int> lengths;
  Stream stream(1, "spans");
  for (int i = 0; i < 4000; ++i) {
    const TextSpan span = random_span(sentence, stream).value();
    const std::string text = sentence.substr(span.begin, span.end - span.begin);
    ++lengths[words(text).size()];
  }
  EXPECT_EQ(lengths.begin()->first, 1u);
  EXPECT_EQ(lengths.rbegin()->first, 10u);
  EXPECT_NEAR(lengths[1], 4000 * 0.2,
              4 * 26);  // four standard deviations, sqrt(4000 x 0.2 x 0.8) each
  EXPECT_NEAR(lengths[2], 4000 * 0.16, 4 * 24);
  EXPECT_FALSE(random_span("one", stream));
  std::set<std::string> of_two;
  for (int i = 0; i < 50; ++i) {
    const TextSpan span = random_span("one two", stream).value();
    of_two.insert(std::string("one two").substr(span.begin, span.end - span.begin));
  }
  EXPECT_EQ(of_two, (std::set<std::string>{"one", "two"}));
}

TEST(Spans, SentencesAreCutAtTheirEnds) {
  EXPECT_EQ(sentences("One is. Two? Three 3.5 m"), (Texts{"One is.", "Two?", "Three 3.5 m"}));
  EXPECT_TRUE(sentences("").empty());
}

}  // namespace
}  // namespace contexture::data
