// The index spread over the ranks of a run: what is retrieved and trained is what an index in one
// piece gives, bit for bit, and any number of ranks goes on from the checkpoint of any other.
#include <gtest/gtest.h>

#include <fstream>
#include <mutex>

#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "parallel/row_pieces.h"
#include "runs.h"
#include "train/prepared.h"

namespace contexture::train {
namespace {
namespace fs = std::filesystem;

constexpr std::array<int, 3> kLayouts[] = {{2, 1, 1}, {3, 1, 1}, {4, 1, 1}, {1, 2, 1},
                                           {1, 1, 2}, {2, 2, 1}, {2, 1, 2}, {1, 2, 2}};

RunConfig laid(RunConfig config, const std::array<int, 3>& layout) {
  config.parallel.dp = layout[0];
  config.parallel.pp = layout[1];
  config.parallel.tp = layout[2];
  return config;
}

RunConfig reading(const TinyWorld& world) {
  RunConfig config = tiny(world);
  config.retriever.gold = false;
  config.retriever.documents = 3;
  return config;
}

TEST(ShardedIndex, EveryLayoutRetrievesWhatOneProcessDoes) {
  const TinyWorld world;
  const RunConfig config = reading(world);
  Prepared alone(config);
  for (const auto& layout : kLayouts) {
    SCOPED_TRACE(concat(layout[0], "x", layout[1], "x", layout[2]));
    std::mutex mutex;
    int64_t kept = 0;
    on_threads(laid(config, layout).parallel, [&](const parallel::Groups& groups) {
      Prepared mine(laid(config, layout), 0, groups);
      const std::lock_guard lock(mutex);
      kept += mine.session.retriever().index().size();
      EXPECT_LT(mine.session.retriever().index().size(), 12);
      const auto [begin, end] =
          share_of(mine.session.config(), groups).mine(mine.step.inputs.size());
      for (size_t i = begin; i < end; ++i) {
        EXPECT_EQ(mine.lookup.rankings[i], alone.lookup.rankings[i]);
        EXPECT_EQ(mine.lookup.documents[i], alone.lookup.documents[i]);
      }
    });
    EXPECT_EQ(kept, 12) << "each document is kept once";
  }
}

TEST(ShardedIndex, TrainsAsAnIndexInOnePieceDoes) {
  const TinyWorld world;
  RunConfig config = reading(world);
  const Outcome alone = outcome_of(config, {}, 4);
  for (const auto& layout : kLayouts) {
    SCOPED_TRACE(concat(layout[0], "x", layout[1], "x", layout[2]));
    const Outcome sharded = train_threads(laid(config, layout), 4);
    RunConfig whole = laid(config, layout);
    whole.retriever.sharded = false;
    const Outcome one_piece = train_threads(whole, 4);
    EXPECT_EQ(sharded.losses, one_piece.losses);  // the same bits
    EXPECT_EQ(sharded.grad_norms, one_piece.grad_norms);
    for (const auto& [name, value] : one_piece.parameters)
      EXPECT_TRUE(value.equal(sharded.parameters.at(name))) << name;
    const Difference far = compare(alone, sharded);
    EXPECT_LT(std::max({far.loss, far.gradient, far.step}), 1e-10);  // fp64 sums in another order
  }
}

class ShardedRuns : public testing::TestWithParam<const char*> {
 protected:
  // Refreshes, evaluations and checkpoints; as the parameter says, with a lag or of some documents
  // alone.
  RunConfig config() const {
    RunConfig c = reading(world_);
    c.train.steps = 6;
    c.eval.every = 2;
    c.eval.examples = 4;
    c.checkpoint.every = 3;
    c.retriever.refresh_every = 2;
    if (std::string(GetParam()) == "lag") c.retriever.refresh_lag = 2;
    if (std::string(GetParam()) == "partial") {
      c.retriever.refresh_every = 4;
      c.retriever.partial_every = 1;
      c.retriever.partial_documents = 5;
    }
    return c;
  }
  RunConfig in(const char* run, const std::array<int, 3>& layout) const {
    RunConfig c = laid(config(), layout);
    c.run.dir = (fs::path(world_.path()) / run).string();
    return c;
  }
  TinyWorld world_;
};

TEST_P(ShardedRuns, RefreshMeasureEvaluateAndSaveAsInOnePiece) {
  for (const auto& layout : {std::array{3, 1, 1}, std::array{2, 2, 1}}) {
    const RunConfig sharded = in(layout[1] == 1 ? "a" : "b", layout);
    RunConfig whole = in(layout[1] == 1 ? "c" : "d", layout);
    whole.retriever.sharded = false;
    train_on_threads(sharded, false);
    train_on_threads(whole, false);
    EXPECT_EQ(records(sharded.run.dir), records(whole.run.dir));
    parallel::NamedTensors pieces = retriever_of(sharded, 3);
    EXPECT_TRUE(pieces.contains("vectors@0") && !pieces.contains("vectors"));
    parallel::join_pieces(pieces);
    const parallel::NamedTensors want = retriever_of(whole, 3);
    for (const auto& [name, tensor] : want) {
      ASSERT_TRUE(pieces.contains(name)) << name;
      EXPECT_TRUE(pieces.at(name).equal(tensor)) << name;
    }
    EXPECT_EQ(want.contains("pending"), std::string(GetParam()) == "lag");
  }
}

TEST_P(ShardedRuns, AnyNumberOfRanksGoesOnFromAnyOther) {
  const std::array<int, 3> layouts[] = {{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {2, 2, 1}};
  RunConfig unbroken = in("unbroken", layouts[0]);
  train_on_threads(unbroken, false);
  const std::vector<Json> want = records(unbroken.run.dir);
  for (size_t from = 0; from < std::size(layouts); ++from) {
    RunConfig half = in(from == 0   ? "half0"
                        : from == 1 ? "half1"
                        : from == 2 ? "half2"
                                    : "half3",
                        layouts[from]);
    half.data.tokenizer = unbroken.run.dir + "/tokenizer.model";
    half.train.stop_at = 3;
    train_on_threads(half, false);
    for (size_t to = 0; to < std::size(layouts); ++to) {
      SCOPED_TRACE(concat("layout ", from, " to ", to));
      RunConfig rest = in("rest", layouts[to]);
      rest.data.tokenizer = half.data.tokenizer;
      fs::remove_all(rest.run.dir);
      fs::copy(half.run.dir, rest.run.dir, fs::copy_options::recursive);
      train_on_threads(rest, true);
      expect_same_steps(records(rest.run.dir), want);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Refreshes, ShardedRuns, testing::Values("whole", "lag", "partial"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ShardedIndex, OfACompressingFactoryIsSavedAsTheVectorsItWasMadeFrom) {
  const TinyWorld world;
  RunConfig config = laid(reading(world), {3, 1, 1});
  config.retriever.factory = "SQ8";
  config.train.steps = 2;
  config.checkpoint.every = 1;
  config.retriever.refresh_every = 2;
  train_on_threads(config, false);
  parallel::NamedTensors pieces = retriever_of(config, 1);
  EXPECT_EQ(pieces.size(), 3u);
  parallel::join_pieces(pieces);
  RunConfig exact = config;
  exact.run.dir += "-flat";
  exact.retriever.factory = "Flat";
  train_on_threads(exact, false);
  parallel::NamedTensors want = retriever_of(exact, 1);
  parallel::join_pieces(want);
  EXPECT_TRUE(pieces.at("vectors").equal(want.at("vectors")))
      << "of the first weights, by either factory";
}

// A run of two steps over two ranks, to be resumed with a corpus that has changed since.
class ChangedCorpus : public testing::Test {
 protected:
  ChangedCorpus() : config_(laid(reading(world_), {2, 1, 1})) {
    config_.data.identity_probability = 0.0;  // which would be warned of, too
    config_.train.steps = 2;
    config_.checkpoint.every = 2;
    train_on_threads(config_, false);
    std::ifstream file(corpus_file());
    for (std::string line; std::getline(file, line);) lines_.push_back(parse_json(line, "corpus"));
    config_.train.steps = 3;
  }

  // What is logged meanwhile.
  std::string resume() {
    std::string text;
    for (const Json& line : lines_) text += line.dump() + "\n";
    write_file_atomic(corpus_file(), text);
    const fs::path log = world_.path() + "/log.txt";
    log::add_file(log);
    try {
      train_on_threads(config_, true);
    } catch (...) {
      log::remove_file();
      throw;
    }
    log::remove_file();
    return read_file(log);
  }

  void expect_refused(const std::string& part) {
    try {
      resume();
      FAIL() << "it went on";
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  fs::path corpus_file() const { return world_.path() + "/corpus.jsonl"; }

  const TinyWorld world_;
  RunConfig config_;
  std::vector<Json> lines_;
};

bool warns(const std::string& log) { return log.find(" W ") != std::string::npos; }

TEST_F(ChangedCorpus, TheSameCorpusIsResumedWithoutAWord) { EXPECT_FALSE(warns(resume())); }

TEST_F(ChangedCorpus, ACheckpointOfAnotherNumberOfDocumentsIsRefused) {
  lines_.push_back({{"id", "place:new"}, {"title", "New"}, {"text", "More."}});
  expect_refused("vectors of 12 documents, data.corpus has 13");
}

TEST_F(ChangedCorpus, ACheckpointOfAnotherCorpusIsRefused) {
  lines_.back()["id"] = "place:new";
  expect_refused("the ids differ");
}

TEST_F(ChangedCorpus, ACheckpointOfTheSameDocumentsInAnotherOrderIsRefused) {
  std::swap(lines_[2], lines_[3]);
  expect_refused("in another order");
}

TEST_F(ChangedCorpus, AnEditedTextIsResumedWithAWarning) {
  lines_.back()["text"] = "Somebody has drawn it since.";
  const std::string log = resume();
  EXPECT_TRUE(warns(log)) << log;
  EXPECT_NE(log.find("found by what they said before"), std::string::npos) << log;
}

TEST_F(ChangedCorpus, ACheckpointThatDoesNotSayIsResumedWithAWarning) {
  const fs::path folder = fs::path(config_.run.dir) / "checkpoints";
  parallel::Checkpoint checkpoint = parallel::load_checkpoint(parallel::checkpoint_path(folder, 2));
  ASSERT_EQ(checkpoint.state["retriever"].erase("corpus"), 1u);
  fs::remove_all(folder);
  make_folders(folder);
  parallel::save_checkpoint(folder, checkpoint);
  const std::string log = resume();
  EXPECT_NE(log.find("does not say which documents"), std::string::npos) << log;
}

}  // namespace
}  // namespace contexture::train
