// What communication and memory cost, in closed form: alpha-beta times of collectives, bytes of
// ZeRO states and of activations, FLOPs, and the published reference formula for mixing tensor and
// pipeline parallelism. Seconds, bytes and counts throughout; n is a number of ranks. Pure
// functions of their arguments; those that take a number of ranks throw UsageError unless it is
// positive.
#pragma once
#include <cstdint>
#include <string>

namespace contexture::parallel {

// A message of S bytes takes latency_s + S * s_per_byte.
struct Link {
  double latency_s = 0.0;
  double s_per_byte = 0.0;
  bool operator==(const Link&) const = default;
  double seconds(double bytes) const { return latency_s + bytes * s_per_byte; }
};

// `bytes` is the whole tensor: what every rank ends up with (all-reduce, all-gather, broadcast) or
// hands in (reduce-scatter, all-to-all).
double ring_all_reduce_s(int n, double bytes, const Link& link);
double tree_all_reduce_s(int n, double bytes, const Link& link);  // pipelined double binary tree
double recursive_doubling_all_reduce_s(int n, double bytes, const Link& link);
double halving_doubling_all_reduce_s(int n, double bytes, const Link& link);
double reduce_scatter_s(int n, double bytes, const Link& link);  // ring
double all_gather_s(int n, double bytes, const Link& link);      // ring
double broadcast_s(int n, double bytes, const Link& link);       // binomial tree
double all_to_all_s(int n, double bytes, const Link& link);      // pairwise

struct AllReduceChoice {
  std::string algorithm;  // "ring", "tree", "recursive doubling", "halving doubling"
  double seconds = 0.0;
};
AllReduceChoice best_all_reduce(int n, double bytes, const Link& link);

// A group's ranks: per_node on each of several nodes. Where a node has several, collectives can go
// over the links inside first; each rank then carries its share across, on a link of its own.
// (NCCL's many rings do the like; a single ring uses one link of a node.) The times are those of
// the better of that and one ring (or best_all_reduce) over the slower link.
struct RankGroup {
  int nodes = 1, per_node = 1;
  Link inside = {}, across = {};
  bool operator==(const RankGroup&) const = default;
  int size() const { return nodes * per_node; }
  const Link& slowest() const { return nodes > 1 ? across : inside; }
};
double all_reduce_s(const RankGroup& group, double bytes);
double reduce_scatter_s(const RankGroup& group, double bytes);
double all_gather_s(const RankGroup& group, double bytes);

// Bytes at which a halving-doubling all-reduce spends as long on latency (which grows as log2 n) as
// on bandwidth (nearly constant in n). Below, "cost grows as log2 n" is true; above, it is not.
// Infinite on a link of infinite bandwidth; 0 for one rank.
double logarithmic_limit_bytes(int n, const Link& link);
// The same as a sentence with numbers, for `plan`.
std::string logarithmic_statement(int n, double bytes, const Link& link);

// Step time relative to pure tensor parallelism when tensor parallelism's communication, a share of
// the step, is made 1/ratio as long by a pipeline: (1 - share) + share / ratio. Published readings,
// share 0.5: ratio log2(16) gives 0.625, log2(8) gives 0.6667.
double reference_cost(double network_share, double ratio);

// Adam in mixed precision: 2 bytes weight, 2 gradient, 12 fp32 states, sharded by ZeRO stage over n
// replicas.
struct StateBytes {
  double weights = 0.0, gradients = 0.0, optimizer = 0.0;
  double total() const { return weights + gradients + optimizer; }
};
StateBytes zero_bytes(double num_parameters, int zero_stage, int n);
double zero_traffic_elements(double num_parameters,
                             int zero_stage);  // per step and replica, large n

// Megatron's distributed optimizer, bytes a parameter with d replicas; d = 0: not distributed.
enum class MegatronPrecision { kFp16, kBf16, kFp32 };
double megatron_bytes_per_parameter(MegatronPrecision precision, int d);

// Bytes one transformer layer keeps for its backward, in 2-byte precision: s tokens, b sequences, h
// width, a heads, t tensor-parallel ranks with sequence parallelism. fused_attention (or selective
// recompute) never keeps the attention matrix.
double layer_activation_bytes(double s, double b, double h, double a, int t, bool fused_attention);

// Per layer, microbatch and rank on the wire: 2 all-reduces of s*b*h elements forward and 2
// backward; per pipeline boundary: one send each.
double tensor_parallel_bytes(double s, double b, double h, double bytes_per_element, int n);
double pipeline_boundary_bytes(double s, double b, double h, double bytes_per_element);

// Forward and backward: 6 per parameter, and 12 * layers * h * s for attention to s positions, half
// of that when it is causal.
double transformer_flops_per_token(double num_parameters, double layers, double h, double s,
                                   bool causal);
double model_flops_utilisation(double flops, double seconds, double peak_flops_per_s);

// FLOPs of one refresh of the index over the training FLOPs between two of them: documents and
// their encoder's parameters against `every` steps of `batch` inputs with `k` documents each,
// through a reader that costs `passes` forwards a step (3: forward and backward; 4: recomputed
// too). Documents are equally long on both sides.
double refresh_flop_ratio(double num_documents, double encoder_parameters, double every,
                          double batch, double k, double reader_parameters, double passes);

}  // namespace contexture::parallel
