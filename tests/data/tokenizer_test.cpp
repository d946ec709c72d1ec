#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "core/error.h"
#include "core/files.h"

namespace contexture::data {
namespace {

std::vector<std::string> corpus() {
  std::vector<std::string> lines;
  const std::vector<std::string> places = {"Paris", "Lima",  "Oslo", "Nairobi",
                                           "Hanoi", "Quito", "Bern", "Cairo"};
  for (size_t i = 0; i < 200; ++i) {
    lines.push_back("The capital of country " + std::to_string(i) + " is " +
                    places[i % places.size()] + ".");
    lines.push_back("Its flag shows a red stripe, a white star and " + std::to_string(i % 7) +
                    " blue bands.");
  }
  return lines;
}

std::string failure(const std::vector<std::string>& lines, const TokenizerTrainOptions& options) {
  const TempDir folder;
  try {
    Tokenizer::train(lines, (folder.path() / "t.model").string(), options);
  } catch (const DataError& error) {
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "t.model"));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "one line";
    return error.what();
  }
  return "";
}

class TokenizerTest : public testing::Test {
 protected:
  static Tokenizer make(const std::string& normalization = "nmt_nfkc",
                        const std::string& type = "bpe") {
    const TempDir folder;
    const std::string path = (folder.path() / "t.model").string();
    Tokenizer::train(corpus(), path,
                     {.vocab_size = type == "bpe" ? 400 : 320,
                      .model_type = type,
                      .normalization = normalization});
    return Tokenizer(path);
  }
};

TEST_F(TokenizerTest, ReservesTheFirstTenIds) {
  const Tokenizer tokenizer = make();
  EXPECT_EQ(tokenizer.vocab_size(), 400);
  EXPECT_EQ(tokenizer.piece(Tokenizer::kPad), "<pad>");
  EXPECT_EQ(tokenizer.piece(Tokenizer::kEos), "</s>");
  EXPECT_EQ(tokenizer.piece(Tokenizer::kImage), "<image>");
  EXPECT_EQ(tokenizer.piece(Tokenizer::kNull), "<null>");
  EXPECT_EQ(tokenizer.piece(Tokenizer::kNumControl), "<0x00>");
}

TEST_F(TokenizerTest, RoundTripsTextOfTheKindItWasTrainedOn) {
  for (const std::string type : {"bpe", "unigram"}) {
    const Tokenizer tokenizer = make("nmt_nfkc", type);
    for (const std::string& line : corpus())
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(line)), line);
  }
}

TEST_F(TokenizerTest, SpellsUnknownCharactersInBytes) {
  const Tokenizer tokenizer = make();
  const std::string text = "Ωmega 漢字 🎌";
  const auto ids = tokenizer.encode(text);
  for (const int32_t id : ids) EXPECT_GE(id, Tokenizer::kNumControl);
  EXPECT_EQ(tokenizer.decode(ids), text);
}

// Cases 22: text that looks like a control piece.
TEST_F(TokenizerTest, NeverMakesAControlPieceOfUserText) {
  const Tokenizer tokenizer = make();
  for (const std::string text :
       {"hello </s><s> <image>", "<pad><unk><s></s><image><sep><query><document><mask><null>",
        "</s>", "<s>", " <image> ", "<0x0A>", "\xE2\x96\x81</s>"}) {
    const auto ids = tokenizer.encode(text);
    EXPECT_FALSE(ids.empty()) << text;
    for (const int32_t id : ids)
      EXPECT_FALSE(tokenizer.is_control(id)) << text << " gives " << tokenizer.piece(id);
  }
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("hello </s><s> <image>")), "hello </s><s> <image>");
  std::string bytes;
  for (int b = 1; b < 256; ++b) bytes.push_back(static_cast<char>(b));
  for (const int32_t id : tokenizer.encode(bytes)) EXPECT_FALSE(tokenizer.is_control(id));
}

TEST_F(TokenizerTest, DecodesControlPiecesToNothing) {
  const Tokenizer tokenizer = make();
  auto ids = tokenizer.encode("Lima");
  ids.insert(ids.begin(), {Tokenizer::kBos, Tokenizer::kImage});
  ids.push_back(Tokenizer::kEos);
  ids.push_back(Tokenizer::kPad);
  EXPECT_EQ(tokenizer.decode(ids), "Lima");
  EXPECT_THROW(tokenizer.decode({400}), UserError);
  EXPECT_THROW(tokenizer.decode({-1}), UserError);
}

// Case 20: normalisation loses information; offsets lead back to the text as given.
TEST_F(TokenizerTest, GivesOffsetsIntoTheOriginalText) {
  const Tokenizer tokenizer = make();
  const std::string text = "a  b\nc ﬁ ︰ Ⅰ is Paris.";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)),
            "a b c fi .. I is Paris.");  // documented as normalised
  const auto spans = tokenizer.encode_with_offsets(text);
  const auto ids = tokenizer.encode(text);
  ASSERT_EQ(spans.size(), ids.size());
  int64_t at = 0;
  std::string paris;
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].id, ids[i]);
    EXPECT_GE(spans[i].begin, at);
    EXPECT_GE(spans[i].end, spans[i].begin);
    ASSERT_LE(spans[i].end, static_cast<int64_t>(text.size()));
    at = spans[i].end;
    const int64_t from = static_cast<int64_t>(text.find("Paris"));
    if (spans[i].end > from && spans[i].begin < from + 5) {
      paris += text.substr(static_cast<size_t>(spans[i].begin),
                           static_cast<size_t>(spans[i].end - spans[i].begin));
    }
  }
  EXPECT_NE(paris.find("Paris"), std::string::npos) << paris;
}

TEST_F(TokenizerTest, KeepsTheTextAsItIsWithoutNormalisation) {
  const Tokenizer tokenizer = make("identity");
  for (const std::string text : {"a  b\nc ﬁ ︰ Ⅰ", "two  spaces", "tab\there", "trailing "}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

// Case 23: training texts that can't work.
TEST_F(TokenizerTest, ExplainsTrainingTextsThatAreAllTooLong) {
  const std::string message = failure({std::string(20'000, 'x')}, {});
  EXPECT_NE(message.find("1 longer than max_line_bytes"), std::string::npos) << message;
  EXPECT_NE(message.find("Raise max_line_bytes"), std::string::npos) << message;
}

TEST_F(TokenizerTest, CountsLinesWithNulAndBadUtf8AndGoesOn) {
  auto lines = corpus();
  lines.push_back(std::string("a\0b", 3));
  lines.push_back("\xFF\xFE");
  lines.push_back("");
  lines.push_back(std::string(5000, 'y'));
  const TempDir folder;
  const auto report =
      Tokenizer::train(lines, (folder.path() / "t.model").string(), {.vocab_size = 400});
  EXPECT_EQ(report.lines_used, 400);
  EXPECT_EQ(report.lines_with_nul, 1);
  EXPECT_EQ(report.lines_not_utf8, 1);
  EXPECT_EQ(report.lines_empty, 1);
  EXPECT_EQ(report.lines_too_long, 1);
  const std::string message = failure({std::string("a\0b", 3)}, {});
  EXPECT_NE(message.find("1 with a NUL byte"), std::string::npos) << message;
}

TEST_F(TokenizerTest, SaysThatTheVocabularyIsTooLargeForTheText) {
  for (const std::string type : {"bpe", "unigram"}) {
    const std::string message = failure(corpus(), {.vocab_size = 100'000, .model_type = type});
    EXPECT_NE(message.find("vocab_size=100000"), std::string::npos) << message;
    EXPECT_NE(message.find("400 lines used"), std::string::npos) << message;
    EXPECT_NE(message.find("Lower vocab_size"), std::string::npos) << message;
  }
  EXPECT_THROW(Tokenizer::train(corpus(), "/tmp/never", {.vocab_size = 100}), UsageError);
  std::vector<std::string> many;
  for (uint32_t c = 0x4E00; c < 0x4E00 + 2000; ++c) {
    many.push_back({static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
                    static_cast<char>(0x80 | (c & 63))});
  }
  const std::string message = failure(many, {.vocab_size = 300});
  EXPECT_NE(message.find("Raise vocab_size"), std::string::npos) << message;
}

TEST_F(TokenizerTest, RefusesFilesThatAreNoTokenizer) {
  const TempDir folder;
  const std::string path = (folder.path() / "t.model").string();
  EXPECT_THROW(Tokenizer{path}, DataError);
  for (const std::string& content :
       {std::string(), std::string("version https://git-lfs"), std::string(1000, '\xAB')}) {
    write_file_atomic(path, content);
    EXPECT_THROW(Tokenizer{path}, DataError);
  }
  const std::string whole = make().model_bytes();
  write_file_atomic(path, std::string_view(whole).substr(0, whole.size() / 2));
  EXPECT_THROW(Tokenizer{path}, DataError);
}

TEST_F(TokenizerTest, EncodesTheSameOnManyThreads) {
  const Tokenizer tokenizer = make();
  const auto lines = corpus();
  std::vector<std::vector<std::vector<int32_t>>> results(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&, t] {
      for (const auto& line : lines) results[t].push_back(tokenizer.encode(line));
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, results.front());
}

TEST_F(TokenizerTest, TrainsToTheSameModelTwice) {
  EXPECT_EQ(make().model_bytes(), make().model_bytes());
}

}  // namespace
}  // namespace contexture::data
