// The index during training: ranking by the present encoder, partial refreshes, measured staleness.
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "prepared.h"
#include "tiny_world.h"
#include "train/document_pairs.h"
#include "train/trainer.h"

namespace contexture::train {
namespace {

// Moves the encoder, so that stored vectors are stale.
void disturb(model::Model& model) {
  const at::NoGradGuard no_grad;
  for (const auto& p : model.parameters().all()) {
    if (p->name.rfind("encoder.", 0) != 0) continue;
    p->value.add_(0.5 * parallel::draw_initial("disturb:" + p->name, p->value.sizes().vec(),
                                               parallel::Init::normal(1.0), 3)
                            .to(p->value.dtype()));
  }
}

TEST(Overretrieve, ReadsWhatTheIndexWouldFindIfItWereFresh) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.retriever.gold = false;
  config.retriever.documents = 3;
  Prepared plain(config);
  disturb(plain.session.model());
  const Lookup stale = look_up(config, plain.session, plain.step);
  RunConfig wide = config;
  wide.retriever.overretrieve = 12;  // the whole corpus: ranking anew is then exact
  const Lookup ranked = look_up(wide, plain.session, plain.step);
  plain.session.retriever().refresh_now(1);
  const Lookup fresh = look_up(config, plain.session, plain.step);
  EXPECT_NE(stale.documents, fresh.documents);
  EXPECT_EQ(ranked.documents, fresh.documents);
}

TEST(PartialRefresh, EmbedsTheMostRetrievedAnewAndMeasuresHowStaleTheyWere) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.retriever.partial_every = 5;
  config.retriever.partial_documents = 2;
  Prepared made(config);
  retriever::Retriever& retriever = made.session.retriever();
  const std::vector<float> before = retriever.index().vectors();
  disturb(made.session.model());
  // Beside what the lookup counted.
  for (int i = 0; i < 100; ++i)
    retriever.count(at::tensor(std::vector<int64_t>{7, 3, -1}, at::kLong));
  EXPECT_FALSE(retriever.after_step(4));
  EXPECT_TRUE(retriever.after_step(5));
  const std::vector<float> after = retriever.index().vectors();
  const int64_t E = retriever.index().dim();
  const at::Tensor fresh = made.session.embed("doc", made.session.documents().all()).to(at::kFloat);
  for (int64_t row = 0; row < 12; ++row) {
    const std::vector<float> was(before.begin() + row * E, before.begin() + (row + 1) * E);
    const std::vector<float> is(after.begin() + row * E, after.begin() + (row + 1) * E);
    const float* want = fresh.data_ptr<float>() + row * E;
    EXPECT_EQ(is, row == 3 || row == 7 ? std::vector<float>(want, want + E) : was) << row;
  }
  ASSERT_TRUE(retriever.staleness());
  EXPECT_EQ(retriever.staleness()->steps, 5);
  EXPECT_LT(retriever.staleness()->cosine, 0.999);
  EXPECT_GT(retriever.staleness()->cosine, -1.0);
}

TEST(Staleness, OfVectorsThatDidNotChangeIsNone) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.retriever.refresh_schedule = "0-10:4";
  Prepared made(config);
  EXPECT_FALSE(made.session.retriever().after_step(3));
  EXPECT_TRUE(made.session.retriever().after_step(4));
  const retriever::Staleness stale = *made.session.retriever().staleness();
  EXPECT_EQ(stale.steps, 4);
  EXPECT_NEAR(stale.cosine, 1.0, 1e-6);  // fp32 vectors
  EXPECT_EQ(stale.recall, 1.0);
}

TEST(Staleness, CostsNothingWhereAllThatIsFoundWasProposedToBeRankedAgain) {
  const TinyWorld world;
  const auto recall = [&](int64_t overretrieve) {
    RunConfig config = world.config("fp64");
    config.retriever.documents = 3;
    config.retriever.overretrieve = overretrieve;
    Prepared made(config);
    disturb(made.session.model());
    made.session.retriever().refresh_now(1);
    EXPECT_LT(made.session.retriever().staleness()->cosine, 0.999);
    return made.session.retriever().staleness()->recall;
  };
  EXPECT_LT(recall(0), 1.0);
  EXPECT_EQ(recall(12), 1.0);  // the whole corpus
}

TEST(Staleness, IsInTheMetricsOfTheStepThatRefreshed) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.train.steps = 4;
  config.retriever.refresh_schedule = "0-100:2";
  Trainer(config, false).run();
  std::ifstream file(config.run.dir + "/metrics.jsonl");
  std::vector<int64_t> steps;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    if (!record.contains("stale_cosine")) continue;
    steps.push_back(record["step"].get<int64_t>());
    EXPECT_LT(record["stale_cosine"].get<double>(), 1.0);
    EXPECT_EQ(record["stale_steps"], 2);
    EXPECT_GE(record["stale_recall"].get<double>(), 0.0);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 4}));
}

// How often a run's log says `what`.
int said(const RunConfig& config, const std::string& what) {
  const std::filesystem::path file = config.run.dir + ".log";
  log::add_file(file);
  Trainer(config, false).run();
  log::remove_file();
  const std::string text = read_file(file);
  int count = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++count;
  return count;
}

TEST(Warnings, TellOnceOfAStaleIndexWhereItAloneSaysWhatIsRead) {
  const TinyWorld world;
  for (const bool gold : {false, true}) {
    RunConfig config = world.config("fp32");
    config.run.dir += gold ? "-gold" : "-index";
    config.train.steps = 6;
    config.optimizer.rate = 0.5;  // no vector is worth anything after a step
    config.optimizer.warmup_steps = 0;
    config.retriever.gold = gold;
    config.retriever.documents = 1;
    config.retriever.refresh_schedule = "0-100:1";
    EXPECT_EQ(said(config, "steps old, and had found"), gold ? 0 : 1);
  }
}

TEST(Warnings, TellThatNoIndexHoldsAMadeUpIdentity) {
  const TinyWorld world;
  for (const bool gold : {false, true}) {
    for (const double probability : {0.0, 0.5}) {
      RunConfig config = world.config("fp32");
      config.run.dir += concat(gold, probability);
      config.train.steps = 1;
      config.retriever.gold = gold;
      config.data.identity_probability = probability;
      EXPECT_EQ(said(config, "identity is in no index"), !gold && probability > 0 ? 1 : 0);
    }
  }
}

TEST(HardNegatives, AreEncodedAndContrastedButReadByNobody) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  Prepared plain(config, 1);
  config.retriever.hard_negatives = 2;
  Prepared more(config, 1);
  EXPECT_EQ(plain.lookup.documents, more.lookup.documents);
  for (size_t i = 0; i < more.lookup.negatives.size(); ++i) {
    const auto& negatives = more.lookup.negatives[i];
    EXPECT_EQ(negatives.size(), 2U);
    for (const int64_t row : negatives) {
      for (const auto* others : {&more.step.inputs[i].gold, &more.lookup.documents[i]}) {
        EXPECT_EQ(std::count(others->begin(), others->end(), row), 0);
      }
    }
  }
  const StepStats without = plain.forward_backward(), with = more.forward_backward();
  EXPECT_NEAR(with.loss, without.loss,
              1e-12 * without.loss);  // a product may round otherwise among more rows
  EXPECT_EQ(with.slots, without.slots);
  EXPECT_GT(with.distinct, without.distinct);
  EXPECT_GT(with.contrastive, without.contrastive);  // more terms in the same denominators
}

TEST(FalseNegatives, DocumentsThatHoldTheAnswerAreNoNegatives) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.data.counterfactual.probability = 0.0;
  config.retriever.documents = 12;  // every document is a candidate
  Prepared all(config, 1);
  // One other document says what each question asks for.
  for (int64_t row = 8; row < 12; ++row) {
    data::Document document = all.session.corpus().document(row);
    document.text += " " + all.step.inputs[0].example->answers[0] + ".";
    all.session.corpus().edit(row, document);
  }
  const double before = all.forward_backward().contrastive;
  RunConfig masked = config;
  masked.retriever.false_negatives = "answer";
  const Assembled assembled = assemble(masked, {}, all.session.documents(), all.step, all.lookup);
  ASSERT_TRUE(assembled.holds_answer);
  EXPECT_TRUE(assembled.holds_answer(0, 9));
  EXPECT_TRUE(assembled.holds_answer(0, all.step.inputs[0].gold[0]));
  const double after = forward_backward(masked, all.session.model(), all.session.engine(), all.step,
                                        assembled, &all.lookup)
                           .contrastive;
  EXPECT_LT(after, before);
}

TEST(WarmStart, PairsComeFromTheCorpusAndTrainTheRetrieverAlone) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.data.inverse_cloze_per_step = 3;
  config.data.picture_text_per_step = 3;
  config.retriever.objectives = {{"reader", 0.0}, {"contrastive", 1.0}};
  Prepared made(config, 1);
  int64_t pictures = 0, shorter = 0, count = 0;
  for (int64_t step = 0; step < 20; ++step) {
    std::set<int64_t> rows;
    const PreparedStep drawn = made.maker->make(step);
    for (const PreparedInput& input : drawn.inputs)
      rows.insert(input.gold.begin(), input.gold.end());
    for (const PreparedPair& pair : drawn.pairs) {
      ++count;
      EXPECT_TRUE(rows.insert(pair.row).second);  // neither a gold document's nor another pair's
      EXPECT_FALSE(pair.document.tokens.empty());
      const bool picture = pair.query.patches != nullptr;
      EXPECT_EQ(pair.query.tokens.empty(), picture);
      if (picture) {
        ++pictures;
        EXPECT_EQ(pair.document.patches, nullptr);
        EXPECT_EQ(pair.document.tokens, made.session.documents().sequence(pair.row).tokens);
      } else {
        shorter +=
            pair.document.tokens.size() < made.session.documents().sequence(pair.row).tokens.size()
                ? 1
                : 0;
      }
    }
  }
  EXPECT_GT(pictures, 5);
  EXPECT_GT(shorter, (count - pictures) / 2);  // nine in ten lack their sentence
  ASSERT_FALSE(made.step.pairs.empty());
  const StepStats stats = made.forward_backward();
  EXPECT_EQ(stats.loss, 0.0);
  EXPECT_GT(stats.contrastive, 0.0);
  const auto grad = [&](const char* name) {
    return made.session.model().parameters().at(name).grad;
  };
  EXPECT_GT(grad("encoder.norm").norm().item<double>(), 0.0);
  EXPECT_TRUE(!grad("decoder.norm").defined() || grad("decoder.norm").norm().item<double>() == 0.0);
}

}  // namespace
}  // namespace contexture::train
