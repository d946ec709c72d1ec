#include "parallel/cluster.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/error.h"
#include "core/json.h"
#include "expect_error.h"

namespace contexture::parallel {
namespace {

const char kText[] = R"({"name": "lab", "nodes": 2, "gpus_per_node": 4,
  "gpu": {"memory_gb": 80, "peak_tflops": {"bf16": 312, "fp32": 19.5}, "efficiency": 0.5},
  "links": {"inside": {"latency_us": 3, "gb_per_s": 300}, "across": {"latency_us": 10, "gb_per_s": 25}},
  "usd_per_gpu_hour": 2, "spot": {"usd_per_gpu_hour": 0.8, "interruptions_per_hour": 0.1}, "host": {"gb_per_s": 20}})";

TEST(Cluster, ReadsWhatItWrites) {
  const Cluster cluster = cluster_from_json(parse_json(kText, "lab.json"), "lab.json");
  EXPECT_EQ(cluster.num_gpus(), 8);
  EXPECT_EQ(cluster.memory_bytes, 80e9);
  EXPECT_EQ(cluster.peak("bf16"), 312e12);
  EXPECT_EQ(cluster.host_bytes_per_s, 20e9);
  EXPECT_EQ(cluster.between(0, 3), cluster.inside);
  EXPECT_EQ(cluster.between(3, 4), cluster.across);
  EXPECT_DOUBLE_EQ(cluster.across.seconds(25e9), 1.00001);
  EXPECT_EQ(to_json(cluster_from_json(to_json(cluster), "again")), to_json(cluster));
  EXPECT_EQ(message_of<UsageError>([&] { cluster.peak("fp16"); }),
            "cluster 'lab' states no peak for fp16 (it has: bf16, fp32). Add gpu.peak_tflops.fp16 "
            "to the cluster file");
}

std::string refusal(const std::function<void(Json&)>& damage) {
  Json json = parse_json(kText, "lab.json");
  damage(json);
  return message_of<DataError>([&] { cluster_from_json(json, "lab.json"); });
}

TEST(Cluster, RefusesNonsenseByName) {
  EXPECT_EQ(refusal([](Json& json) { json["gpu"]["memory_gb"] = 0; }),
            "lab.json: gpu: memory_gb is 0, but must be positive");
  EXPECT_EQ(refusal([](Json& json) { json["gpus"] = 4; }).substr(0, 34),
            "lab.json: unknown key 'gpus'. Did ");
  EXPECT_EQ(refusal([](Json& json) { json["links"].erase("across"); }),
            "lab.json: links: 'across' is missing");
  EXPECT_EQ(refusal([](Json& json) { json["links"]["inside"]["gb_per_s"] = -3; }),
            "lab.json: links.inside: gb_per_s is -3, but must be positive");
  EXPECT_EQ(refusal([](Json& json) { json["nodes"] = 0; }),
            "lab.json: nodes (0) and gpus_per_node (4) must be at least 1");
  EXPECT_EQ(refusal([](Json& json) { json["gpu"]["efficiency"] = 1.2; }),
            "lab.json: gpu: efficiency is 1.2, but is a share of the peak");
  EXPECT_NE(refusal([](Json& json) { json["gpu"] = 5; }), "no error");
}

TEST(Cluster, HasADefaultForNodesAndGpusAlone) {
  const Cluster cluster = default_cluster(16, 8);
  EXPECT_EQ(cluster.num_gpus(), 128);
  EXPECT_GT(cluster.inside.s_per_byte, 0);
  EXPECT_LT(cluster.inside.s_per_byte, cluster.across.s_per_byte);
  EXPECT_THROW(default_cluster(0, 8), UsageError);
}

TEST(FitLink, FindsTheLinkThatMadeTheTimes) {
  const Link link{.latency_s = 5e-6, .s_per_byte = 1 / 25e9};
  std::vector<MessageTime> times;
  for (double bytes = 64; bytes < 1e8; bytes *= 4) times.push_back({bytes, link.seconds(bytes)});
  const Link found = fit_link(times);
  EXPECT_NEAR(found.latency_s, link.latency_s, 1e-9 * link.latency_s);  // double rounding
  EXPECT_NEAR(found.s_per_byte, link.s_per_byte, 1e-9 * link.s_per_byte);
}

TEST(FitLink, NeverMakesANegativePart) {
  const Link no_latency = fit_link({{1e3, 0.5e-6}, {1e6, 1e-3}, {1e7, 1e-2}});
  EXPECT_EQ(no_latency.latency_s, 0.0);
  EXPECT_GT(no_latency.s_per_byte, 0.0);
  const Link no_slope = fit_link({{1e3, 2e-3}, {1e6, 1e-3}});
  EXPECT_EQ(no_slope.s_per_byte, 0.0);
  EXPECT_GT(no_slope.latency_s, 0.0);
  EXPECT_EQ(message_of<UserError>([] {
              fit_link({{1e3, 1e-3}, {1e3, 2e-3}});
            }),
            "a link's latency and bandwidth need messages of two sizes at least, not 2 of one");
}

}  // namespace
}  // namespace contexture::parallel
