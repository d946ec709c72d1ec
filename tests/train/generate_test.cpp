// Decoding with a key-value cache says what the whole forward pass says.
#include "eval/generate.h"

#include <gtest/gtest.h>

#include "prepared.h"
#include "tiny_world.h"

namespace contexture::train {
namespace {

struct Made : Prepared {
  explicit Made(const RunConfig& config) : Prepared(config) {
    batch = assembled().batches[0];
    batch.inputs[1].documents.clear();  // closed book
    batch.inputs[2].documents.resize(1);
  }
  model::Microbatch batch;
};

class Generate : public testing::TestWithParam<const char*> {};

TEST_P(Generate, TheCacheGivesTheLogProbabilityOfTheWholeForwardPass) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.model.fusion = GetParam();
  Made made(config);
  eval::GenerateOptions options;
  options.max_new_tokens = 6;
  const auto generated = eval::generate(made.session.model(), made.batch, options);
  model::Microbatch forced = made.batch;
  for (size_t i = 0; i < forced.inputs.size(); ++i) {
    forced.inputs[i].target.assign(generated[i].tokens.begin(), generated[i].tokens.end());
    if (generated[i].tokens.size() < 6) forced.inputs[i].target.push_back(data::Tokenizer::kEos);
  }
  const parallel::Feeds feeds = model::make_feeds(config.model, forced, at::kDouble, at::kCPU);
  const parallel::Pass pass(feeds);
  const parallel::Executor executor(made.session.model().blocks());
  const at::Tensor log_prob = executor.forward(pass, false).wire("target.log_prob");
  int64_t row = 0;
  for (size_t i = 0; i < forced.inputs.size(); ++i) {
    double sum = 0.0;
    for (size_t t = 0; t < forced.inputs[i].target.size(); ++t) sum += log_prob[row++].item<double>();
    EXPECT_NEAR(generated[i].log_prob, sum, 1e-5 * (1 + std::abs(sum))) << i;  // the decoder picks from fp32 copies of the log-probabilities
  }
}

TEST_P(Generate, AnInputsAnswerDoesNotDependOnTheOthers) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.model.fusion = GetParam();
  Made made(config);
  const auto together = eval::generate(made.session.model(), made.batch, {});
  for (size_t i = 0; i < made.batch.inputs.size(); ++i) {
    model::Microbatch alone = made.batch;
    alone.inputs = {made.batch.inputs[i]};
    const auto one = eval::generate(made.session.model(), alone, {});
    EXPECT_EQ(one[0].tokens, together[i].tokens);
    EXPECT_EQ(one[0].document_prob.size(), made.batch.inputs[i].documents.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Generate, testing::Values("memory", "fid", "prefix"));

TEST(Generate, CachedDocumentsGiveTheSameAnswersAndAreEncodedOnce) {
  const TinyWorld world;
  Made made(world.config("fp64"));
  eval::DocumentCache cache;
  const auto fresh = eval::generate(made.session.model(), made.batch, {});
  for (int round = 0; round < 2; ++round) {
    const auto cached = eval::generate(made.session.model(), made.batch, {}, &cache);
    for (size_t i = 0; i < fresh.size(); ++i) {
      EXPECT_EQ(cached[i].tokens, fresh[i].tokens);
      EXPECT_NEAR(cached[i].log_prob, fresh[i].log_prob, 1e-6);  // fp32 log-probabilities
    }
  }
  EXPECT_EQ(cache.misses, static_cast<int64_t>(made.batch.documents.size()));
  EXPECT_EQ(cache.hits, cache.misses);
}

TEST(Generate, AttentionSharesOfAnAnswerAreSharesAndSourcesAreNamed) {
  const TinyWorld world;
  Made made(world.config("fp32"));
  for (const auto& g : eval::generate(made.session.model(), made.batch, {})) {
    double share = 0.0, probability = 0.0;
    for (const double s : g.document_share) share += s;
    for (const double p : g.document_prob) probability += p;
    EXPECT_LE(share, 1.0 + 1e-5);  // the null key takes the rest; fp32 sums
    EXPECT_NEAR(probability, g.document_prob.empty() ? 0.0 : 1.0, 1e-5);  // a softmax in fp32
  }
}

}  // namespace
}  // namespace contexture::train
