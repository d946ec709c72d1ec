#include "retriever/corpus.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files.h"
#include "vectors.h"

namespace contexture::retriever {
namespace {

using testing::contains;
using testing::message_of;

data::Document document(const std::string& id, const std::string& title, const std::string& text) {
  data::Document made;
  made.id = id;
  made.title = title;
  made.text = text;
  return made;
}

Corpus capitals() {
  data::Corpus documents;
  documents.documents = {document("fr", "France", "The capital is Paris."),
                         document("9007199254740993", "Big", "An id beyond 2^53."),
                         document("07", "Seven", "A leading zero.")};
  return Corpus(std::move(documents));
}

TEST(Corpus, GivesRowsInReadingOrderAndKeepsIdsExactly) {
  const Corpus corpus = capitals();
  EXPECT_EQ(corpus.size(), 3);
  EXPECT_EQ(corpus.ids(), (std::vector<std::string>{"fr", "9007199254740993", "07"}));
  EXPECT_EQ(corpus.row_of("9007199254740993"), 1);
  EXPECT_EQ(corpus.find("9007199254740992"), std::nullopt);
  EXPECT_EQ(corpus.find("7"), std::nullopt);
  EXPECT_EQ(corpus.document(2).title, "Seven");
}

TEST(Corpus, RefusesARepeatedIdByName) {
  data::Corpus documents;
  documents.documents = {document("fr", "A", ""), document("de", "B", ""), document("fr", "C", "")};
  EXPECT_TRUE(contains(message_of<DataError>([&] { Corpus(std::move(documents)); }),
                       "'fr': number 0 and number 2"));
  Corpus corpus = capitals();
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { corpus.add(document("07", "X", "")); }), "'07'"));
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { corpus.add(document("", "X", "")); }), "empty id"));
  EXPECT_EQ(corpus.size(), 3);
}

TEST(Corpus, SuggestsTheNearestIdForAnUnknownOne) {
  EXPECT_TRUE(contains(message_of<DataError>([] { capitals().row_of("9007199254740994"); }),
                       "Did you mean '9007199254740993'?"));
}

TEST(Corpus, AddsADocumentAtTheEnd) {
  Corpus corpus = capitals();
  EXPECT_EQ(corpus.add(document("de", "Germany", "The capital is Berlin.")), 3);
  EXPECT_EQ(corpus.row_of("de"), 3);
  EXPECT_EQ(corpus.document(3).text, "The capital is Berlin.");
}

TEST(Corpus, AnEditCanBeTakenBack) {
  Corpus corpus = capitals();
  data::Document former = corpus.edit(0, document("fr", "France", "The capital is Lyon."));
  EXPECT_EQ(corpus.document(0).text, "The capital is Lyon.");
  EXPECT_EQ(former.text, "The capital is Paris.");
  corpus.edit(0, std::move(former));
  EXPECT_EQ(corpus.document(0).text, "The capital is Paris.");
  EXPECT_TRUE(contains(message_of<DataError>([&] { corpus.edit(0, document("it", "", "")); }),
                       "'fr' came with the id 'it'"));
}

TEST(Corpus, LoadsJsonLinesWithPictures) {
  const TempDir folder;
  write_file_atomic(folder.path() / "flag.png", std::string_view("not really a picture"));
  write_file_atomic(
      folder.path() / "corpus.jsonl",
      std::string_view(
          R"({"id":"fr","title":"France","text":"Paris","image":"flag.png","kind":"country"}
{"id":"de","title":"Germany","text":"Berlin"}
)"));
  data::BadRecords bad;
  const Corpus corpus = Corpus::load((folder.path() / "corpus.jsonl").string(), bad);
  ASSERT_EQ(corpus.size(), 2);
  EXPECT_EQ(corpus.document(0).meta.at("kind"), "country");
  EXPECT_EQ(corpus.image(0).size(), 20u);
  EXPECT_TRUE(corpus.image(1).empty());
}

}  // namespace
}  // namespace contexture::retriever
