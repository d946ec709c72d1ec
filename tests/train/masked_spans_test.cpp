// Masked spans as training examples: what they ask, what may not be read, and that a step's are a
// function of seed and step.
#include "train/masked_spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "core/error.h"
#include "core/files.h"
#include "prepared.h"
#include "tiny_world.h"
#include "train/trainer.h"

namespace contexture::train {
namespace {

RunConfig masking(const TinyWorld& world, const std::string& spans) {
  RunConfig config = world.config("fp64");
  config.data.train = {{"", 0.0, {}, spans}};
  config.data.dev.clear();
  config.data.group_size = 1;
  config.data.query = "text";
  config.retriever.objectives = {{"realm", 1.0}};
  config.retriever.documents = 3;
  return config;
}

TEST(MaskedSpans, SalientOnesAskForNamesAndNumbersOfTheCorpus) {
  const TinyWorld world;
  Prepared made(masking(world, "salient"));
  const retriever::Documents& documents = made.session.documents();
  EXPECT_EQ(made.maker->num_examples(), 8) << "four documents have neither name nor number";
  std::set<std::string> asked;
  for (int64_t s = 0; s < 10; ++s) {
    const PreparedStep step = made.maker->make(s);
    ASSERT_EQ(step.inputs.size(), 8u);
    for (const PreparedInput& input : step.inputs) {
      ASSERT_GE(input.source, 0);
      const data::Document& source = documents.corpus().document(input.source);
      ASSERT_EQ(input.example->answers.size(), 1u);
      const std::string& answer = input.example->answers[0];
      std::string whole = input.example->question;
      whole.replace(whole.find("[MASK]"), 6, answer);
      EXPECT_NE(source.text.find(whole), std::string::npos) << whole;
      EXPECT_TRUE(answer == source.meta["facts"]["capital"][0] ||
                  answer == source.meta["facts"]["code"][0])
          << answer;
      EXPECT_EQ(
          std::count(input.query.tokens.begin(), input.query.tokens.end(), data::Tokenizer::kMask),
          1);
      EXPECT_EQ(std::vector<int32_t>(input.prompt.tokens.begin(), input.prompt.tokens.end() - 1),
                input.query.tokens);
      std::vector<int32_t> target = made.session.tokenizer()->encode(answer);
      target.push_back(data::Tokenizer::kEos);
      EXPECT_EQ(input.target, target);
      EXPECT_TRUE(input.gold.empty());
      asked.insert(answer);
    }
  }
  EXPECT_EQ(asked.size(), 16u) << "both facts of each of eight documents come up in ten visits";
}

TEST(MaskedSpans, TheSourceIsNeverRead) {
  const TinyWorld world;
  RunConfig config = masking(world, "random");
  config.retriever.documents = 11;  // all others
  Prepared made(config);
  EXPECT_EQ(made.maker->num_examples(), 12);
  for (size_t i = 0; i < made.step.inputs.size(); ++i) {
    const std::vector<int64_t>& read = made.lookup.documents[i];
    EXPECT_EQ(read.size(), 11u);
    EXPECT_EQ(std::count(read.begin(), read.end(), made.step.inputs[i].source), 0);
  }
  const StepStats stats = made.forward_backward();
  EXPECT_GT(stats.objectives.at("realm"), 0.0);
  EXPECT_GT(made.session.model().parameters().at("encoder.norm").grad.norm().item<double>(), 0.0);
}

TEST(MaskedSpans, AStepIsAFunctionOfSeedAndStep) {
  const TinyWorld world;
  RunConfig config = masking(world, "random");
  config.data.train.push_back({"train.jsonl", 0.0, {}});
  config.data.query = "both";
  Prepared one(config), two(config);
  config.run.seed = 2;
  config.data.tokenizer = config.run.dir + "/tokenizer.model";
  Prepared other(config);
  const auto questions = [](const PreparedStep& step) {
    std::vector<std::string> out;
    for (const PreparedInput& input : step.inputs)
      out.push_back(input.example->question + "|" + input.example->answers[0]);
    return out;
  };
  std::set<std::vector<std::string>> seen;
  bool masked = false, read = false;
  for (int64_t s = 5; s >= 0; --s) {  // in whatever order
    const auto asked = questions(one.maker->make(s));
    EXPECT_EQ(asked, questions(two.maker->make(s)));
    EXPECT_NE(asked, questions(other.maker->make(s)));
    EXPECT_TRUE(seen.insert(asked).second);
    for (const std::string& question : asked)
      (question.find("[MASK]") != std::string::npos ? masked : read) = true;
  }
  EXPECT_TRUE(masked && read) << "the two sets are mixed";
  // A replica prepares its share alike.
  const PreparedStep whole = one.maker->make(3), half = one.maker->make(3, {1, 2, 1});
  EXPECT_EQ(questions(half), questions(whole));
  EXPECT_EQ(half.inputs[7].query.tokens, whole.inputs[7].query.tokens);
  EXPECT_TRUE(half.inputs[0].query.tokens.empty());
  EXPECT_EQ(half.inputs[0].target, whole.inputs[0].target);
}

TEST(MaskedSpans, LongSentencesAreCutAroundTheMask) {
  const TinyWorld world;
  RunConfig config = masking(world, "random");
  config.data.max_question_tokens = 5;
  Prepared made(config);
  const MaskedSpans spans("random", made.session.config(), *made.session.tokenizer(),
                          made.session.documents(), {});
  for (uint64_t i = 0; i < 60; ++i) {
    Stream stream(1, "cut", i);
    const MaskedSpans::Masked masked = spans.draw(8 + static_cast<int64_t>(i % 4), stream);
    const std::string& question = masked.example.question;
    const size_t at = question.find("[MASK]");
    const auto left = made.session.tokenizer()->encode(question.substr(0, at)),
               right = made.session.tokenizer()->encode(question.substr(at + 6));
    const auto mask = std::find(masked.pieces.begin(), masked.pieces.end(), data::Tokenizer::kMask);
    ASSERT_NE(mask, masked.pieces.end());
    const auto before = static_cast<size_t>(mask - masked.pieces.begin()),
               after = masked.pieces.size() - before - 1;
    EXPECT_EQ(masked.pieces.size(), std::min<size_t>(5, left.size() + right.size() + 1));
    EXPECT_EQ(before,
              std::min(left.size(), std::max<size_t>(2, 4 - std::min<size_t>(4, right.size()))));
    EXPECT_TRUE(
        std::equal(masked.pieces.begin(), mask, left.end() - static_cast<std::ptrdiff_t>(before)))
        << question;
    EXPECT_TRUE(std::equal(mask + 1, masked.pieces.end(), right.begin())) << question;
    EXPECT_LE(after, right.size());
  }
}

TEST(MaskedSpans, HeldOutDocumentsAskNothing) {
  const TinyWorld world;
  Prepared made(masking(world, "salient"));
  std::set<int64_t> held_out{0, 1, 2};
  const MaskedSpans some("salient", made.session.config(), *made.session.tokenizer(),
                         made.session.documents(), held_out);
  EXPECT_EQ(some.set().examples.size(), 5u);
  EXPECT_EQ(some.set().examples[0].id, "place:3");
  for (int64_t row = 3; row < 12; ++row) held_out.insert(row);
  EXPECT_THROW(MaskedSpans("salient", made.session.config(), *made.session.tokenizer(),
                           made.session.documents(), held_out),
               UsageError);
}

TEST(MaskedSpans, SettingsThatDoNotFitAreRefused) {
  const TinyWorld world;
  RunConfig config = masking(world, "named");
  EXPECT_THROW(config.validate(), UsageError);
  config.data.train = {{"train.jsonl", 0.0, {}, "salient"}};
  EXPECT_THROW(config.validate(), UsageError);
  config.data.train = {{}};
  EXPECT_THROW(config.validate(), UsageError);
}

TEST(MaskedSpans, APublishedEncoderReadsTheMaskAsTextAndLearnsFromTheReader) {
  const TinyWorld world;
  RunConfig config = with_tiny_bert(masking(world, "salient"));
  config.train.batch_size = 4;
  Prepared made(config, 1);
  Session& session = made.session;
  AdamW optimizer(session.config().optimizer, session.engine());
  session.start_weights(optimizer);
  const retriever::TextReader reader(config.model.text_encoder, *session.config().model.text);
  for (const PreparedInput& input : made.step.inputs) {
    EXPECT_NE(input.example->question.find("[MASK]"), std::string::npos);
    EXPECT_EQ(input.query.words, reader.read(input.example->question));
    EXPECT_EQ(
        std::count(input.prompt.tokens.begin(), input.prompt.tokens.end(), data::Tokenizer::kMask),
        1);
  }
  const auto total = [&] { return made.forward_backward().loss; };
  total();
  std::map<std::string, at::Tensor> grads;
  double norm = 0.0;
  for (const auto& p : session.model().parameters().all()) {
    if (!p->grad.defined() || p->name.rfind("retriever.", 0) != 0) continue;
    grads[p->name] = p->grad.clone();
    norm += p->grad.norm().item<double>();
  }
  EXPECT_FALSE(grads.empty());
  EXPECT_GT(norm, 1e-6);
  expect_differences(session, grads, total);
}

// Runs with the corpus's own encoder and with a published one.
class MaskedRun : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Encoders, MaskedRun, testing::Bool(),
                         [](const auto& info) { return info.param ? "published" : "own"; });

TEST_P(MaskedRun, GoesOnWithTheSameBits) {
  const TinyWorld world;
  RunConfig config = masking(world, "salient");
  if (GetParam()) config = with_tiny_bert(config);
  config.train.steps = 6;
  config.checkpoint.every = 3;
  const auto losses = [](const RunConfig& c) {
    std::vector<double> out;
    std::istringstream lines(read_file(c.run.dir + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const Json record = Json::parse(line);
      if (record.contains("loss")) out.push_back(record["loss"].get<double>());
    }
    return out;
  };
  Trainer(config, false).run();
  RunConfig broken = config;
  broken.run.dir += "-broken";
  broken.data.tokenizer = config.run.dir + "/tokenizer.model";
  broken.train.stop_at = 3;
  Trainer(broken, false).run();
  broken.train.stop_at = 0;
  Trainer(broken, true).run();
  EXPECT_EQ(losses(broken), losses(config));
  EXPECT_EQ(losses(config).size(), 6u);
}

}  // namespace
}  // namespace contexture::train
