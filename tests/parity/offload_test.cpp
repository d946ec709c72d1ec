// Optimizer state that lies elsewhere: the same numbers, bit for bit, and memory that is free for
// other things.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "allocations.h"
#include "core/error.h"
#include "layouts.h"
#include "train/trainer.h"

namespace contexture::train {
namespace {

std::string read_losses(const RunConfig& config) {
  std::ifstream file(config.run.dir + "/metrics.jsonl");
  std::string out;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    if (record.contains("loss"))
      out +=
          Json{record["step"], record["loss"], record["contrastive"], record["grad_norm"]}.dump() +
          "\n";
  }
  return out;
}

TEST(Offload, GivesTheSameBitsInOneProcessAndInMany) {
  for (const char* precision : {"fp32", "bf16", "fp64"}) {
    const TinyWorld world;
    RunConfig config = tiny(world, precision);
    config.train.steps = 6;
    config.checkpoint.every = 3;
    config.optimizer.groups = {{"decoder.", 0.5, 2.0, false}, {"embed.patch", 1.0, 1.0, true}};
    const auto run = [&](const std::string& name, const std::string& offload, int64_t replicas,
                         int64_t zero) {
      RunConfig c = config;
      c.run.dir = world.path() + "/" + name;
      c.parallel.offload = offload;
      c.parallel.dp = replicas;
      c.parallel.zero = zero;
      for (const int64_t stop : {3, 6}) {  // from a checkpoint, too
        c.train.stop_at = stop;
        on_threads(c.parallel,
                   [&](const parallel::Groups& groups) { Trainer(c, stop > 3, groups).run(); });
      }
      return read_losses(c);
    };
    const std::string plain = run("plain", "device", 1, 0), spread = run("spread", "device", 2, 1);
    EXPECT_EQ(std::count(plain.begin(), plain.end(), '\n'), 6);
    EXPECT_EQ(run("host", "host", 1, 0), plain) << precision;
    EXPECT_EQ(run("file", world.path(), 1, 0), plain) << precision;
    EXPECT_EQ(run("spread-file", world.path(), 2, 1), spread) << precision;
    for (const auto& entry : std::filesystem::directory_iterator(world.path()))
      EXPECT_EQ(entry.path().filename().string().rfind("optimizer-", 0), std::string::npos)
          << entry.path();
  }
}

TEST(Offload, AFileFreesMomentsAndMasters) {
  const TinyWorld world;
  for (const char* precision : {"fp32", "bf16"}) {
    RunConfig config = world.config(precision);
    data::BadRecords bad;
    Session session(config, bad);
    const auto allocated = [&](const std::string& offload) {
      const CountAllocations count;
      AdamW optimizer(config.optimizer, session.engine(), offload);
      return count->live.load();
    };
    const int64_t numbers = session.model().parameters().num_elements();
    const int64_t freed = allocated("device") - allocated(world.path());
    EXPECT_EQ(freed, (std::string(precision) == "bf16" ? 12 : 8) * numbers) << precision;
  }
}

TEST(Offload, RefusesAFolderThatIsNot) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.parallel.offload = world.path() + "/nowhere";
  EXPECT_THROW(config.validate(), UsageError);
}

}  // namespace
}  // namespace contexture::train
