// What a run's data say of documents that its examples share.
#include "train/distinct.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/config.h"
#include "core/files.h"
#include "tiny_world.h"

namespace contexture::train {
namespace {

TEST(DistinctOfData, CountsTheGoldDocumentsOfTheFirstSteps) {
  const TinyWorld world;
  RunConfig config = world.config();
  // Two questions about each of eight documents, which come as one group: of a step's eight slots
  // four are different. An epoch is two steps, so that no document comes twice in one.
  const auto grouped = distinct_of_data(config);
  ASSERT_TRUE(grouped);
  EXPECT_DOUBLE_EQ(grouped->ratio, 0.5);
  EXPECT_NE(grouped->source.find("an estimate from the gold documents of the first 20 steps"),
            std::string::npos)
      << grouped->source;
  config.data.group_size = 1;
  config.train.batch_size = 16;  // all examples
  EXPECT_DOUBLE_EQ(distinct_of_data(config)->ratio, 0.5);
  config.data.train[0].types = {"code"};  // one question about each, the set twice a step
  EXPECT_DOUBLE_EQ(distinct_of_data(config)->ratio, 0.5);
  config.train.batch_size = 8;
  EXPECT_DOUBLE_EQ(distinct_of_data(config)->ratio, 1.0);
}

TEST(DistinctOfData, PrefersWhatARunOfOneReplicaCounted) {
  const TinyWorld world;
  RunConfig config = world.config();
  const std::filesystem::path run = config.run.dir;
  make_folders(run);
  write_file_atomic(run / "metrics.jsonl",
                    "{\"step\":1,\"slots\":10,\"distinct_documents\":4}\n{\"step\":1,\"dev\":0.5}\n"
                    "{\"step\":2,\"slots\":10,\"distinct_documents\":2}\n");
  config.parallel.dp = 1;
  write_file_atomic(run / "config.resolved.json", to_json(config).dump());
  const auto counted = distinct_of_data(config);
  ASSERT_TRUE(counted);
  EXPECT_DOUBLE_EQ(counted->ratio, 0.3);
  EXPECT_EQ(counted->source, "2 steps of the run in " + run.string());
  config.parallel.dp = 2;  // replicas count what they both read twice
  write_file_atomic(run / "config.resolved.json", to_json(config).dump());
  EXPECT_DOUBLE_EQ(distinct_of_data(config)->ratio, 0.5);
}

TEST(DistinctOfData, SaysNothingWithoutData) {
  const TinyWorld world;
  RunConfig config = world.config();
  config.data.train[0].path = "elsewhere.jsonl";
  EXPECT_FALSE(distinct_of_data(config));
}

}  // namespace
}  // namespace contexture::train
