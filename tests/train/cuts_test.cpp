// A run's settings reach the partitioner, and what it cuts keeps to them.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/files.h"
#include "expect_error.h"
#include "parallel/cluster.h"
#include "tiny_world.h"
#include "train/model_trace.h"
#include "train/planning.h"

namespace contexture::train {
namespace {

parallel::Trace timed_trace(const RunConfig& config) {
  parallel::Trace trace = trace_model(config, model::Model(config.model));
  parallel::set_times(trace, 1e9);
  return trace;
}

double fullest(const parallel::Plan& plan) {
  return *std::max_element(plan.device_memory.begin(), plan.device_memory.end());
}

std::string cluster_file(const TempDir& folder, double memory_gb, double across_bytes_per_s) {
  parallel::Cluster cluster = parallel::default_cluster(4, 1);
  cluster.memory_bytes = 1e9 * memory_gb;
  cluster.across = {1e-4, 1.0 / across_bytes_per_s};
  const std::string path = (folder.path() / "cluster.json").string();
  write_file_atomic(path, parallel::to_json(cluster).dump());
  return path;
}

TEST(Cuts, TakeEverySettingThatThePartitionerKnows) {
  const TinyWorld world;
  RunConfig config = world.config("bf16");
  config.parallel.dp = 2;
  config.parallel.zero = 1;
  config.parallel.microbatches = 3;
  config.parallel.optimize = "memory";
  config.parallel.memory_weight = 0.4;
  config.parallel.memory_gb = 0.5;
  parallel::PartitionOptions options = partition_options(config, "exact", 2, /*documents=*/1000);
  EXPECT_EQ(options.optimize, parallel::Optimize::kMemory);
  EXPECT_EQ(options.memory_weight, 0.4);
  EXPECT_EQ(options.memory_caps, std::vector<double>{0.5e9});
  // Of a parameter 2 bytes of weight, 4 of gradient, and of master and two moments half of 12.
  EXPECT_DOUBLE_EQ(options.state_factor, (2 + 4 + 6) / 2.0);
  EXPECT_DOUBLE_EQ(options.gradient_factor, 2.0);
  const double index =
      1000 * index_bytes_per_vector(config.retriever.factory, config.model.retrieval_width());
  EXPECT_EQ(options.device_bytes, (std::vector<double>{index / 4, index / 4}));
  config.retriever.sharded = false;
  config.parallel.offload = "host";
  config.parallel.schedule = "gpipe";
  options = partition_options(config, "exact", 2, 1000);
  EXPECT_EQ(options.device_bytes, (std::vector<double>{index, 0.0}));
  EXPECT_DOUBLE_EQ(options.state_factor, (2 + 4) / 2.0);
  EXPECT_EQ(options.in_flight, (std::vector<int>{3, 3}));
}

TEST(Cuts, KeepToNineTenthsOfTheClustersMemoryUnlessTold) {
  const TinyWorld world;
  const TempDir folder;
  RunConfig config = world.config("fp32");
  EXPECT_TRUE(partition_options(config, "exact", 2, 0).memory_caps.empty());
  config.parallel.cluster = cluster_file(folder, 40, 1e9);
  EXPECT_DOUBLE_EQ(partition_options(config, "exact", 2, 0).memory_caps.at(0), 36e9);
  config.parallel.memory_gb = 3;
  EXPECT_EQ(partition_options(config, "exact", 2, 0).memory_caps, std::vector<double>{3e9});
}

TEST(Cuts, MakeTheFullestDeviceSmallWhereMemoryIsAsked) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.parallel.microbatches = 4;
  const parallel::Trace trace = timed_trace(config);
  const parallel::Plan fast = partition_for(config, trace, "exact", 3);
  config.parallel.optimize = "memory";
  const parallel::Plan small = partition_for(config, trace, "exact", 3);
  EXPECT_LT(fullest(small), fullest(fast));
  EXPECT_GE(small.objective, fast.objective);
  config.parallel.optimize = "speed";
  config.parallel.memory_gb = (fullest(small) + 1) / 1e9;
  const parallel::Plan capped = partition_for(config, trace, "exact", 3);
  EXPECT_LE(fullest(capped), 1e9 * config.parallel.memory_gb);
  EXPECT_GE(capped.objective, fast.objective);
}

TEST(Cuts, SayWhatWouldFitWhereNothingDoes) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  const parallel::Trace trace = timed_trace(config);
  config.parallel.optimize = "memory";
  const double least = fullest(partition_for(config, trace, "exact", 2));
  config.parallel.memory_gb = 0.9 * least / 1e9;
  const std::string message =
      message_of<UserError>([&] { partition_for(config, trace, "exact", 2); });
  EXPECT_NE(message.find("no cut into 2 stages keeps"), std::string::npos) << message;
  EXPECT_NE(message.find("stages would"), std::string::npos) << message;
  EXPECT_NE(message.find("With 2 stages a device needs"), std::string::npos) << message;
  const std::string tree = message_of<UserError>([&] { partition_for(config, trace, "tree", 2); });
  EXPECT_NE(tree.find("knows no limit of memory"), std::string::npos) << tree;
}

// The index of a replica lies on its first rank, or in shares on all ranks.
TEST(Cuts, CountTheIndexAsMemory) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.retriever.sharded = false;
  config.parallel.dp = 1;
  const parallel::Trace trace = timed_trace(config);
  constexpr int64_t kDocuments = 20000;
  const double index =
      kDocuments * index_bytes_per_vector(config.retriever.factory, config.model.retrieval_width());
  const parallel::Plan without = partition_for(config, trace, "exact", 2);
  const parallel::Plan with = partition_for(config, trace, "exact", 2, kDocuments);
  EXPECT_EQ(with.stage_of_block, without.stage_of_block);  // there is room for it
  EXPECT_DOUBLE_EQ(with.device_memory[0], without.device_memory[0] + index);
  EXPECT_EQ(with.device_memory[1], without.device_memory[1]);
  // Where memory is what counts, blocks make way for it.
  config.parallel.optimize = "memory";
  const parallel::Plan level = partition_for(config, trace, "exact", 2);
  const parallel::Plan balanced = partition_for(config, trace, "exact", 2, kDocuments);
  EXPECT_LT(balanced.device_memory[0] - index, level.device_memory[0]);
  EXPECT_LE(fullest(balanced), fullest(with));
  config.retriever.sharded = true;
  config.parallel.optimize = "speed";
  const parallel::Plan shared = partition_for(config, trace, "exact", 2, kDocuments);
  for (const int d : {0, 1})
    EXPECT_DOUBLE_EQ(shared.device_memory[d], without.device_memory[d] + index / 2);
}

TEST(Cuts, WeighCopiesOfSharedParametersAgainstKeepingThemTogether) {
  const TinyWorld world;
  const TempDir folder;
  RunConfig config = world.config("fp32");
  config.parallel.schedule = "list";
  int differ = 0;
  for (const double bytes_per_s : {1e6, 1e8, 1e10}) {
    SCOPED_TRACE(bytes_per_s);
    config.parallel.cluster = cluster_file(folder, 40, bytes_per_s);
    const parallel::Trace trace = timed_trace(config);
    config.parallel.shared = "replicate";
    const parallel::Plan copies = partition_for(config, trace, "exact", 2);
    EXPECT_EQ(copies.replica_s, 0.0);  // taken as decided
    config.parallel.shared = "cheapest";
    const parallel::Plan cheapest = partition_for(config, trace, "exact", 2);
    const parallel::Plan priced =
        parallel::evaluate(trace, copies.stage_of_block, copies.device_of_stage,
                           partition_options(config, "exact", 2, 0));
    EXPECT_LE(cheapest.objective, priced.objective * (1 + 1e-12));
    EXPECT_TRUE(cheapest.is_exact);
    differ += cheapest.stage_of_block != copies.stage_of_block ? 1 : 0;
  }
  EXPECT_GT(differ, 0);  // on some link it matters
}

}  // namespace
}  // namespace contexture::train
