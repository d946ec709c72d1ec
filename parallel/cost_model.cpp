#include "parallel/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/format.h"

namespace contexture::parallel {
namespace {

double ranks(int n) {
  CONTEXTURE_USAGE_REQUIRE(n >= 1, "a collective needs at least one rank, not ", n);
  return n;
}

double rounds(int n) { return std::log2(ranks(n)); }

// What a bandwidth-optimal half (reduce-scatter or all-gather) moves through each rank.
double half_bytes(int n, double bytes) { return (ranks(n) - 1) / n * bytes; }

}  // namespace

double reduce_scatter_s(int n, double bytes, const Link& link) {
  return (ranks(n) - 1) * link.latency_s + half_bytes(n, bytes) * link.s_per_byte;
}

double all_gather_s(int n, double bytes, const Link& link) {
  return reduce_scatter_s(n, bytes, link);
}

double ring_all_reduce_s(int n, double bytes, const Link& link) {
  return reduce_scatter_s(n, bytes, link) + all_gather_s(n, bytes, link);
}

double tree_all_reduce_s(int n, double bytes, const Link& link) {
  return n == 1 ? 0.0 : 2 * rounds(n) * link.latency_s + 2 * bytes * link.s_per_byte;
}

double recursive_doubling_all_reduce_s(int n, double bytes, const Link& link) {
  return rounds(n) * link.seconds(bytes);
}

double halving_doubling_all_reduce_s(int n, double bytes, const Link& link) {
  return 2 * rounds(n) * link.latency_s + 2 * half_bytes(n, bytes) * link.s_per_byte;
}

double broadcast_s(int n, double bytes, const Link& link) {
  return std::ceil(rounds(n)) * link.seconds(bytes);
}

double all_to_all_s(int n, double bytes, const Link& link) {
  return (ranks(n) - 1) * link.seconds(bytes / n);
}

AllReduceChoice best_all_reduce(int n, double bytes, const Link& link) {
  const std::array<AllReduceChoice, 4> choices = {{
      {"ring", ring_all_reduce_s(n, bytes, link)},
      {"halving doubling", halving_doubling_all_reduce_s(n, bytes, link)},
      {"tree", tree_all_reduce_s(n, bytes, link)},
      {"recursive doubling", recursive_doubling_all_reduce_s(n, bytes, link)},
  }};
  AllReduceChoice best = choices[0];
  for (const AllReduceChoice& choice : choices) {
    if (choice.seconds < best.seconds) best = choice;
  }
  return best;
}

double all_reduce_s(const RankGroup& group, double bytes) {
  const double flat = best_all_reduce(group.size(), bytes, group.slowest()).seconds;
  if (group.nodes == 1 || group.per_node == 1) return flat;
  const double levels = reduce_scatter_s(group.per_node, bytes, group.inside) +
                        best_all_reduce(group.nodes, bytes / group.per_node, group.across).seconds +
                        all_gather_s(group.per_node, bytes, group.inside);
  return std::min(flat, levels);
}

double reduce_scatter_s(const RankGroup& group, double bytes) {
  const double flat = reduce_scatter_s(group.size(), bytes, group.slowest());
  if (group.nodes == 1 || group.per_node == 1) return flat;
  return std::min(flat, reduce_scatter_s(group.per_node, bytes, group.inside) +
                            reduce_scatter_s(group.nodes, bytes / group.per_node, group.across));
}

double all_gather_s(const RankGroup& group, double bytes) { return reduce_scatter_s(group, bytes); }

double logarithmic_limit_bytes(int n, const Link& link) {
  if (ranks(n) == 1) return 0.0;
  if (link.s_per_byte <= 0.0) return std::numeric_limits<double>::infinity();
  return rounds(n) * link.latency_s / ((n - 1.0) / n * link.s_per_byte);
}

std::string logarithmic_statement(int n, double bytes, const Link& link) {
  const double limit = logarithmic_limit_bytes(n, link);
  const AllReduceChoice best = best_all_reduce(n, bytes, link);
  const std::string measured =
      format("an all-reduce of {:.3f} MB over {} ranks takes {:.3f} ms ({})", bytes / 1e6, n,
             best.seconds * 1e3, best.algorithm);
  if (bytes <= limit) {
    return format("{}: below {:.3f} MB latency dominates, so its cost grows as log2 n.", measured,
                  limit / 1e6);
  }
  return format(
      "{}: above {:.3f} MB bandwidth dominates, so its cost is nearly the same for any n and log2 "
      "n overstates it.",
      measured, limit / 1e6);
}

double reference_cost(double network_share, double ratio) {
  CONTEXTURE_USAGE_REQUIRE(network_share >= 0.0 && network_share <= 1.0,
                           "the network's share of a step lies in 0..1, not ", network_share);
  CONTEXTURE_USAGE_REQUIRE(ratio > 0.0, "the ratio of communication rounds must be positive, not ",
                           ratio);
  return 1.0 - network_share + network_share / ratio;
}

StateBytes zero_bytes(double num_parameters, int zero_stage, int n) {
  CONTEXTURE_USAGE_REQUIRE(zero_stage >= 0 && zero_stage <= 3, "ZeRO has stages 0 to 3, not ",
                           zero_stage);
  const auto shard = [&](int from_stage) {
    return zero_stage >= from_stage ? num_parameters / ranks(n) : num_parameters;
  };
  return {.weights = 2 * shard(3), .gradients = 2 * shard(2), .optimizer = 12 * shard(1)};
}

double zero_traffic_elements(double num_parameters, int zero_stage) {
  CONTEXTURE_USAGE_REQUIRE(zero_stage >= 0 && zero_stage <= 3, "ZeRO has stages 0 to 3, not ",
                           zero_stage);
  return (zero_stage == 3 ? 3 : 2) * num_parameters;
}

double megatron_bytes_per_parameter(MegatronPrecision precision, int d) {
  CONTEXTURE_USAGE_REQUIRE(d >= 0, "a number of replicas is not negative, as ", d, " is");
  const double kept = precision == MegatronPrecision::kFp16   ? 4
                      : precision == MegatronPrecision::kBf16 ? 6
                                                              : 8;
  const double sharded = precision == MegatronPrecision::kFp16   ? 16
                         : precision == MegatronPrecision::kBf16 ? 12
                                                                 : 8;
  return kept + (d == 0 ? sharded : sharded / d);
}

double layer_activation_bytes(double s, double b, double h, double a, int t, bool fused_attention) {
  return s * b * h * (34.0 + (fused_attention ? 0.0 : 5.0 * a * s / h)) / ranks(t);
}

double tensor_parallel_bytes(double s, double b, double h, double bytes_per_element, int n) {
  return 4 * 2 * half_bytes(n, s * b * h * bytes_per_element);
}

double pipeline_boundary_bytes(double s, double b, double h, double bytes_per_element) {
  return 2 * s * b * h * bytes_per_element;
}

double transformer_flops_per_token(double num_parameters, double layers, double h, double s,
                                   bool causal) {
  return 6 * num_parameters + 12 * layers * h * s * (causal ? 0.5 : 1.0);
}

double model_flops_utilisation(double flops, double seconds, double peak_flops_per_s) {
  CONTEXTURE_USAGE_REQUIRE(seconds > 0 && peak_flops_per_s > 0,
                           "utilisation needs a positive time and peak, not ", seconds, " s and ",
                           peak_flops_per_s, " FLOP/s");
  return flops / (seconds * peak_flops_per_s);
}

double refresh_flop_ratio(double num_documents, double encoder_parameters, double every,
                          double batch, double k, double reader_parameters, double passes) {
  CONTEXTURE_USAGE_REQUIRE(
      every > 0 && batch > 0 && k > 0 && reader_parameters > 0 && passes > 0,
      "the cost of a refresh is relative to training steps that cost something");
  return num_documents * encoder_parameters / (passes * every * batch * k * reader_parameters);
}

}  // namespace contexture::parallel
