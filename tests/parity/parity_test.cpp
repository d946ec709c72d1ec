// Any layout gives the one-process result: loss, every gradient, and the parameters after ten steps
// of AdamW. Ranks are threads.
#include <gtest/gtest.h>

#include <cstdlib>

#include "grid.h"

namespace contexture::train {
namespace {

void expect_parity(References& references, const Cell& cell, double tolerance) {
  SCOPED_TRACE(name_of(cell));
  try {
    const Difference d = references.difference(cell);
    EXPECT_LE(d.loss, tolerance) << d.worst_parameter;
    EXPECT_LE(d.gradient, tolerance) << d.worst_parameter;
    EXPECT_LE(d.step, tolerance) << d.worst_parameter;
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(Parity, EveryPairOfChoicesInFp64) {
  const TinyWorld world;
  References references(tiny(world));
  const std::vector<Cell> cells = covering(2, 1000, 1);
  ASSERT_GT(cells.size(), 60u);  // 17 layouts x 5 schedules among them
  for (const Cell& cell : cells)
    expect_parity(references, cell, 1e-10);  // fp64 sums in another order
}

// All objectives together, and the marginals without a reader of all documents, in layouts of every
// kind, with token slices and with documents encoded once for all microbatches.
TEST(Parity, EveryObjectiveInFp64) {
  const TinyWorld world;
  const std::map<std::string, double> distilled{{"attentive", 0.5}, {"contrastive", 0.1},
                                                {"emdr2", 1.0},     {"pdist", 0.5},
                                                {"loop", 0.5},      {"adist", 0.5}};
  const std::map<std::string, double> marginal{
      {"rag_sequence", 0.5}, {"rag_token", 1.0}, {"realm", 0.5}, {"contrastive", 0.1}};
  struct Layout {
    int64_t dp, pp, tp, microbatches, zero;
    const char* schedule;
    int64_t token_slices;
    const char* encode_once;
  };
  const std::vector<Layout> layouts{
      {2, 1, 1, 1, 2, "1f1b", 1, "microbatch"},  {1, 2, 1, 2, 0, "1f1b", 1, "microbatch"},
      {1, 1, 2, 1, 0, "1f1b", 1, "microbatch"},  {1, 4, 1, 3, 0, "zb_h1", 1, "microbatch"},
      {2, 2, 2, 2, 1, "list", 1, "microbatch"},  {1, 2, 1, 1, 0, "1f1b", 3, "microbatch"},
      {1, 4, 1, 2, 0, "gpipe", 5, "microbatch"}, {2, 2, 2, 2, 3, "list", 2, "microbatch"},
      {1, 1, 1, 3, 0, "1f1b", 1, "replica"},     {1, 4, 1, 2, 0, "zb_h1", 1, "replica"},
      {2, 2, 2, 2, 1, "list", 1, "replica"}};
  // What reads documents one at a time is refused in fid, and what weighs attention in prefix.
  for (const auto& [fusion, objectives] :
       {std::pair{"memory", &distilled}, std::pair{"memory", &marginal},
        std::pair{"fid", &distilled}, std::pair{"prefix", &marginal}}) {
    RunConfig alone = tiny(world);
    alone.model.fusion = fusion;
    alone.retriever.objectives = *objectives;
    alone.retriever.documents = 3;
    const Outcome want = outcome_of(alone, {}, References::kSteps);
    for (const Layout& l : layouts) {
      SCOPED_TRACE(concat(fusion, " ", objectives->begin()->first, ": dp ", l.dp, " pp ", l.pp,
                          " tp ", l.tp, " ", l.schedule, ", ", l.token_slices, " slices, once a ",
                          l.encode_once));
      RunConfig config = alone;
      lay_out(config, l);
      config.parallel.sequence = l.tp > 1;
      config.parallel.microbatches = l.microbatches;
      config.parallel.token_slices = l.token_slices;
      config.parallel.encode_once = l.encode_once;
      config.validate();
      const Difference d = compare(want, train_threads(config, References::kSteps));
      // fp64 sums in another order
      EXPECT_LE(d.loss, 1e-10) << d.worst_parameter;
      EXPECT_LE(d.gradient, 1e-10) << d.worst_parameter;
      EXPECT_LE(d.step, 1e-10) << d.worst_parameter;
    }
  }
}

// Retrieval by a published encoder that is trained further: its blocks in layouts of every kind,
// its three heads over two ranks.
TEST(Parity, APublishedEncoderInFp64) {
  const TinyWorld world;
  struct Case {
    const char* fusion;
    int64_t dp, pp, tp, microbatches, zero;
    const char *schedule, *partitioner, *encode_once;
    double dropout;
  };
  for (const Case& c : {Case{"memory", 2, 1, 1, 1, 3, "1f1b", "uniform", "microbatch", 0.0},
                        Case{"memory", 1, 2, 1, 2, 0, "1f1b", "exact", "microbatch", 0.1},
                        Case{"memory", 1, 1, 2, 1, 0, "1f1b", "uniform", "microbatch", 0.1},
                        Case{"memory", 1, 4, 1, 3, 0, "zb_h1", "parameters", "microbatch", 0.0},
                        Case{"memory", 1, 2, 1, 2, 0, "gpipe", "uniform", "replica", 0.0},
                        Case{"fid", 2, 2, 2, 2, 1, "list", "uniform", "microbatch", 0.0},
                        Case{"prefix", 1, 2, 2, 2, 2, "1f1b", "uniform", "microbatch", 0.0}}) {
    SCOPED_TRACE(concat(c.fusion, " dp ", c.dp, " pp ", c.pp, " tp ", c.tp, " ", c.schedule));
    RunConfig alone = with_tiny_bert(tiny(world));
    alone.model.fusion = c.fusion;
    alone.model.dropout = c.dropout;
    alone.data.inverse_cloze_per_step = 3;
    alone.retriever.hard_negatives = 1;
    if (c.pp == 4)
      alone.retriever.objectives = {{"attentive", 0.5}, {"contrastive", 0.5}, {"emdr2", 1.0},
                                    {"pdist", 0.5},     {"loop", 0.5},        {"adist", 0.5}};
    const Outcome want = outcome_of(alone, {}, References::kSteps);
    RunConfig config = alone;
    lay_out(config, c);
    config.parallel.sequence = c.tp > 1;
    config.parallel.microbatches = c.microbatches;
    config.parallel.partitioner = c.partitioner;
    config.parallel.encode_once = c.encode_once;
    config.parallel.recompute =
        c.dropout > 0 ? std::vector<std::string>{"all"} : std::vector<std::string>{};
    const Difference d = compare(want, train_threads(config, References::kSteps));
    EXPECT_GT(want.gradients.at("retriever.word").norm().item<double>(), 0.0);
    // fp64 sums in another order
    EXPECT_LE(d.loss, 1e-10) << d.worst_parameter;
    EXPECT_LE(d.gradient, 1e-10) << d.worst_parameter;
    EXPECT_LE(d.step, 1e-10) << d.worst_parameter;
  }
}

// REALM's pretraining, its masked sentences looked up by a published encoder.
TEST(Parity, MaskedSpansReadByAPublishedEncoderInFp64) {
  const TinyWorld world;
  struct Case {
    int64_t dp, pp, tp, zero;
    const char* schedule;
  };
  RunConfig alone = with_tiny_bert(tiny(world));
  alone.data.train = {{"", 0.0, {}, "salient"}};
  alone.data.dev.clear();
  alone.data.group_size = 1;
  alone.retriever.objectives = {{"realm", 1.0}};
  const Outcome want = outcome_of(alone, {}, References::kSteps);
  EXPECT_GT(want.gradients.at("retriever.word").norm().item<double>(), 0.0);
  for (const Case& c : {Case{2, 1, 1, 3, "1f1b"}, Case{1, 2, 1, 0, "1f1b"},
                        Case{1, 1, 2, 0, "1f1b"}, Case{2, 2, 1, 1, "list"}}) {
    SCOPED_TRACE(concat("dp ", c.dp, " pp ", c.pp, " tp ", c.tp, " ", c.schedule));
    RunConfig config = alone;
    lay_out(config, c);
    config.parallel.microbatches = 2;
    const Difference d = compare(want, train_threads(config, References::kSteps));
    // fp64 sums in another order
    EXPECT_LE(d.loss, 1e-10) << d.worst_parameter;
    EXPECT_LE(d.gradient, 1e-10) << d.worst_parameter;
    EXPECT_LE(d.step, 1e-10) << d.worst_parameter;
  }
}

// Slices that cut sequences and pictures, one row each and fewer rows than slices, in every
// schedule and way of fusion.
TEST(Parity, TokenSlicesGiveTheResultOfWholeMicrobatches) {
  const TinyWorld world;
  RunConfig config = tiny(world);
  config.model.dropout = 0.1;
  config.parallel.microbatches = 2;
  for (const char* fusion : {"memory", "fid", "prefix"}) {
    config.model.fusion = fusion;
    const Outcome want = outcome_of(config, {}, 3);
    for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb_h1", "list"}) {
      RunConfig cut = config;
      cut.parallel.pp = 2;
      cut.parallel.schedule = schedule;
      cut.parallel.chunks = std::string(schedule) == "interleaved" ? 2 : 1;
      for (const int64_t slices : {2, 7, 400}) {
        if (slices == 400 && std::string(schedule) != "1f1b")
          continue;  // hundreds of messages a step
        SCOPED_TRACE(concat(fusion, " ", schedule, " ", slices));
        cut.parallel.token_slices = slices;
        cut.parallel.recompute =
            slices == 2 ? std::vector<std::string>{"all"} : std::vector<std::string>{};
        const Difference d = compare(want, train_threads(cut, 3));
        EXPECT_LE(std::max({d.loss, d.gradient, d.step}), 1e-10)
            << d.worst_parameter;  // fp64 sums in another order
      }
    }
  }
}

// Three steps are measured, then the cuts are planned on all ranks alike, whatever the times are.
TEST(Parity, MeasuredTokenSlicesGiveTheResultOfWholeMicrobatches) {
  const TinyWorld world;
  RunConfig config = tiny(world);
  const Outcome want = outcome_of(config, {}, 6);
  config.parallel.dp = config.parallel.pp = 2;
  config.parallel.token_slices = 0;
  const Difference d = compare(want, train_threads(config, 6));
  EXPECT_LE(std::max({d.loss, d.gradient, d.step}), 1e-10)
      << d.worst_parameter;  // fp64 sums in another order
}

TEST(Parity, ADozenLayoutsInFp32) {
  const TinyWorld world;
  References references(tiny(world, "fp32"));
  for (const Cell& cell : covering(2, 12, 2))
    expect_parity(references, cell, 1e-5);  // 6e-8 through sums and ten steps
}

TEST(Parity, Bf16StaysWithinItsRounding) {
  const TinyWorld world;
  const RunConfig config = tiny(world, "bf16");
  References references(config);
  for (const Cell& cell : covering(2, 6, 3)) {
    SCOPED_TRACE(name_of(cell));
    // 8 bits of mantissa: 0.4 % a rounding, and sums in another order. (A contrastive loss near
    // zero has no relative accuracy.)
    const Outcome &want = references.of(cell),
                  got = train_threads(configured(config, cell), References::kSteps);
    for (size_t s = 0; s < want.losses.size(); ++s)
      EXPECT_NEAR(got.losses[s], want.losses[s], 0.03 * want.losses[s]) << "step " << s;
    EXPECT_LE(compare(want, got).step, 0.03);
  }
}

// The comparison itself can fail: another seed is another run.
TEST(Parity, TellsDifferentRunsApart) {
  const TinyWorld world;
  RunConfig config = tiny(world);
  const Outcome one = outcome_of(config, {}, 2);
  config.run.seed = 2;
  const Difference d = compare(one, outcome_of(config, {}, 2));
  EXPECT_GT(d.loss, 1e-4);
  EXPECT_GT(d.gradient, 1e-2);
  EXPECT_GT(d.step, 1e-2);
}

// Of the full product: a seeded sample that covers triples as far as it goes.
// CONTEXTURE_PARITY_CELLS sets its size.
TEST(ParityGrid, ASampleOfTriples) {
  const char* cells = std::getenv("CONTEXTURE_PARITY_CELLS");
  if (cells == nullptr) GTEST_SKIP() << "runs as the test parity_grid (label grid)";
  const TinyWorld world;
  References references(tiny(world));
  const std::vector<Cell> sample = covering(3, std::strtoul(cells, nullptr, 10), 4);
  for (const Cell& cell : sample) expect_parity(references, cell, 1e-10);
  std::cout << sample.size() << " layouts\n";
}

}  // namespace
}  // namespace contexture::train
