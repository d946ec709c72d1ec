// A checkpoint of any layout goes on in any other: with equal losses, bit for bit in the same one.
#include <gtest/gtest.h>

#include "runs.h"

namespace contexture::train {
namespace {
namespace fs = std::filesystem;

// Text of every step's figures, as the metrics file has them.
std::vector<std::string> figures(const fs::path& run) {
  std::vector<std::string> out;
  for (const Json& record : records(run)) {
    if (record.contains("loss"))
      out.push_back(Json{record["loss"], record["contrastive"], record["grad_norm"]}.dump());
  }
  return out;
}

void expect_near(const std::vector<std::string>& got, const std::vector<std::string>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t s = 0; s < got.size(); ++s) {
    const Json a = Json::parse(got[s]), b = Json::parse(want[s]);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(a[i].get<double>(), b[i].get<double>(), 1e-10 * std::abs(b[i].get<double>()))
          << "step " << s + 1;  // fp64 sums in another order
    }
  }
}

struct Layout {
  int64_t dp, pp, tp;
  const char* schedule;
  int64_t zero;
  const char* shared;
};
const Layout kLayouts[] = {{1, 1, 1, "1f1b", 0, "replicate"},  {2, 1, 1, "1f1b", 1, "replicate"},
                           {4, 1, 1, "1f1b", 3, "replicate"},  {1, 2, 1, "zb_h1", 0, "replicate"},
                           {1, 4, 1, "list", 0, "colocate"},   {1, 1, 2, "1f1b", 0, "replicate"},
                           {2, 2, 1, "gpipe", 2, "replicate"}, {2, 1, 2, "1f1b", 1, "replicate"}};

TEST(Reshard, EveryLayoutContinuesFromEveryOther) {
  const TinyWorld world;
  RunConfig config = tiny(world);
  config.model.dropout = 0.1;
  config.train.steps = 6;
  config.retriever.refresh_every = 2;
  config.retriever.refresh_lag = 2;  // one is under way when the first half ends
  config.eval.every = 4;
  config.eval.examples = 4;
  config.checkpoint.every = 3;
  train_on_threads(config, false);
  const std::vector<std::string> whole = figures(config.run.dir);
  config.data.tokenizer = config.run.dir + "/tokenizer.model";
  const auto in_layout = [&](const Layout& layout, const fs::path& run) {
    RunConfig c = config;
    c.run.dir = run.string();
    lay_out(c, layout);
    c.parallel.shared = layout.shared;
    c.parallel.microbatches = 2;
    return c;
  };
  for (size_t from = 0; from < std::size(kLayouts); ++from) {
    const fs::path start = fs::path(world.path()) / concat("from-", from);
    RunConfig half = in_layout(kLayouts[from], start);
    half.train.stop_at = 3;
    train_on_threads(half, false);
    std::vector<std::string> unbroken;
    for (size_t to = 0; to < std::size(kLayouts); ++to) {
      SCOPED_TRACE(concat("layout ", from, " to ", to));
      const fs::path run = fs::path(world.path()) / concat("from-", from, "-to-", to);
      fs::copy(start, run, fs::copy_options::recursive);
      train_on_threads(in_layout(kLayouts[to], run), true);
      expect_near(figures(run), whole);
      if (from != to) continue;
      const fs::path once = fs::path(world.path()) / concat("once-", from);
      train_on_threads(in_layout(kLayouts[from], once), false);
      EXPECT_EQ(figures(run), figures(once)) << "the same layout must continue bit for bit";
    }
  }
}

}  // namespace
}  // namespace contexture::train
