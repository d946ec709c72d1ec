#include "data/wordpiece.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"

namespace contexture::data {
namespace {

namespace fs = std::filesystem;
const fs::path kGolden = fs::path(CONTEXTURE_SOURCE_DIR) / "tests/golden";

const fs::path kMiniLM = CONTEXTURE_MINILM;  // where tools/minilm puts it

const std::string kVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nun\n##able\n##a\n##b\nsep\n[\n]\n,"
    "\ncafe\n\u65e5\n\u672c\ncaf\u00e9\n";

std::string pieces(const WordPiece& tokenizer, std::string_view text, int64_t max_tokens = 64) {
  std::string out;
  for (const int32_t id : tokenizer.encode(text, max_tokens))
    out += (out.empty() ? "" : " ") + tokenizer.token(id);
  return out;
}

void expect_goldens(const WordPiece& tokenizer, const Json& entries, int64_t max_tokens) {
  ASSERT_GT(entries.size(), 10u);
  for (const Json& entry : entries) {
    EXPECT_EQ(tokenizer.encode(entry["text"].get<std::string>(), max_tokens),
              entry["ids"].get<std::vector<int32_t>>())
        << entry["text"];
  }
}

TEST(WordPiece, GivesTheReferencesIdsForTheTinyVocabulary) {
  const Json golden = read_json_file((kGolden / "sentence_encoder.json").string());
  expect_goldens(WordPiece::load(kGolden / "tiny_bert"), golden["tiny"], 48);
}

TEST(WordPiece, GivesTheReferencesIdsForMiniLM) {
  if (!fs::exists(kMiniLM)) GTEST_SKIP() << "run tools/minilm first";
  const Json golden = read_json_file((kGolden / "sentence_encoder.json").string());
  expect_goldens(WordPiece::load(kMiniLM), golden["minilm"], 256);
}

TEST(WordPiece, TakesTheLongestPiecesAndMakesAWholeWordUnknown) {
  const WordPiece tokenizer(kVocabulary, "vocab.txt");
  EXPECT_EQ(pieces(tokenizer, "The unable, UNAB unabc"),
            "[CLS] the un ##able , un ##a ##b [UNK] [SEP]");
  EXPECT_EQ(pieces(tokenizer, ""), "[CLS] [SEP]");
  EXPECT_EQ(pieces(tokenizer, "\u65e5\u672c"), "[CLS] \u65e5 \u672c [SEP]");
  EXPECT_EQ(pieces(tokenizer, "Caf\u00e9"), "[CLS] cafe [SEP]");
  WordPieceOptions cased;
  cased.lower_case = cased.strip_accents = false;
  EXPECT_EQ(pieces(WordPiece(kVocabulary, "vocab.txt", cased), "caf\u00e9 The"),
            "[CLS] caf\u00e9 [UNK] [SEP]");
}

// sentencepiece#102 and its kind: user text must not become a control token.
TEST(WordPiece, AControlTokenInATextIsPlainText) {
  const WordPiece tokenizer(kVocabulary, "vocab.txt");
  EXPECT_EQ(pieces(tokenizer, "the [SEP] the"), "[CLS] the [ sep ] the [SEP]");
}

TEST(WordPiece, CutsLongTextsButKeepsTheEnd) {
  const WordPiece tokenizer(kVocabulary, "vocab.txt");
  EXPECT_EQ(pieces(tokenizer, "the unable the", 4), "[CLS] the un [SEP]");
  EXPECT_EQ(pieces(tokenizer, "the", 2), "[CLS] [SEP]");
  EXPECT_THROW(tokenizer.encode("the", 1), UserError);
  const std::string word(200, 'a');
  EXPECT_EQ(pieces(tokenizer, word + " the"), "[CLS] [UNK] the [SEP]");
}

TEST(WordPiece, DropsBytesThatAreNoUtf8) {
  const WordPiece tokenizer(kVocabulary, "vocab.txt");
  EXPECT_EQ(pieces(tokenizer,
                   "th\xff"
                   "e un\xc3"),
            "[CLS] the un [SEP]");
}

TEST(WordPiece, BadVocabulariesAreRefused) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      WordPiece(text, "vocab.txt");
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal("[UNK]\n[CLS]\n").find("[SEP]"), std::string::npos);
  EXPECT_NE(refusal("[UNK]\n[CLS]\n[SEP]\nthe\nthe\n").find("vocab.txt:5"), std::string::npos);
  EXPECT_THROW(WordPiece::load(kGolden), DataError) << "a folder without vocab.txt";
}

}  // namespace
}  // namespace contexture::data
