// Which of how many ranks this process is, and where they meet: found in the environment that a
// launcher left. Looked at in this order: our own variables (contexture launch), torchrun, SLURM,
// Open MPI and Hydra, Kubernetes; else one process. (mpirun inside a SLURM allocation: its
// variables win, since SLURM's then describe mpirun's own daemons.) Works on a map, so that tests
// need no real environment. Contradictions throw UsageError naming the variables.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace contexture::parallel {

using Environment = std::map<std::string, std::string>;
Environment process_environment();

struct Finding {
  std::string name, value;
  std::string from;  // the variable, flag or rule it came from
};

struct LaunchEnv {
  std::string launcher =
      "none";             // "contexture", "torchrun", "slurm", "openmpi", "hydra", "kubernetes"
  Rendezvous rendezvous;  // with rank and size
  int local_rank = 0, local_size = 1;
  std::vector<Finding> findings;   // all of the above, and where from
  std::vector<std::string> notes;  // what was seen and not used, and why

  // The accelerator for this rank: local_rank, or 0 where only one is visible, as under
  // --gpus-per-task=1. UsageError when there are too few.
  int device(int num_visible) const;
};

LaunchEnv detect_launch(const Environment& env);

// How `contexture launch` starts its ranks: flags first, then what Kubernetes (PyTorchJob, its
// successor, an Indexed Job) or srun says of this pod or task, which then stands for a node.
struct NodeFlags {
  int nproc = 0, nnodes = 0, node_rank = -1;  // 0 and -1: not given
  std::string rendezvous;                     // "host:port"
};
struct NodePlan {
  int nproc = 1, nnodes = 1, node_rank = 0;
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any free one; only with one node
  std::vector<Finding> findings;
  int world_size() const { return nproc * nnodes; }
};
NodePlan plan_node(const NodeFlags& flags, const Environment& env);

// What `contexture launch` gives rank `local_rank` of its node; detect_launch() reads it.
Environment rank_environment(const NodePlan& plan, int local_rank, int port);

// SLURM's short forms: "gnode[08-10,20],login" in order; "4(x2),3" as {4, 4, 3}. UsageError on
// other text.
std::vector<std::string> expand_nodelist(const std::string& text);
std::vector<int> expand_tasks_per_node(const std::string& text);

// Variables that libraries below read (NCCL_*, GLOO_*, TORCH_NCCL_*, OMP_NUM_THREADS,
// CUDA_VISIBLE_DEVICES): not touched, recorded.
Environment passed_through(const Environment& env);

}  // namespace contexture::parallel
