// Evaluation and generation in the layout that the model is in: answers and figures are those of
// one process, and no rank ever holds the model.
#include <gtest/gtest.h>

#include "allocations.h"
#include "layouts.h"
#include "train/evaluator.h"
#include "train/trainer.h"

namespace contexture::train {
namespace {

struct Layout {
  int64_t dp, pp, tp, zero;
  const char* schedule = "1f1b";
  const char* shared = "replicate";
  int64_t chunks = 1;
  bool sequence = false;
};
const Layout kLayouts[] = {{2, 1, 1, 0},
                           {4, 1, 1, 3},
                           {1, 2, 1, 0},
                           {1, 4, 1, 0, "list"},
                           {1, 1, 2, 0},
                           {1, 1, 4, 0, "1f1b", "replicate", 1, true},
                           {2, 2, 1, 3},
                           {1, 2, 2, 0},
                           {1, 3, 1, 0, "list", "colocate"},
                           {2, 1, 2, 3},
                           {2, 2, 2, 1},
                           {1, 2, 1, 0, "interleaved", "replicate", 2},
                           {2, 2, 2, 3, "1f1b", "replicate", 1, true}};

RunConfig in(const Layout& layout, RunConfig config) {
  lay_out(config, layout);
  config.parallel.shared = layout.shared;
  config.parallel.chunks = layout.chunks;
  config.parallel.sequence = layout.sequence;
  return config;
}

struct Asked {
  std::vector<Answered> answers;  // decoder by decoder
  std::vector<Utility> utility;   // of the documents of the first decoder's
  Json figures;
};

// Opens the run as each rank of a layout, and asks.
Asked ask(RunConfig config, const parallel::Groups& groups) {
  Asked out;
  for (const auto& [decoder, beams] :
       {std::pair{"joint", 1}, {"joint", 3}, {"rag_token", 2}, {"rag_sequence", 2}}) {
    config.eval.decoder = decoder;
    config.eval.beams = beams;
    data::BadRecords bad;
    const auto session = open_run(config, bad, -1, true, groups);
    const PictureSet set(config, config.data.dev, {}, session->documents(), bad);
    const auto examples = Evaluator::choose(set, 7);
    const Evaluator evaluator(*session);
    if (out.figures.empty()) {
      // Documents are edited and embedded anew on the ranks that keep them, and then again as they
      // were.
      int64_t edits = 0;
      Json shown = Json::array();
      const double followed = evaluator.edit_follow(set, examples, &edits, &shown);
      out.figures.push_back({{"edit_follow", followed}, {"edits", edits}, {"shown", shown}});
      EXPECT_EQ(edits, 7);
      EXPECT_FALSE(shown.empty());
    }
    std::vector<Answered> answered = evaluator.answer(set, examples, Reading::kRetrieved);
    if (out.utility.empty()) out.utility = evaluator.utility(set, answered);
    std::move(answered.begin(), answered.end(), std::back_inserter(out.answers));
    out.figures.push_back(evaluator.quick(set, examples));
  }
  return out;
}

class Evaluation : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Evaluation, EveryLayoutAnswersAsOneProcessDoes) {
  const TinyWorld world;
  RunConfig config = tiny(world);
  config.model.fusion = GetParam().first;
  config.model.towers = GetParam().second;
  if (config.model.fusion != "prefix")
    config.retriever.objectives = {{"adist", 0.1},
                                   {"contrastive", 1.0}};  // layers then write more than their rows
  config.train.steps = 30;
  config.optimizer.rate = 1e-2;
  config.eval.every = 0;
  config.eval.batch_size = 2;  // four batches of seven questions: replicas have unequal shares
  config.eval.documents = 2;
  config.checkpoint.every = 30;
  Trainer(config, false).run();
  const Asked alone = ask(config, {});
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(concat("dp ", layout.dp, " pp ", layout.pp, " tp ", layout.tp, " zero ",
                        layout.zero, " ", layout.schedule));
    const RunConfig spread = in(layout, config);
    on_threads(spread.parallel, [&](const parallel::Groups& groups) {
      const Asked got = ask(spread, groups);  // on every rank
      EXPECT_EQ(got.figures, alone.figures);
      ASSERT_EQ(got.utility.size(), alone.utility.size());
      for (size_t i = 0; i < got.utility.size(); ++i) {
        const Utility &a = got.utility[i], &b = alone.utility[i];
        ASSERT_EQ(a.retrieved.size(), 2u);
        for (size_t k = 0; k < 2; ++k) EXPECT_NEAR(a.retrieved[k], b.retrieved[k], 1e-10);
        ASSERT_TRUE(a.gold && b.gold);
        EXPECT_NEAR(*a.gold, *b.gold, 1e-10);
      }
      ASSERT_EQ(got.answers.size(), alone.answers.size());
      for (size_t i = 0; i < got.answers.size(); ++i) {
        const Answered &a = got.answers[i], &b = alone.answers[i];
        EXPECT_EQ(a.answer, b.answer);
        EXPECT_EQ(a.documents, b.documents);
        EXPECT_EQ(a.generated.tokens, b.generated.tokens);
        EXPECT_NEAR(a.generated.log_prob, b.generated.log_prob,
                    1e-10 * (1 + std::abs(b.generated.log_prob)));  // fp64 sums in another order
        ASSERT_EQ(a.generated.document_share.size(), b.generated.document_share.size());
        for (size_t k = 0; k < a.generated.document_share.size(); ++k) {
          EXPECT_NEAR(a.generated.document_prob[k], b.generated.document_prob[k], 1e-10);
          EXPECT_NEAR(a.generated.document_share[k], b.generated.document_share[k], 1e-10);
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Evaluation,
    testing::Values(std::pair{"memory", "shared"}, std::pair{"memory", "separate"},
                    std::pair{"fid", "shared"}, std::pair{"prefix", "separate"}),
    [](const auto& info) { return std::string(info.param.first) + "_" + info.param.second; });

TEST(EvaluationMemory, NoRankEverHoldsTheModel) {
  const TinyWorld world;
  RunConfig config = tiny(world, "fp32");
  config.model.towers = "separate";
  config.model.width = 128;
  config.model.head_width = 32;
  config.model.ffn_width = 256;
  config.model.encoder_layers = config.model.decoder_layers = 4;
  config.eval.batch_size = 2;
  int64_t whole = 0;
  const auto measure = [&](const RunConfig& c, const parallel::Groups& groups) {
    const CountAllocations count;
    data::BadRecords bad;
    Session session(c, bad, groups);
    session.make_retriever();
    const PictureSet set(c, c.data.dev, {}, session.documents(), bad);
    const int64_t held = count->live;
    count->forget_peak();
    Evaluator(session).quick(set, Evaluator::choose(set, 8));
    return std::pair<int64_t, int64_t>(held, count->peak);
  };
  {
    const auto [held, peak] = measure(config, {});
    model::Model model(config.model);
    whole = 4 * model.parameters().num_elements();
    EXPECT_GE(held, whole);  // the count counts
  }
  for (const Layout& layout : {Layout{1, 4, 1, 0}, Layout{1, 1, 4, 0}, Layout{4, 1, 1, 3},
                               Layout{1, 2, 2, 0}, Layout{2, 2, 1, 3}}) {
    SCOPED_TRACE(
        concat("dp ", layout.dp, " pp ", layout.pp, " tp ", layout.tp, " zero ", layout.zero));
    const RunConfig spread = in(layout, config);
    on_threads(spread.parallel, [&](const parallel::Groups& groups) {
      const auto [held, peak] = measure(spread, groups);
      EXPECT_LT(held, 0.4 * static_cast<double>(whole));
      // Activations; and with ZeRO 3 a block's weights, a tenth of the model, three times: as sent,
      // as they came, and in their place.
      EXPECT_LT(peak - held, (layout.zero == 3 ? 0.45 : 0.15) * static_cast<double>(whole));
    });
  }
}

}  // namespace
}  // namespace contexture::train
