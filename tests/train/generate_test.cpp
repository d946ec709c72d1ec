// Decoding with a key-value cache says what the whole forward pass says.
#include "eval/generate.h"

#include <gtest/gtest.h>

#include <map>

#include "core/error.h"
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
    for (size_t t = 0; t < forced.inputs[i].target.size(); ++t)
      sum += log_prob[row++].item<double>();
    EXPECT_NEAR(generated[i].log_prob, sum, 1e-5 * (1 + std::abs(sum)))
        << i;  // the decoder picks from fp32 copies of the log-probabilities
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

// A model of twelve tokens, so that every answer of at most two can be tried.
struct Dozen {
  Dozen() {
    config.vocab = 12;
    config.width = 16;
    config.heads = 2;
    config.kv_heads = 1;
    config.head_width = 8;
    config.ffn_width = 24;
    config.pooling = "mean";
    config.embedding_width = 16;
    config.copy_width = 8;
    config.score_temperature = 0.5;
    config.init_std = 0.7;  // far from uniform
    model = std::make_unique<model::Model>(config);
    model->materialise(at::kDouble, at::kCPU, 3);
    batch.documents = {
        {{5, 6, 7, 3}, nullptr, 1}, {{8, 9, 10}, nullptr, 2}, {{11, 5, 9}, nullptr, 3}};
    batch.inputs = {{{{4, 5}, nullptr, 4}, {{6, 2}, nullptr, 5}, {}, {0, 1, 2}}};
  }

  // log p(answer | each reading's documents), [readings], for every answer that two tokens can
  // write: ended (the end piece is its last token) or cut off.
  std::map<std::vector<int32_t>, std::vector<double>> all(bool single) const {
    std::map<std::vector<int32_t>, std::vector<double>> out;
    std::vector<std::vector<int32_t>> answers{{data::Tokenizer::kEos}};
    for (int32_t a = 0; a < 12; ++a) {
      for (int32_t b = 0; b < 12; ++b) {
        if (a != data::Tokenizer::kEos) answers.push_back({a, b});
      }
    }
    model::Microbatch one = batch;
    one.readings.joint = !single;
    one.readings.single = single;
    const int64_t readings = single ? 3 : 1;
    for (const std::vector<int32_t>& answer : answers) {
      one.inputs[0].target = answer;
      const parallel::Feeds feeds = model::make_feeds(config, one, at::kDouble, at::kCPU);
      const parallel::Pass pass(feeds);
      const at::Tensor sum = parallel::Executor(model->blocks())
                                 .forward(pass, false)
                                 .wire("target.log_prob")
                                 .view({readings, -1})
                                 .sum(1);
      out[answer].assign(sum.data_ptr<double>(), sum.data_ptr<double>() + readings);
    }
    return out;
  }
  static std::vector<int32_t> without_end(std::vector<int32_t> answer) {
    if (answer.back() == data::Tokenizer::kEos) answer.pop_back();
    return answer;
  }

  model::ModelConfig config;
  std::unique_ptr<model::Model> model;
  model::Microbatch batch;
};

TEST(Generate, AWideBeamFindsTheLikeliestAnswerAndScoresItAsTheForwardPassDoes) {
  const Dozen dozen;
  double best = -1e300, total = 0.0;
  std::vector<int32_t> likeliest;
  for (const auto& [answer, log_prob] : dozen.all(/*single=*/false)) {
    total += std::exp(log_prob[0]);
    if (log_prob[0] <= best) continue;
    best = log_prob[0];
    likeliest = Dozen::without_end(answer);
  }
  EXPECT_NEAR(total, 1.0, 1e-9);  // these are all the answers there are
  eval::GenerateOptions options;
  options.max_new_tokens = 2;
  const double greedy = eval::generate(*dozen.model, dozen.batch, options)[0].log_prob;
  options.beams = 12;
  const eval::Generated found = eval::generate(*dozen.model, dozen.batch, options)[0];
  EXPECT_EQ(found.tokens, likeliest);
  EXPECT_NEAR(found.log_prob, best, 1e-9);  // fp64 sums in another order
  EXPECT_GE(found.log_prob, greedy - 1e-9);
}

TEST(Generate, RagSequenceMaximisesTheMixtureOfWholeAnswers) {
  const Dozen dozen;
  eval::GenerateOptions options;
  options.max_new_tokens = 2;
  options.decoder = "rag_sequence";
  options.beams = 12;
  const eval::Generated found = eval::generate(*dozen.model, dozen.batch, options)[0];
  const std::vector<double>& prior = found.document_prob;
  ASSERT_EQ(prior.size(), 3U);
  double best = -1e300;
  std::vector<int32_t> likeliest;
  std::vector<double> posterior(3);
  for (const auto& [answer, log_prob] : dozen.all(/*single=*/true)) {
    double sum = 0.0;
    for (size_t k = 0; k < 3; ++k) sum += prior[k] * std::exp(log_prob[k]);
    if (std::log(sum) <= best) continue;
    best = std::log(sum);
    likeliest = Dozen::without_end(answer);
    for (size_t k = 0; k < 3; ++k) posterior[k] = prior[k] * std::exp(log_prob[k]) / sum;
  }
  EXPECT_EQ(found.tokens, likeliest);
  EXPECT_NEAR(found.log_prob, best, 1e-9);  // fp64 sums in another order
  for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(found.document_share[k], posterior[k], 1e-9);
  // Fast: what a document's own search did not find counts as impossible there, so it is never
  // more.
  options.beams = 1;
  options.thorough = false;
  const double fast = eval::generate(*dozen.model, dozen.batch, options)[0].log_prob;
  options.thorough = true;
  EXPECT_LE(fast, eval::generate(*dozen.model, dozen.batch, options)[0].log_prob + 1e-12);
}

TEST(Generate, RagTokenMixesTheNextTokenOverDocuments) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  Made made(config);
  eval::GenerateOptions options;
  options.max_new_tokens = 4;
  options.decoder = "rag_token";
  for (const int64_t beams : {1, 4}) {
    options.beams = beams;
    const auto together = eval::generate(made.session.model(), made.batch, options);
    for (size_t i = 0; i < made.batch.inputs.size(); ++i) {
      if (made.batch.inputs[i].documents.empty()) continue;
      // The marginal likelihood of what it wrote, by the training objective.
      model::Microbatch one = made.batch;
      one.inputs = {made.batch.inputs[i]};
      one.inputs[0].target.assign(together[i].tokens.begin(), together[i].tokens.end());
      if (together[i].tokens.size() < 4) one.inputs[0].target.push_back(data::Tokenizer::kEos);
      one.readings = {.joint = false, .single = true};
      const parallel::Feeds feeds = model::make_feeds(config.model, one, at::kDouble, at::kCPU);
      const parallel::Pass pass(feeds);
      const auto K = static_cast<int64_t>(one.inputs[0].documents.size());
      const at::Tensor lik = parallel::Executor(made.session.model().blocks())
                                 .forward(pass, false)
                                 .wire("target.log_prob")
                                 .view({1, K, -1});
      const at::Tensor prior =
          at::tensor(at::ArrayRef<double>(together[i].document_prob), at::kDouble)
              .log()
              .unsqueeze(0);
      const double nll = model::objectives::rag_token(prior, lik).item<double>();
      EXPECT_NEAR(together[i].log_prob, -nll, 1e-9 * (1 + nll)) << i;  // fp64 sums in another order
      const auto alone = eval::generate(made.session.model(), one, options)[0];
      EXPECT_EQ(alone.tokens, together[i].tokens);
    }
  }
}

TEST(Generate, ARagDecoderWithOneDocumentIsTheJointOne) {
  const TinyWorld world;
  for (const char* fusion : {"memory", "fid", "prefix"}) {
    RunConfig config = world.config("fp64");
    config.model.fusion = fusion;
    Made made(config);
    for (model::Input& input : made.batch.inputs)
      input.documents.resize(std::min<size_t>(1, input.documents.size()));
    eval::GenerateOptions options;
    options.beams = 2;
    const auto joint = eval::generate(made.session.model(), made.batch, options);
    for (const char* decoder : {"rag_token", "rag_sequence"}) {
      options.decoder = decoder;
      const auto rag = eval::generate(made.session.model(), made.batch, options);
      for (size_t i = 0; i < joint.size(); ++i) {
        EXPECT_EQ(rag[i].tokens, joint[i].tokens)
            << fusion << " " << decoder << " " << i;            // input 1 reads nothing
        EXPECT_NEAR(rag[i].log_prob, joint[i].log_prob, 1e-9);  // fp64 sums in another order
      }
    }
  }
}

TEST(Generate, SamplingDrawsFromTheModelAndRepeatsWithItsSeed) {
  const TinyWorld world;
  Made made(world.config("fp64"));
  eval::GenerateOptions options;
  options.temperature = 1.0;
  options.max_new_tokens = 4;
  for (const char* decoder : {"joint", "rag_token"}) {
    options.decoder = decoder;
    options.seed = 1;
    const auto first = eval::generate(made.session.model(), made.batch, options),
               again = eval::generate(made.session.model(), made.batch, options);
    options.seed = 2;
    const auto other = eval::generate(made.session.model(), made.batch, options);
    bool differs = false;
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(first[i].tokens, again[i].tokens);
      differs = differs || first[i].tokens != other[i].tokens;
    }
    EXPECT_TRUE(differs) << decoder;
  }
  options.beams = 2;
  EXPECT_THROW(eval::generate(made.session.model(), made.batch, options), UsageError);
}

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
