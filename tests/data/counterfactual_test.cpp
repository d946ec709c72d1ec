#include "data/counterfactual.h"

#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "core/files.h"

namespace contexture::data {
namespace {

Document country(const std::string& id, const std::string& capital, const std::string& currency) {
  Document d;
  d.id = id;
  d.title = id;
  d.text = "The capital of " + id + " is " + capital + ". People in " + capital + " pay with the " +
           currency + ". It is not " + capital + "ville.";
  d.meta["facts"] = {{"capital", {capital}}, {"currency", {currency}}};
  return d;
}

Example question(const std::string& type, std::vector<std::string> answers,
                 const std::string& document) {
  Example e;
  e.id = type + document;
  e.type = type;
  e.answers = std::move(answers);
  e.documents = {document};
  return e;
}

struct World {
  std::vector<Document> documents = {
      country("France", "Paris", "euro"), country("Peru", "Lima", "sol"),
      country("Kenya", "Nairobi", "shilling"), country("Norway", "Oslo", "krone")};
  std::vector<const Document*> training() const {
    std::vector<const Document*> all;
    for (const Document& d : documents) all.push_back(&d);
    return all;
  }
};

TEST(ReplaceWords, ReplacesWholeWordsLongestFirstAndOnce) {
  EXPECT_EQ(replace_words("Congo, Congo River, Congolese",
                          {{"", "Congo", "Chad"}, {"", "Congo River", "Nile"}}),
            "Chad, Nile, Congolese");
  EXPECT_EQ(replace_words("a b", {{"", "a", "b"}, {"", "b", "a"}}), "b a");
  EXPECT_EQ(replace_words("x.fr and www.fr", {{"", ".fr", ".zz"}}), "x.zz and www.zz");
  EXPECT_EQ(replace_words("1.33, 33,000 and 33.", {{"", "33", "44"}}), "1.33, 33,000 and 44.");
  EXPECT_EQ(replace_words("São Tomé, Tomés, (Tomé)", {{"", "Tomé", "X"}}), "São X, Tomés, (X)");
  EXPECT_EQ(replace_words("éParis Paris", {{"", "Paris", "Rome"}}), "éParis Rome");
  EXPECT_EQ(replace_words("", {{"", "a", "b"}}), "");
  EXPECT_EQ(replace_words("abc", {{"", "", "b"}}), "abc");
}

TEST(CounterfactualTest, SwapsTextAndAnswersAlike) {
  const World world;
  const Counterfactual swapper({.probability = 1.0, .random_share = 0.0}, world.training(), {},
                               nullptr);
  const Example capital = question("capital", {"Paris"}, "France");
  for (int64_t step = 0; step < 20; ++step) {
    const EditedDocument edited = swapper.edit(world.documents[0], {&capital}, step);
    ASSERT_EQ(edited.swaps.size(), 2U);
    EXPECT_FALSE(contains_words(edited.text, "Paris"));
    EXPECT_TRUE(edited.text.find("Parisville") != std::string::npos);  // another word
    const auto answers = swapper.answers(capital, edited);
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_NE(answers[0], "Paris");
    EXPECT_TRUE(contains_words(edited.text, answers[0]));
    EXPECT_TRUE((std::set<std::string>{"Lima", "Nairobi", "Oslo"}).contains(answers[0]));
  }
}

TEST(CounterfactualTest, GivesExamplesOfAStepTheSameDocumentInAnyOrder) {
  const World world;
  const Counterfactual swapper({.probability = 0.5, .random_share = 0.5, .seed = 4},
                               world.training(), {}, nullptr);
  const Example a = question("capital", {"Paris"}, "France"),
                b = question("currency", {"euro", "people"}, "France");
  std::set<std::string> texts;
  for (int64_t step = 0; step < 30; ++step) {
    const auto one = swapper.edit(world.documents[0], {&a, &b}, step);
    EXPECT_EQ(one.text, swapper.edit(world.documents[0], {&b, &a}, step).text);
    EXPECT_EQ(one.text, swapper.edit(world.documents[0], {&b, &a, &a}, step).text);
    texts.insert(one.text);
  }
  EXPECT_GT(texts.size(), 8U);  // steps differ
}

TEST(CounterfactualTest, KeepsEverythingAtProbabilityZero) {
  const World world;
  const Counterfactual swapper({}, world.training(), {}, nullptr);
  const Example a = question("capital", {"Paris", "City of Light"}, "France");
  const auto edited = swapper.edit(world.documents[0], {&a}, 1);
  EXPECT_EQ(edited.text, world.documents[0].text);
  EXPECT_EQ(swapper.answers(a, edited), a.answers);
}

TEST(CounterfactualTest, NeverKeepsAnAnswerThatTheEditMadeUntrue) {
  const World world;
  const Counterfactual swapper({.probability = 1.0}, world.training(), {}, nullptr);
  // "City of Light" stands nowhere in the text: it was an alias of Paris. "EURO" is the swapped
  // value in capitals.
  const Example capital = question("capital", {"Paris", "City of Light"}, "France");
  const Example money = question("currency", {"EURO"}, "France");
  const Example alias_only = question("capital", {"City of Light"}, "France");
  for (int64_t step = 0; step < 20; ++step) {
    const auto edited = swapper.edit(world.documents[0], {&capital, &money, &alias_only}, step);
    for (const Example* example : {&capital, &money, &alias_only}) {
      const auto answers = swapper.answers(*example, edited);
      ASSERT_FALSE(answers.empty());
      for (const auto& answer : answers) EXPECT_TRUE(contains_words(edited.text, answer)) << answer;
    }
  }
}

TEST(CounterfactualTest, WorksWithoutFactsFromTheAnswersAlone) {
  World world;
  for (Document& d : world.documents) d.meta = Json::object();
  const std::vector<Example> examples = {question("capital", {"Paris"}, "France"),
                                         question("capital", {"Lima"}, "Peru"),
                                         question("capital", {"Oslo"}, "Norway")};
  const Counterfactual swapper({.probability = 1.0, .random_share = 0.0}, world.training(),
                               examples, nullptr);
  EXPECT_EQ(swapper.pool_size("capital"), 3);
  const auto edited = swapper.edit(world.documents[0], {&examples[0]}, 3);
  ASSERT_EQ(edited.swaps.size(), 1U);
  EXPECT_EQ(swapper.answers(examples[0], edited), (std::vector<std::string>{edited.swaps[0].to}));
}

TEST(CounterfactualTest, TakesValuesFromTrainingDocumentsOnly) {
  const World world;
  const Counterfactual swapper({.probability = 1.0, .random_share = 0.0},
                               {&world.documents[0], &world.documents[1]}, {}, nullptr);
  for (int64_t step = 0; step < 50; ++step) {
    for (const Swap& swap : swapper.edit(world.documents[0], {}, step).swaps) {
      EXPECT_TRUE(swap.to == "Lima" || swap.to == "sol") << swap.to;
    }
  }
}

TEST(CounterfactualTest, MakesRandomValuesOfTokenizerPieces) {
  const TempDir folder;
  std::vector<std::string> lines;
  for (int i = 0; i < 300; ++i)
    lines.push_back("The capital number " + std::to_string(i) + " pays with shells and coins.");
  const std::string path = (folder.path() / "t.model").string();
  Tokenizer::train(lines, path, {.vocab_size = 350});
  const World world;
  const Counterfactual swapper({.probability = 1.0, .random_share = 1.0}, world.training(), {},
                               std::make_shared<Tokenizer>(path));
  std::set<std::string> values;
  const Example capital = question("capital", {"Paris"}, "France");
  for (int64_t step = 0; step < 40; ++step) {
    const auto edited = swapper.edit(world.documents[0], {&capital}, step);
    const auto answers = swapper.answers(capital, edited);
    for (const auto& answer : answers) {
      EXPECT_TRUE(contains_words(edited.text, answer)) << answer;
      values.insert(answer);
    }
  }
  EXPECT_GT(values.size(), 30U);
}

TEST(CounterfactualConfigTest, RefusesNonsense) {
  EXPECT_THROW(Counterfactual({.probability = 2.0}, {}, {}, nullptr), UsageError);
  EXPECT_THROW(Counterfactual({.max_random_pieces = 0}, {}, {}, nullptr), UsageError);
}

}  // namespace
}  // namespace contexture::data
