// Ranks that only refresh the index: a run with them retrieves and trains what a run does whose
// refreshes are embedded on a thread of its one process.
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "parallel/board.h"
#include "parallel/row_pieces.h"
#include "runs.h"

namespace contexture::train {
namespace {
namespace fs = std::filesystem;

struct Layout {
  int64_t dp, pp, tp;
  int64_t zero;
  const char* schedule;
  int64_t refresh_ranks;
  bool sharded;
  bool exact;  // the documents' embeddings have the bits of one process
};
const Layout kLayouts[] = {
    {1, 1, 1, 0, "1f1b", 1, true, true},  {1, 1, 1, 0, "1f1b", 3, true, true},
    {2, 1, 1, 0, "1f1b", 1, true, true},  {2, 1, 1, 3, "1f1b", 2, false, true},
    {2, 2, 1, 1, "gpipe", 2, true, true}, {2, 2, 1, 0, "1f1b", 1, false, true},
    {1, 1, 2, 0, "1f1b", 2, true, false}, {2, 1, 2, 3, "1f1b", 5, true, false}};

std::string name_of(const Layout& l) {
  return concat(l.dp, "x", l.pp, "x", l.tp, "+", l.refresh_ranks, l.sharded ? "" : " whole");
}

class RefreshRanks : public testing::Test {
 protected:
  RunConfig config() const {
    RunConfig c = tiny(world_);
    c.retriever.gold = false;
    c.retriever.documents = 3;
    c.retriever.refresh_every = 2;
    c.retriever.refresh_lag = 2;
    c.train.steps = 7;
    c.eval.every = 4;
    c.eval.examples = 4;
    c.checkpoint.keep_last = 0;
    c.checkpoint.every = 3;   // in the middle of a refresh
    c.optimizer.rate = 0.02;  // so that two steps change what is retrieved
    return c;
  }
  RunConfig in(const std::string& run, const Layout& layout, bool with_ranks = true) const {
    RunConfig c = config();
    c.run.dir = (fs::path(world_.path()) / run).string();
    lay_out(c, layout);
    c.retriever.sharded = layout.sharded;
    if (with_ranks) c.retriever.refresh_ranks = layout.refresh_ranks;
    return c;
  }
  RunConfig on_a_thread() const {
    RunConfig c = config();
    c.run.dir = (fs::path(world_.path()) / "thread").string();
    return c;
  }
  TinyWorld world_;
};

TEST_F(RefreshRanks, TrainAsAThreadOfOneProcessDoes) {
  const RunConfig thread = on_a_thread();
  train_on_threads(thread, false);
  const std::vector<Json> want = records(thread.run.dir);
  const parallel::NamedTensors saved = retriever_of(thread, 3);
  ASSERT_TRUE(saved.contains("pending"));
  ASSERT_FALSE(saved.at("pending").equal(saved.at("vectors")));
  for (size_t l = 0; l < std::size(kLayouts); ++l) {
    const Layout& layout = kLayouts[l];
    SCOPED_TRACE(name_of(layout));
    RunConfig apart = in(concat("apart-", l), layout);
    apart.data.tokenizer = thread.run.dir + "/tokenizer.model";
    train_on_threads(apart, false);
    expect_same_steps(records(apart.run.dir), want);
    if (layout.dp * layout.pp * layout.tp == 1) {
      EXPECT_EQ(records(apart.run.dir), want);
    }
    RunConfig together = in(concat("together-", l), layout, /*with_ranks=*/false);
    together.data.tokenizer = apart.data.tokenizer;
    train_on_threads(together, false);
    if (layout.exact) {
      EXPECT_EQ(records(apart.run.dir), records(together.run.dir)) << "embedded at its start";
    }
    parallel::NamedTensors pieces = retriever_of(apart, 3);
    parallel::join_pieces(pieces);
    for (const char* name : {"vectors", "pending"}) {
      ASSERT_TRUE(pieces.contains(name)) << name;
      EXPECT_LT((pieces.at(name) - saved.at(name)).abs().max().item<double>(), 1e-6) << name;
    }
  }
}

TEST_F(RefreshRanks, ARunThatStopsInTheMiddleOfARefreshGoesOn) {
  const RunConfig thread = on_a_thread();
  train_on_threads(thread, false);
  const std::vector<Json> want = records(thread.run.dir);
  const auto start = [&](const RunConfig& from) {
    RunConfig half = from;
    half.data.tokenizer = thread.run.dir + "/tokenizer.model";
    half.train.stop_at = 3;
    train_on_threads(half, false);
    return half.run.dir;
  };
  const Layout &one = kLayouts[0], &four = kLayouts[4];
  const std::string from_one = start(in("from-one", one)), from_four = start(in("from-four", four)),
                    from_thread = start(in("from-thread", one, /*with_ranks=*/false));
  int runs = 0;
  for (const auto& [from, layout, with_ranks] :
       {std::tuple{from_one, one, true}, std::tuple{from_one, one, false},
        std::tuple{from_four, four, true}, std::tuple{from_four, one, true},
        std::tuple{from_thread, four, true}}) {
    SCOPED_TRACE(concat(from, " to ", name_of(layout), with_ranks ? "" : " without"));
    RunConfig rest = in(concat("rest-", ++runs), layout, with_ranks);
    rest.data.tokenizer = thread.run.dir + "/tokenizer.model";
    fs::copy(from, rest.run.dir, fs::copy_options::recursive);
    train_on_threads(rest, true);
    expect_same_steps(records(rest.run.dir), want);
  }
}

// They get the encoder of documents and nothing else, and nobody else embeds for a refresh.
TEST_F(RefreshRanks, HoldTheEncoderOfDocumentsAndEmbedAlone) {
  RunConfig c = in("run", kLayouts[2]);
  c.model.towers = "separate";
  std::mutex mutex;
  int64_t weights = 0, vectors = 0;
  on_threads(
      c.parallel,
      [&](const parallel::Groups& groups) {
        if (groups.refreshes()) {
          serve_refreshes(c, groups);
          return;
        }
        Trainer trainer(c, false, groups);
        const int64_t rows = trainer.session().retriever().index().size();
        trainer.run();
        const std::lock_guard lock(mutex);
        const int64_t width = c.model.embedding_width, refreshes = 3;
        EXPECT_EQ(groups.all->traffic().at("receive").bytes, refreshes * rows * width * 4);
        vectors += rows;
        if (!groups.office) return;
        for (const parallel::Parameter* p :
             retriever::document_parameters(trainer.session().model())) {
          EXPECT_EQ(p->name.find("query_encoder"), std::string::npos) << p->name;
          EXPECT_EQ(p->name.find("decoder"), std::string::npos) << p->name;
          weights += p->numel();
        }
        EXPECT_EQ(groups.office->traffic().at("broadcast").bytes, refreshes * weights * 8);
      },
      1);
  EXPECT_EQ(vectors, 12);
  EXPECT_GT(weights, 0);
}

TEST_F(RefreshRanks, OneThatFallsSilentEndsTheRun) {
  RunConfig c = in("run", kLayouts[2]);
  c.train.steps = 100000;
  c.eval.every = c.checkpoint.every = 0;
  c.retriever.refresh_every = 90000;  // nobody asks it for anything meanwhile
  c.parallel.timeout_s = 5;
  const auto train = [&] {
    on_threads(
        c.parallel,
        [&](const parallel::Groups& groups) {
          if (!groups.refreshes()) {
            Trainer(c, false, groups).run();
            return;
          }
          groups.all->barrier();  // for the tokenizer
          groups.all->barrier();  // ready
          for (;;) {              // until the others fail
            parallel::read(*groups.all, "nothing");
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
          }
        },
        1);
  };
  try {
    train();
    FAIL() << "it went on";
  } catch (const DistributedError& error) {
    EXPECT_NE(
        std::string(error.what()).find("rank 2, which refreshes the index, has shown no life"),
        std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace contexture::train
