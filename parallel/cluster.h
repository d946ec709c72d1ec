// The machines a plan is for: nodes, GPUs, links, prices. Written by hand or by `bench links`;
// docs/formats/cluster.md describes the file.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "parallel/cost_model.h"

namespace contexture::parallel {

struct Cluster {
  std::string name = {};
  int nodes = 1;
  int gpus_per_node = 1;
  double memory_bytes = 0.0;  // of one GPU
  std::map<std::string, double> peak_flops_per_s =
      {};                   // of one GPU, by dtype: "bf16", "fp16", "fp32"
  double efficiency = 0.4;  // of the peak, that dense layers reach; used where no time was measured
  Link inside, across;      // between two GPUs of a node | of two nodes
  double usd_per_gpu_hour = 0.0;             // 0: unknown
  double spot_usd_per_gpu_hour = 0.0;        // 0: no spot offer
  double spot_interruptions_per_hour = 0.0;  // of the whole cluster
  double host_bytes_per_s =
      0.0;  // between a GPU and its node's memory, each way, each GPU at the same time; 0: unknown
  double storage_bytes_per_s =
      0.0;  // what all nodes together write to and read from storage; 0: unknown
  double storage_files_per_s = 0.0;  // small files that one node opens and reads; 0: unknown

  int num_gpus() const { return nodes * gpus_per_node; }
  double peak(const std::string& dtype) const;  // throws UsageError, naming what the cluster has
  // Between ranks that number GPUs node by node.
  const Link& between(int rank_a, int rank_b) const {
    return rank_a / gpus_per_node == rank_b / gpus_per_node ? inside : across;
  }
};

// DataError naming `where`, the key, and what is allowed. Unknown keys are refused.
Cluster cluster_from_json(const Json& json, const std::string& where);
Cluster read_cluster(const std::string& path);
Json to_json(const Cluster& cluster);

// The link whose times lie nearest to measured ones, by least squares of the relative error (in
// seconds, the large messages alone would decide, and latency would be noise). Neither part is
// negative. UserError unless there are two sizes.
struct MessageTime {
  double bytes = 0.0, seconds = 0.0;
};
Link fit_link(const std::vector<MessageTime>& measured);

// Without a file: 80 GB GPUs of 312 TFLOP/s in bf16, 300 GB/s inside a node, 25 GB/s across, no
// prices. UsageError unless both positive.
Cluster default_cluster(int nodes, int gpus_per_node);

}  // namespace contexture::parallel
