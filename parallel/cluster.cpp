#include "parallel/cluster.h"

#include <cmath>
#include <limits>
#include <vector>

#include "core/did_you_mean.h"
#include "core/error.h"
#include "core/json.h"

namespace contexture::parallel {
namespace {

void require_known_keys(const Json& json, const std::vector<std::string>& known,
                        const std::string& where) {
  CONTEXTURE_DATA_REQUIRE(json.is_object(), where, ": must be an object, not ", json_excerpt(json));
  for (const auto& [key, value] : json.items()) {
    bool found = false;
    for (const std::string& name : known) found = found || name == key;
    CONTEXTURE_DATA_REQUIRE(found, where, ": unknown key '", key, "'.",
                            did_you_mean_hint(key, known));
  }
}

// A number in [low, infinity); `low` itself only when allowed.
double number(const Json& json, const std::string& key, double fallback, bool zero_allowed,
              const std::string& where) {
  const double value = std::isnan(fallback) ? json_get<double>(json, key, where)
                                            : json_get_or<double>(json, key, fallback, where);
  CONTEXTURE_DATA_REQUIRE(std::isfinite(value) && (value > 0.0 || (zero_allowed && value == 0.0)),
                          where, ": ", key, " is ", value, ", but must be ",
                          zero_allowed ? "0 or more" : "positive");
  return value;
}
constexpr double kRequired = std::numeric_limits<double>::quiet_NaN();

const Json& member(const Json& json, const std::string& key, const std::string& where) {
  CONTEXTURE_DATA_REQUIRE(json.contains(key), where, ": '", key, "' is missing");
  return json[key];
}

Link link_from_json(const Json& json, const std::string& where) {
  require_known_keys(json, {"latency_us", "gb_per_s"}, where);
  return {.latency_s = number(json, "latency_us", 0.0, true, where) * 1e-6,
          .s_per_byte = 1e-9 / number(json, "gb_per_s", kRequired, false, where)};
}

Json link_to_json(const Link& link) {
  CONTEXTURE_INVARIANT(link.s_per_byte > 0.0, "a cluster's link has a bandwidth");
  return {{"latency_us", link.latency_s * 1e6}, {"gb_per_s", 1e-9 / link.s_per_byte}};
}

}  // namespace

double Cluster::peak(const std::string& dtype) const {
  const auto found = peak_flops_per_s.find(dtype);
  if (found != peak_flops_per_s.end()) return found->second;
  std::string known;
  for (const auto& [name, value] : peak_flops_per_s) known += (known.empty() ? "" : ", ") + name;
  throw UsageError(concat("cluster '", name, "' states no peak for ", dtype, " (it has: ", known,
                          "). Add gpu.peak_tflops.", dtype, " to the cluster file"));
}

Cluster cluster_from_json(const Json& json, const std::string& where) {
  require_known_keys(json,
                     {"name", "nodes", "gpus_per_node", "gpu", "links", "usd_per_gpu_hour", "spot",
                      "host", "storage"},
                     where);
  Cluster cluster;
  cluster.name = json_get_or<std::string>(json, "name", "cluster", where);
  cluster.nodes = json_get<int>(json, "nodes", where);
  cluster.gpus_per_node = json_get<int>(json, "gpus_per_node", where);
  CONTEXTURE_DATA_REQUIRE(cluster.nodes >= 1 && cluster.gpus_per_node >= 1, where, ": nodes (",
                          cluster.nodes, ") and gpus_per_node (", cluster.gpus_per_node,
                          ") must be at least 1");
  const Json& gpu = member(json, "gpu", where);
  const std::string in_gpu = where + ": gpu";
  require_known_keys(gpu, {"memory_gb", "peak_tflops", "efficiency"}, in_gpu);
  cluster.memory_bytes = number(gpu, "memory_gb", kRequired, false, in_gpu) * 1e9;
  cluster.efficiency = number(gpu, "efficiency", cluster.efficiency, false, in_gpu);
  CONTEXTURE_DATA_REQUIRE(cluster.efficiency <= 1.0, in_gpu, ": efficiency is ", cluster.efficiency,
                          ", but is a share of the peak");
  const Json& peaks = member(gpu, "peak_tflops", in_gpu);
  require_known_keys(peaks, {"bf16", "fp16", "fp32"}, in_gpu + ".peak_tflops");
  for (const auto& [dtype, value] : peaks.items()) {
    cluster.peak_flops_per_s[dtype] =
        number(peaks, dtype, kRequired, false, in_gpu + ".peak_tflops") * 1e12;
  }
  const Json& links = member(json, "links", where);
  require_known_keys(links, {"inside", "across"}, where + ": links");
  cluster.inside =
      link_from_json(member(links, "inside", where + ": links"), where + ": links.inside");
  cluster.across =
      cluster.nodes == 1 && !links.contains("across")
          ? cluster.inside
          : link_from_json(member(links, "across", where + ": links"), where + ": links.across");
  cluster.usd_per_gpu_hour = number(json, "usd_per_gpu_hour", 0.0, true, where);
  if (json.contains("spot")) {
    const Json& spot = json["spot"];
    require_known_keys(spot, {"usd_per_gpu_hour", "interruptions_per_hour"}, where + ": spot");
    cluster.spot_usd_per_gpu_hour =
        number(spot, "usd_per_gpu_hour", kRequired, false, where + ": spot");
    cluster.spot_interruptions_per_hour =
        number(spot, "interruptions_per_hour", 0.0, true, where + ": spot");
  }
  if (json.contains("host")) {
    require_known_keys(json["host"], {"gb_per_s"}, where + ": host");
    cluster.host_bytes_per_s =
        number(json["host"], "gb_per_s", kRequired, false, where + ": host") * 1e9;
  }
  if (json.contains("storage")) {
    const Json& storage = json["storage"];
    require_known_keys(storage, {"mb_per_s", "files_per_s"}, where + ": storage");
    cluster.storage_bytes_per_s = number(storage, "mb_per_s", 0.0, true, where + ": storage") * 1e6;
    cluster.storage_files_per_s = number(storage, "files_per_s", 0.0, true, where + ": storage");
  }
  return cluster;
}

Cluster read_cluster(const std::string& path) {
  return cluster_from_json(read_json_file(path), path);
}

Json to_json(const Cluster& cluster) {
  Json peaks = Json::object();
  for (const auto& [dtype, value] : cluster.peak_flops_per_s) peaks[dtype] = value / 1e12;
  Json json = {
      {"name", cluster.name},
      {"nodes", cluster.nodes},
      {"gpus_per_node", cluster.gpus_per_node},
      {"gpu",
       {{"memory_gb", cluster.memory_bytes / 1e9},
        {"peak_tflops", peaks},
        {"efficiency", cluster.efficiency}}},
      {"links",
       {{"inside", link_to_json(cluster.inside)}, {"across", link_to_json(cluster.across)}}},
      {"usd_per_gpu_hour", cluster.usd_per_gpu_hour}};
  if (cluster.spot_usd_per_gpu_hour > 0.0) {
    json["spot"] = {{"usd_per_gpu_hour", cluster.spot_usd_per_gpu_hour},
                    {"interruptions_per_hour", cluster.spot_interruptions_per_hour}};
  }
  if (cluster.host_bytes_per_s > 0.0) json["host"] = {{"gb_per_s", cluster.host_bytes_per_s / 1e9}};
  if (cluster.storage_bytes_per_s > 0.0 || cluster.storage_files_per_s > 0.0) {
    json["storage"] = {{"mb_per_s", cluster.storage_bytes_per_s / 1e6},
                       {"files_per_s", cluster.storage_files_per_s}};
  }
  return json;
}

Link fit_link(const std::vector<MessageTime>& measured) {
  // Minimises the sum of ((a + b x) / t - 1)^2: two normal equations in a and b.
  double aa = 0.0, ab = 0.0, bb = 0.0, a1 = 0.0, b1 = 0.0;
  for (const auto& [x, t] : measured) {
    CONTEXTURE_INVARIANT(t > 0.0 && x >= 0.0, "a message of ", x, " bytes took ", t, " s");
    aa += 1 / (t * t);
    ab += x / (t * t);
    bb += x * x / (t * t);
    a1 += 1 / t;
    b1 += x / t;
  }
  const double determinant = aa * bb - ab * ab;
  CONTEXTURE_REQUIRE(determinant > 1e-12 * aa * bb,
                     "a link's latency and bandwidth need messages of two sizes at least, not ",
                     measured.size(), " of one");
  const double latency = (a1 * bb - b1 * ab) / determinant,
               slope = (aa * b1 - ab * a1) / determinant;
  if (latency < 0.0) return {.latency_s = 0.0, .s_per_byte = b1 / bb};
  if (slope < 0.0) return {.latency_s = a1 / aa, .s_per_byte = 0.0};
  return {.latency_s = latency, .s_per_byte = slope};
}

Cluster default_cluster(int nodes, int gpus_per_node) {
  CONTEXTURE_USAGE_REQUIRE(nodes >= 1 && gpus_per_node >= 1, "--nodes ", nodes,
                           " and --gpus-per-node ", gpus_per_node, " must be at least 1");
  return {.name = concat(nodes, " x ", gpus_per_node),
          .nodes = nodes,
          .gpus_per_node = gpus_per_node,
          .memory_bytes = 80e9,
          .peak_flops_per_s = {{"bf16", 312e12}, {"fp16", 312e12}, {"fp32", 19.5e12}},
          .inside = {.latency_s = 3e-6, .s_per_byte = 1 / 300e9},
          .across = {.latency_s = 10e-6, .s_per_byte = 1 / 25e9}};
}

}  // namespace contexture::parallel
