// How the model is spread over ranks. Declared once (core/config.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace contexture::parallel {

struct ParallelConfig {
  int64_t dp = 0;
  int64_t pp = 1;
  int64_t tp = 1;
  bool sequence = false;
  std::string order = "dp,pp,tp";
  std::string schedule = "1f1b";
  int64_t chunks = 1;
  int64_t microbatches = 1;
  int64_t token_slices = 1;
  std::string encode_once = "microbatch";
  int64_t zero = 0;
  std::string offload = "device";
  std::vector<std::string> recompute;
  std::string partitioner = "parameters";
  std::string optimize = "speed";
  double memory_weight = -1.0;
  double memory_gb = 0.0;
  std::string cluster;
  std::vector<int64_t> stages;
  std::string shared = "cheapest";
  int64_t timeline_step = 2;
  int64_t bucket_mb = 32;
  int64_t timeout_s = 60;
  int64_t first_timeout_s = 600;

  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("dp", dp, "replicas (data parallelism); 0: as many as pp and tp leave ranks for");
    visit("pp", pp, "pipeline ranks; 1: off");
    visit("tp", tp, "tensor-parallel ranks; 1: off");
    visit("sequence", sequence,
          "tensor-parallel ranks also share out the rows between a layer's branches: less memory, "
          "same bytes sent");
    visit("order", order, "mesh axes, the fastest-varying rank last");
    visit("schedule", schedule, "gpipe, 1f1b, interleaved, zb_h1 or list");
    visit("chunks", chunks, "stages per pipeline rank (interleaved)");
    visit("microbatches", microbatches, "passes that a replica's share of a step is cut into");
    visit("token_slices", token_slices,
          "slices of a microbatch's decoder rows that go through the pipeline one after the other; "
          "0: as many and as "
          "long as the first steps' times say");
    visit("encode_once", encode_once,
          "a document that several inputs read is encoded once a microbatch, or once a replica: "
          "then its microbatches go "
          "forward all before they go back");
    visit("zero", zero, "0: off; 1: optimizer state in shares; 2: gradients too; 3: weights too");
    visit("offload", offload,
          "where masters and moments are kept: device, host (memory, updated there), or a folder "
          "(a file there, mapped into memory)");
    visit("recompute", recompute,
          "blocks whose activations are computed anew in backward: names, or prefixes such as "
          "doc.layer; all: every block");
    visit("partitioner", partitioner,
          "how blocks become stages: uniform (equal numbers), parameters (equal weights), or by "
          "the work and wires of a "
          "typical microbatch: exact, linear, tree, pipedream or blind (docs/partitioning.md)");
    visit("optimize", optimize,
          "what exact, linear and tree cuts make small: speed (the time of a step) or memory (of "
          "the fullest device; of equals the fastest)");
    visit("memory_weight", memory_weight,
          "tree alone: share of memory in a module's cost, 0 to 1, the rest is time; negative: "
          "0.2, with optimize=memory 0.8");
    visit("memory_gb", memory_gb,
          "GB of a device that weights, gradients, optimizer state, activations and the index may "
          "take: exact and linear cuts keep to it; 0: nine tenths of the GPU memory in "
          "parallel.cluster, without such a file no limit");
    visit("cluster", cluster,
          "file of the machines (docs/formats/cluster.md), the same on every node: those "
          "partitioners then weigh its links and speed; empty: "
          "wires cost no time");
    visit("stages", stages,
          "stage of each block in the order of contexture trace, as contexture plan prints it; "
          "stage s runs on pipeline rank s mod pp; "
          "empty: the partitioner decides");
    visit("shared", shared,
          "parameters of several stages: replicate (gradients summed), colocate (their stages on "
          "one rank), or cheapest: what copies send weighs in exact and linear cuts, and others "
          "replicate");
    visit("timeline_step", timeline_step,
          "step of which each pipeline rank's work is written to run.dir/timeline.json, in "
          "Chrome's trace format; 0: never");
    visit("bucket_mb", bucket_mb, "gradients are reduced in buckets of so many MB");
    visit("timeout_s", timeout_s, "seconds a collective may wait before the run stops");
    visit("first_timeout_s", first_timeout_s, "the same until the first step is done");
  }
  void validate() const;  // throws UsageError naming keys and values
};

}  // namespace contexture::parallel
