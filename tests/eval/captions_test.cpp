#include "eval/captions.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"

namespace contexture::eval {
namespace {

// Sums in double on both sides, in another order.
constexpr double kRounding = 1e-9;

const Json& golden() {
  static const Json json =
      read_json_file(CONTEXTURE_SOURCE_DIR "/tests/golden/caption_scores.json");
  return json;
}

Tokens words(const std::string& text) {
  Tokens out;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) out.push_back(word);
  return out;
}

TEST(Captions, ScoresEqualTheReferences) {
  for (const Json& set : golden()["sets"]) {
    std::vector<CaptionReference> references;
    std::vector<Tokens> said;
    for (const Json& image : set["references"]) {
      references.push_back({std::to_string(references.size()), {}});
      for (const Json& text : image)
        references.back().references.push_back(words(text.get<std::string>()));
    }
    for (const Json& text : set["said"]) said.push_back(words(text.get<std::string>()));
    const ScoreTable table = score_captions(references, said);
    for (size_t i = 0; i < said.size(); ++i) {
      EXPECT_NEAR(table.columns[0].values[i], set["cider_each"][i].get<double>(), kRounding) << i;
      EXPECT_NEAR(table.columns[1].values[i], set["rougel_each"][i].get<double>(), kRounding) << i;
    }
    const auto means = table_means(table, {});
    EXPECT_NEAR(means[0].mean, set["cider"].get<double>(), kRounding);
    EXPECT_NEAR(means[1].mean, set["rougel"].get<double>(), kRounding);
    for (size_t n = 0; n < 4; ++n)
      EXPECT_NEAR(table.totals[n].second, set["bleu"][n].get<double>(), kRounding) << n;
  }
}

TEST(Captions, TokensEqualTheReferenceTokenisers) {
  for (const Json& c : golden()["tokens"]) {
    EXPECT_EQ(caption_tokens(c["text"].get<std::string>()), c["tokens"].get<Tokens>()) << c["text"];
  }
}

TEST(Captions, AnyBytesCanBeTokenised) {
  EXPECT_EQ(caption_tokens(""), Tokens{});
  EXPECT_EQ(caption_tokens(" \n\t"), Tokens{});
  EXPECT_EQ(caption_tokens("'"), Tokens{});
  EXPECT_EQ(caption_tokens("--- ..."), Tokens{});
  EXPECT_EQ(caption_tokens("\xff"
                           "a")
                .size(),
            2U)
      << "a byte that is no UTF-8 is a mark of its own";
}

TEST(Captions, AnImageWithoutReferenceIsRefused) {
  EXPECT_THROW(score_captions({{"7", {}}}, {{"a"}}), UserError);
}

}  // namespace
}  // namespace contexture::eval
