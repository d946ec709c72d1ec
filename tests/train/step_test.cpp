// However a step is cut or shared, its loss and gradients are the same.
#include "train/step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "prepared.h"
#include "tiny_world.h"

namespace contexture::train {
namespace {

struct Outcome {
  double loss, contrastive;
  std::map<std::string, at::Tensor> grads;
};

Outcome one_step(const RunConfig& config) {
  Prepared made(config, 3);
  const StepStats stats = made.forward_backward();
  Outcome out{stats.loss, stats.contrastive, {}};
  for (const auto& p : made.session.model().parameters().all())
    out.grads[p->name] = p->grad.clone();
  return out;
}

void expect_equal(const Outcome& a, const Outcome& b, double tolerance) {
  EXPECT_NEAR(a.loss, b.loss, tolerance * std::abs(a.loss));
  EXPECT_NEAR(a.contrastive, b.contrastive, tolerance * std::abs(a.contrastive));
  ASSERT_EQ(a.grads.size(), b.grads.size());
  ASSERT_GT(a.grads.size(), 20u);
  for (const auto& [name, grad] : a.grads) {
    const double norm = grad.norm().item<double>();
    EXPECT_LE((grad - b.grads.at(name)).norm().item<double>(), tolerance * std::max(norm, 1e-6))
        << name;
  }
}

class Cut : public testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(Cut, LossAndGradientsDoNotDependOnTheNumberOfMicrobatches) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.model.fusion = std::get<0>(GetParam());
  config.data.pairs = "pairs.jsonl";
  config.data.pairs_per_step = 3;
  const Outcome whole = one_step(config);
  config.parallel.microbatches = std::get<1>(GetParam());
  expect_equal(whole, one_step(config), 1e-10);  // fp64 sums in another order
  config.parallel.encode_once = "replica";
  expect_equal(whole, one_step(config), 1e-10);
}

INSTANTIATE_TEST_SUITE_P(Modes, Cut,
                         testing::Combine(testing::Values("memory", "fid", "prefix"),
                                          testing::Values(2, 4)));

TEST(Step, AGradientKeepsNothingAliveButItself) {
  const TinyWorld world;
  Prepared made(world.config("fp32"));
  made.forward_backward();
  for (const auto& p : made.session.model().parameters().all())
    EXPECT_EQ(p->grad.storage().nbytes(), p->grad.nbytes()) << p->name;
}

TEST(Step, AReplicaMayEncodeItsDocumentsOnceForAllMicrobatches) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.retriever.documents = 4;
  const auto encoded = [&](int64_t microbatches, const char* once) {
    config.parallel.microbatches = microbatches;
    config.parallel.encode_once = once;
    Prepared made(config, 3);
    return made.forward_backward();
  };
  const StepStats whole = encoded(1, "microbatch"), each = encoded(4, "microbatch"),
                  together = encoded(4, "replica");
  EXPECT_GT(each.encoded, whole.encoded);
  EXPECT_EQ(together.distinct, whole.distinct);
  EXPECT_EQ(together.rows, whole.rows);
  EXPECT_GT(each.flops, together.flops);
  EXPECT_NEAR(together.flops, whole.flops,
              0.02 * whole.flops);  // each microbatch's copy head projects all keys

  Prepared made(config, 3);
  made.forward_backward();
  int document_forwards = 0;
  for (const parallel::TimedAction& timed : made.session.engine().pipeline().timeline()) {
    document_forwards += !timed.sliced && timed.action.work == parallel::Work::kForward ? 1 : 0;
  }
  EXPECT_EQ(document_forwards, 1);
}

// What a replica's loader leaves out is what only others read; the rest is as if it had made
// everything.
TEST(Step, AReplicaPreparesOnlyItsOwnInputs) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.data.pairs = "pairs.jsonl";
  config.data.pairs_per_step = 3;
  config.data.augment.shift_p = config.data.document_augment.shift_p = 1.0;
  Prepared made(config);
  Session& session = made.session;
  data::BadRecords bad;
  const StepMaker maker(session.config(), session.encoder(), session.documents(),
                        session.tokenizer(), bad);
  const PreparedStep all = maker.make(2);
  EXPECT_TRUE(all.edited_elsewhere.empty());
  const auto same = [](const model::Sequence& a, const model::Sequence& b) {
    return a.tokens == b.tokens && a.key == b.key &&
           (a.patches == nullptr) == (b.patches == nullptr) &&
           (a.patches == nullptr || *a.patches == *b.patches);
  };
  size_t inputs = 0, pairs = 0;
  for (const int64_t replica : {0, 1}) {
    const Share share{replica, 2, 2};
    const PreparedStep mine = maker.make(2, share);
    const auto [begin, end] = share.mine(all.inputs.size());
    ASSERT_EQ(mine.inputs.size(), all.inputs.size());
    for (size_t i = 0; i < all.inputs.size(); ++i) {
      EXPECT_EQ(mine.inputs[i].target, all.inputs[i].target);
      EXPECT_EQ(mine.inputs[i].gold, all.inputs[i].gold);
      const bool own = begin <= i && i < end;
      inputs += own ? 1 : 0;
      EXPECT_TRUE(same(mine.inputs[i].query, own ? all.inputs[i].query : model::Sequence()));
      EXPECT_TRUE(same(mine.inputs[i].prompt, own ? all.inputs[i].prompt : model::Sequence()));
    }
    ASSERT_EQ(mine.pairs.size(), all.pairs.size());
    for (size_t p = 0; p < all.pairs.size(); ++p) {
      EXPECT_EQ(mine.pairs[p].row, all.pairs[p].row);
      pairs += share.has_pair(p) ? 1 : 0;
      EXPECT_TRUE(
          same(mine.pairs[p].query, share.has_pair(p) ? all.pairs[p].query : model::Sequence()));
      EXPECT_TRUE(same(mine.pairs[p].document,
                       share.has_pair(p) ? all.pairs[p].document : model::Sequence()));
    }
    EXPECT_FALSE(mine.edited_elsewhere.empty());
    for (const auto& [row, document] : all.edited) {
      const auto here = mine.edited.find(row);
      EXPECT_TRUE(same(here != mine.edited.end() ? here->second : mine.edited_elsewhere.at(row)(),
                       document))
          << "row " << row;
    }
  }
  EXPECT_EQ(inputs, all.inputs.size());
  EXPECT_EQ(pairs, all.pairs.size());
}

TEST(Step, IsTheSameInFp32ToFp32Accuracy) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  const Outcome whole = one_step(config);
  config.parallel.microbatches = 4;
  expect_equal(whole, one_step(config), 1e-5);  // fp32 rounding, sums in another order
}

TEST(Step, RecomputedActivationsGiveIdenticalGradientsWithDropout) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.model.dropout = 0.1;
  const Outcome kept = one_step(config);
  config.parallel.recompute = {"doc.layer.0", "doc.layer.1", "query.layer.0", "dec.layer", "head"};
  const Outcome recomputed = one_step(config);
  expect_equal(kept, recomputed, 0.0);  // the same operations on the same numbers
  RunConfig other = config;
  other.run.seed = 99;
  other.model.dropout = 0.0;
  EXPECT_NE(one_step(other).loss, kept.loss);
}

class EncodeOnce : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(EncodeOnce, EqualsEncodingADocumentForEachReader) {
  const auto [fusion, precision] = GetParam();
  const double tolerance = precision == std::string("fp64") ? 1e-10 : 1e-5;
  const TinyWorld world;
  RunConfig config = world.config(precision);
  config.model.fusion = fusion;
  Prepared made(config);
  Session& session = made.session;
  const model::Microbatch shared = made.assembled().batches[0];
  model::Microbatch each = shared;
  each.documents.clear();
  for (model::Input& input : each.inputs) {
    for (int32_t& document : input.documents) {
      each.documents.push_back(shared.documents[document]);
      document = static_cast<int32_t>(each.documents.size()) - 1;
    }
  }
  ASSERT_LT(shared.documents.size(), each.documents.size());
  const parallel::Executor executor(session.model().blocks());
  std::vector<Outcome> outcomes;
  for (const model::Microbatch& batch : {shared, each}) {
    session.model().parameters().zero_grad();
    const parallel::Feeds feeds =
        model::make_feeds(config.model, batch, session.model().dtype(), at::kCPU);
    const parallel::Pass pass(feeds, true, 1, 0);
    parallel::ForwardPass forward = executor.forward(pass, true);
    Outcome out{forward.wire("loss.reader").item<double>(), 0.0, {}};
    executor.backward(std::move(forward), {{"loss.reader", at::ones({}, at::kDouble)}});
    for (const auto& p : session.model().parameters().all()) {
      if (p->grad.defined()) out.grads[p->name] = p->grad.clone();
    }
    outcomes.push_back(std::move(out));
  }
  expect_equal(outcomes[0], outcomes[1], tolerance);  // sums in another order
}

INSTANTIATE_TEST_SUITE_P(Modes, EncodeOnce,
                         testing::Combine(testing::Values("memory", "fid", "prefix"),
                                          testing::Values("fp64", "fp32")));

TEST(Step, GradientsEqualFiniteDifferences) {
  const TinyWorld world;
  RunConfig config = world.config("fp64");
  config.data.group_size = 1;
  config.train.batch_size = 4;
  Prepared made(config, 1);
  Session& session = made.session;
  const auto total = [&] {
    const StepStats stats = made.forward_backward();
    return stats.loss + config.retriever.contrastive_weight() * stats.contrastive;
  };
  total();
  std::map<std::string, at::Tensor> grads;
  for (const auto& p : session.model().parameters().all()) {
    if (p->grad.defined()) grads[p->name] = p->grad.clone();
  }
  expect_differences(session, grads, total);
}

TEST(LookUp, PassesOverDocumentsOfHeldOutExamples) {
  const TinyWorld world;
  RunConfig config = world.config();
  config.data.train[0].types = {"code"};
  config.data.dev = "held_out.jsonl";
  // Land L (row 11) is asked about in the dev set alone; Land A also in training.
  write_file_atomic(std::filesystem::path(world.path()) / "held_out.jsonl",
                    Json{{"id", "x"},
                         {"question", "What is the capital?"},
                         {"type", "capital"},
                         {"entity", "place:11"},
                         {"answers", {"Nowhere"}},
                         {"documents", {"place:11", "place:0"}}}
                            .dump() +
                        "\n");
  config.retriever.documents = 12;
  const Lookup lookup = Prepared(config).lookup;
  for (const auto& rows : lookup.documents) {
    EXPECT_EQ(rows.size(), 11U);
    EXPECT_EQ(std::count(rows.begin(), rows.end(), 11), 0);
    EXPECT_EQ(std::count(rows.begin(), rows.end(), 0), 1);
  }
  EXPECT_EQ(lookup.rankings[0].size(), 12U);  // it is in the index all the same
}

TEST(LookUp, AnInputNeverReadsTheDocumentItWasCutFrom) {
  const TinyWorld world;
  RunConfig config = world.config();
  config.retriever.documents = 12;
  config.retriever.gold = false;
  Prepared made(config);
  made.step.inputs[1].source = 4;
  const Lookup lookup = look_up(config, made.session, made.step);
  EXPECT_EQ(lookup.documents[0].size(), 12U);
  EXPECT_EQ(lookup.documents[1].size(), 11U);
  EXPECT_EQ(std::count(lookup.documents[1].begin(), lookup.documents[1].end(), 4), 0);
}

class Pairs : public testing::Test {
 protected:
  // The pairs of some steps, all made from `config`.
  static std::vector<PreparedPair> drawn(RunConfig config, int64_t count) {
    config.data.pairs = "pairs.jsonl";
    data::BadRecords bad;
    Session session(config, bad);
    const PairSet pairs(config, session.documents(), bad);
    std::vector<PreparedPair> out;
    for (int64_t step = 0; step < 20; ++step) {
      for (PreparedPair& pair : pairs.draw(step, count, {0}, {})) out.push_back(std::move(pair));
    }
    return out;
  }
};

TEST_F(Pairs, ComeFromTheKindsAskedFor) {
  const TinyWorld world;
  RunConfig config = world.config();
  config.data.pair_kinds = {"even"};
  std::set<int64_t> rows;
  for (const PreparedPair& pair : drawn(config, 3)) rows.insert(pair.row);
  EXPECT_EQ(rows, (std::set<int64_t>{2, 4, 6}));  // row 0 is a gold document of the step
}

TEST_F(Pairs, OfAKindThatTheFileLacksAreRefused) {
  const TinyWorld world;
  RunConfig config = world.config();
  config.data.pair_kinds = {"evn"};
  EXPECT_THROW(drawn(config, 3), DataError);
}

TEST_F(Pairs, ThatAreJoinedBelongToNoDocument) {
  const TinyWorld world;
  RunConfig config = world.config();
  config.data.identity_probability = 0.0;
  std::set<std::vector<float>> plain, joined;
  for (const PreparedPair& pair : drawn(config, 4)) plain.insert(*pair.document.patches);
  EXPECT_EQ(plain.size(), 7U);
  config.data.patchwork_probability = 1.0;
  std::map<int64_t, int> rows;
  for (const PreparedPair& pair : drawn(config, 4)) {
    ++rows[pair.row];
    joined.insert(*pair.document.patches);
    EXPECT_EQ(pair.query.patches->size(), pair.document.patches->size());
    EXPECT_EQ(*pair.query.patches, *pair.document.patches);  // one style, one seam, no augmentation
  }
  EXPECT_EQ(rows.size(), 4U);  // distinct within a step, so that none is masked as another's double
  for (const auto& [row, count] : rows) EXPECT_LT(row, 0);
  EXPECT_GT(joined.size(), 3 * plain.size());
}

}  // namespace
}  // namespace contexture::train
