#include <ATen/ATen.h>

#include <cmath>
#include <iostream>
#include <optional>

#include "cli/bench.h"
#include "core/error.h"
#include "core/files.h"
#include "core/format.h"
#include "core/log.h"
#include "parallel/cluster.h"
#include "parallel/launch_env.h"
#include "parallel/link_timing.h"

namespace contexture::cli {
namespace {

struct Options {
  std::string cluster, output;
  int64_t largest_mb = 16, repeats = 20;
  bool json = false;
};

constexpr int64_t kSmallest = 256;  // bytes

// All ranks call it; the times are those of rank 0.
std::vector<parallel::MessageTime> ping_pong(parallel::Communicator& world, int peer,
                                             const Options& options) {
  std::vector<parallel::MessageTime> out;
  for (int64_t bytes = kSmallest; bytes <= options.largest_mb * 1024 * 1024; bytes *= 4) {
    world.barrier();  // ranks that have no part in it wait here
    if (world.rank() != 0 && world.rank() != peer) continue;
    out.push_back(
        {static_cast<double>(bytes), parallel::one_way_s(world, 0, peer, bytes, options.repeats)});
  }
  return out;
}

Json describe(const parallel::Link& link, const std::vector<parallel::MessageTime>& times) {
  double worst = 0.0;
  Json measured = Json::array();
  for (const auto& [bytes, seconds] : times) {
    worst = std::max(worst, std::abs(link.seconds(bytes) / seconds - 1));
    measured.push_back({{"bytes", bytes}, {"seconds", seconds}});
  }
  return {{"latency_us", link.latency_s * 1e6},
          {"gb_per_s", link.s_per_byte > 0 ? 1e-9 / link.s_per_byte : 0.0},
          {"largest_error", worst},
          {"measured", measured}};
}

void print(const char* which, const Json& link) {
  std::cout << format("{}: latency {:.1f} us, {:.3f} GB/s; the fit is off by {:.0f} % at most\n",
                      which, link["latency_us"].get<double>(), link["gb_per_s"].get<double>(),
                      100 * link["largest_error"].get<double>());
  for (const Json& m : link["measured"])
    std::cout << format("  {:>10.0f} bytes {:>12.1f} us\n", m["bytes"].get<double>(),
                        1e6 * m["seconds"].get<double>());
}

int run(const Options& options) {
  const parallel::LaunchEnv env = parallel::detect_launch(parallel::process_environment());
  const int size = env.rendezvous.size, per_node = std::max(1, env.local_size);
  CONTEXTURE_USAGE_REQUIRE(size > 1,
                           "bench links measures between ranks: contexture launch --nproc 2 -- "
                           "bench links, with --nnodes for the links across nodes.");
  CONTEXTURE_USAGE_REQUIRE(options.largest_mb >= 1 && options.repeats >= 1, "--largest-mb ",
                           options.largest_mb, " and --repeats ", options.repeats,
                           " must be at least 1.");
  if (env.rendezvous.rank != 0) log::set_level(log::Level::warn);
  const auto world = parallel::connect(env.rendezvous, "gloo", 120.0);
  parallel::Cluster cluster = options.cluster.empty() ? parallel::default_cluster(1, 1)
                                                      : parallel::read_cluster(options.cluster);
  cluster.nodes = size / per_node;
  cluster.gpus_per_node = per_node;
  if (options.cluster.empty())
    cluster.name = format("measured, {} x {}", cluster.nodes, cluster.gpus_per_node);
  Json out = Json::object();
  const auto measure = [&](const char* name, int peer, parallel::Link& link) {
    const std::vector<parallel::MessageTime> times = ping_pong(*world, peer, options);
    if (world->rank() != 0) return;
    link = parallel::fit_link(times);
    CONTEXTURE_REQUIRE(link.s_per_byte > 0.0, "messages of ", kSmallest,
                       " bytes take as long as those of ", options.largest_mb,
                       " MB: no bandwidth can be told. Raise --largest-mb");
    out[name] = describe(link, times);
  };
  if (per_node > 1) measure("inside", 1, cluster.inside);
  if (cluster.nodes > 1) measure("across", per_node, cluster.across);
  world->barrier();
  if (world->rank() != 0) return 0;
  if (!options.output.empty())
    write_file_atomic(options.output, parallel::to_json(cluster).dump(1) + "\n");
  out["cluster"] = parallel::to_json(cluster);
  if (options.json) {
    print_json(out);
    return 0;
  }
  for (const char* name : {"inside", "across"}) {
    if (out.contains(name)) print(name, out[name]);
  }
  if (!options.output.empty())
    std::cout << "written to " << options.output
              << (options.cluster.empty() ? " with the GPUs and prices of contexture plan's "
                                            "default: set them, or start from a file with --cluster"
                                          : "")
              << "\n";
  return 0;
}

}  // namespace

Command bench_links_command(CLI::App& group) {
  auto options = std::make_shared<Options>();
  CLI::App* app =
      group.add_subcommand("links",
                           "Latency and bandwidth between ranks, inside a node and across: "
                           "contexture launch --nproc 2 -- bench links --output cluster.json");
  app->add_option("--cluster", options->cluster,
                  "cluster file to take GPUs and prices from (docs/formats/cluster.md)");
  app->add_option("--output", options->output,
                  "write a cluster file with the measured links, for contexture plan");
  app->add_option("--largest-mb", options->largest_mb, "largest message")->capture_default_str();
  app->add_option("--repeats", options->repeats, "round trips of each size; the median counts")
      ->capture_default_str();
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] { return run(*options); }};
}

}  // namespace contexture::cli
