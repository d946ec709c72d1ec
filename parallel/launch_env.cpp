#include "parallel/launch_env.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>

extern char** environ;

namespace contexture::parallel {
namespace {

constexpr int kDefaultPort = 29500;  // torchrun's

std::optional<int64_t> number(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_true(const std::string& text) { return text == "1" || text == "True" || text == "true"; }

// Reads variables and notes each that counts.
class Reader {
 public:
  Reader(const Environment& env, std::vector<Finding>& findings) : env_(env), findings_(findings) {}

  bool has(const std::string& name) const {
    const auto found = env_.find(name);
    return found != env_.end() && !found->second.empty();
  }
  std::string text(const std::string& name) const { return has(name) ? env_.at(name) : ""; }
  int integer(const std::string& name, int64_t least, int64_t most) const {
    CONTEXTURE_USAGE_REQUIRE(has(name), "the environment has no ", name,
                             ", which its other variables need.");
    const std::optional<int64_t> value = number(env_.at(name));
    CONTEXTURE_USAGE_REQUIRE(value && *value >= least && *value <= most, name, "=", env_.at(name),
                             " in the environment is no number from ", least, " to ", most, ".");
    return static_cast<int>(*value);
  }
  int count(const std::string& name) const { return integer(name, 1, 1 << 24); }
  int index(const std::string& name) const { return integer(name, 0, (1 << 24) - 1); }
  int port(const std::string& name) const { return integer(name, 1, 65535); }
  template <typename T>
  void found(const std::string& name, const T& value, const std::string& from) const {
    findings_.push_back({name, concat(value), from});
  }

 private:
  const Environment& env_;
  std::vector<Finding>& findings_;
};

// "host:port" or "[v6]:port"
std::pair<std::string, int> split_address(const std::string& text, const std::string& from) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon == std::string::npos ? 0 : colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  const std::optional<int64_t> port =
      colon == std::string::npos ? std::nullopt : number(text.substr(colon + 1));
  CONTEXTURE_USAGE_REQUIRE(!host.empty() && port && *port >= 1 && *port <= 65535, from, " ", text,
                           " is no HOST:PORT.");
  return {host, static_cast<int>(*port)};
}

// Rank, size and their local kin from these variables; a missing local pair means one process a
// node.
void read_ranks(LaunchEnv& out, const Reader& env, const std::string& rank, const std::string& size,
                const std::string& local_rank, const std::string& local_size) {
  out.rendezvous.rank = env.index(rank);
  out.rendezvous.size = env.count(size);
  CONTEXTURE_USAGE_REQUIRE(
      out.rendezvous.rank < out.rendezvous.size, rank, "=", out.rendezvous.rank, " contradicts ",
      size, "=", out.rendezvous.size,
      ": ranks count from 0. Correct the environment or the launcher's options.");
  env.found("rank", out.rendezvous.rank, rank);
  env.found("size", out.rendezvous.size, size);
  if (env.has(local_rank)) {
    out.local_rank = env.index(local_rank);
    env.found("local_rank", out.local_rank, local_rank);
  }
  if (env.has(local_size)) {
    out.local_size = env.count(local_size);
    env.found("local_size", out.local_size, local_size);
    CONTEXTURE_USAGE_REQUIRE(out.local_rank < out.local_size, local_rank, "=", out.local_rank,
                             " contradicts ", local_size, "=", out.local_size,
                             ": local ranks count from 0.");
    CONTEXTURE_USAGE_REQUIRE(out.local_size <= out.rendezvous.size, local_size, "=", out.local_size,
                             " is more than ", size, "=", out.rendezvous.size, ".");
  } else {
    out.local_size = out.local_rank + 1;
  }
}

// MASTER_ADDR and MASTER_PORT, which users set where the launcher does not; else what the
// launcher's own variables give.
void read_master(LaunchEnv& out, const Reader& env, const std::string& host,
                 const std::string& host_from, int port, const std::string& port_from) {
  Rendezvous& at = out.rendezvous;
  at.host = env.has("MASTER_ADDR") ? env.text("MASTER_ADDR") : host;
  at.port = env.has("MASTER_PORT") ? env.port("MASTER_PORT") : port;
  CONTEXTURE_USAGE_REQUIRE(!at.host.empty() || at.size == 1,
                           "nothing in the environment says where the ", at.size,
                           " ranks meet: set MASTER_ADDR to rank 0's host and MASTER_PORT to a "
                           "free port there (mpirun -x MASTER_ADDR -x MASTER_PORT).");
  env.found("host", at.host, env.has("MASTER_ADDR") ? "MASTER_ADDR" : host_from);
  env.found("port", at.port, env.has("MASTER_PORT") ? "MASTER_PORT" : port_from);
}

// The same port for all processes of one job, different ones for jobs that share a host; below the
// ports that systems hand out.
int port_of(const std::string& job) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 10000 + static_cast<int>(hash % 20000u);
}

void own_variables(LaunchEnv& out, const Reader& env) {
  out.launcher = "contexture";
  read_ranks(out, env, "CONTEXTURE_RANK", "CONTEXTURE_WORLD_SIZE", "CONTEXTURE_LOCAL_RANK",
             "CONTEXTURE_LOCAL_SIZE");
  Rendezvous& at = out.rendezvous;
  if (!env.has("CONTEXTURE_RENDEZVOUS")) {
    CONTEXTURE_USAGE_REQUIRE(at.size == 1, "CONTEXTURE_WORLD_SIZE=", at.size,
                             " needs CONTEXTURE_RENDEZVOUS=HOST:PORT, where rank 0 can listen.");
    return;
  }
  std::tie(at.host, at.port) =
      split_address(env.text("CONTEXTURE_RENDEZVOUS"), "CONTEXTURE_RENDEZVOUS");
  env.found("host", at.host, "CONTEXTURE_RENDEZVOUS");
  env.found("port", at.port, "CONTEXTURE_RENDEZVOUS");
  at.store_is_served = is_true(env.text("CONTEXTURE_STORE_SERVED"));
  if (at.store_is_served) env.found("store_is_served", "yes", "CONTEXTURE_STORE_SERVED");
}

void torchrun(LaunchEnv& out, const Reader& env) {
  out.launcher = "torchrun";
  read_ranks(out, env, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  read_master(out, env, "", "", kDefaultPort, "default");
  // The agent listens at MASTER_PORT already and keeps its store over restarts: join it, with keys
  // of this start's own.
  if (is_true(env.text("TORCHELASTIC_USE_AGENT_STORE"))) {
    out.rendezvous.store_is_served = true;
    env.found("store_is_served", "yes", "TORCHELASTIC_USE_AGENT_STORE");
  }
  out.rendezvous.session =
      concat(env.text("TORCHELASTIC_RUN_ID"), "/", env.text("TORCHELASTIC_RESTART_COUNT"));
  env.found("session", out.rendezvous.session, "TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT");
}

// A step that srun started, and no shell: salloc's and sbatch's own shells have a step id near 2^32
// or none.
bool is_slurm_launch(LaunchEnv& out, const Reader& env) {
  if (!env.has("SLURM_PROCID")) return false;
  const auto step = number(env.text("SLURM_STEP_ID").empty() ? env.text("SLURM_STEPID")
                                                             : env.text("SLURM_STEP_ID"));
  const bool is_shell = env.has("SLURM_PTY_PORT") || env.has("SLURM_PTY_WIN_COL");
  if (step && *step < 4294967280 && !is_shell && env.has("SLURM_STEP_NUM_TASKS")) return true;
  if (env.has("SLURM_JOB_ID")) {
    out.notes.push_back(concat("SLURM allocation ", env.text("SLURM_JOB_ID"),
                               is_shell ? ", an interactive shell" : ", but no step of srun",
                               ": this is one process. Use srun to start ranks."));
  }
  return false;
}

void slurm(LaunchEnv& out, const Reader& env) {
  out.launcher = "slurm";
  read_ranks(out, env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "");
  std::string host, from = "SLURM_LAUNCH_NODE_IPADDR";
  if (env.has("SLURM_STEP_NODELIST")) {
    host = expand_nodelist(env.text("SLURM_STEP_NODELIST")).front();
    from = "first of SLURM_STEP_NODELIST";
  }
  if (env.has("SLURM_STEP_TASKS_PER_NODE") && env.has("SLURM_NODEID")) {
    const std::vector<int> tasks = expand_tasks_per_node(env.text("SLURM_STEP_TASKS_PER_NODE"));
    const auto node = static_cast<size_t>(env.index("SLURM_NODEID"));
    CONTEXTURE_USAGE_REQUIRE(
        node < tasks.size(), "SLURM_NODEID=", node,
        " contradicts SLURM_STEP_TASKS_PER_NODE=", env.text("SLURM_STEP_TASKS_PER_NODE"),
        ", which has ", tasks.size(), " nodes.");
    out.local_size = tasks[node];
    CONTEXTURE_USAGE_REQUIRE(
        out.local_rank < out.local_size, "SLURM_LOCALID=", out.local_rank,
        " contradicts SLURM_STEP_TASKS_PER_NODE=", env.text("SLURM_STEP_TASKS_PER_NODE"), ": node ",
        node, " has ", out.local_size, " tasks.");
    env.found("local_size", out.local_size, "SLURM_STEP_TASKS_PER_NODE, SLURM_NODEID");
  }
  if (host.empty()) host = env.text(from);
  read_master(out, env, host, from,
              port_of(env.text("SLURM_JOB_ID") + "." + env.text("SLURM_STEP_ID")),
              "from SLURM_JOB_ID and SLURM_STEP_ID");
}

void mpi(LaunchEnv& out, const Reader& env, bool open_mpi) {
  out.launcher = open_mpi ? "openmpi" : "hydra";
  if (open_mpi) {
    read_ranks(out, env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
               "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  } else {
    read_ranks(out, env, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  }
  // One node: this machine. More: mpirun says nothing about where rank 0 is.
  const bool one_node = out.local_size == out.rendezvous.size;
  const std::string job =
      open_mpi ? env.text("PMIX_NAMESPACE") + env.text("OMPI_MCA_ess_base_jobid") : "";
  read_master(out, env, one_node ? "127.0.0.1" : "", "all ranks are local",
              job.empty() ? kDefaultPort : port_of(job),
              job.empty() ? "default" : "from the MPI job's name");
}

// PyTorchJob's variables are per pod: one process in it is that rank; several are started by
// `contexture launch`.
void kubernetes(LaunchEnv& out, const Reader& env) {
  out.launcher = "kubernetes";
  read_ranks(out, env, "RANK", "WORLD_SIZE", "", "");
  read_master(out, env, "", "", kDefaultPort, "default");
}

}  // namespace

Environment process_environment() {
  Environment out;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string text = *each;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) out[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return out;
}

int LaunchEnv::device(int num_visible) const {
  if (num_visible == 1) return 0;
  CONTEXTURE_USAGE_REQUIRE(local_rank < num_visible, "rank ", rendezvous.rank, " is number ",
                           local_rank, " on its machine, where ", num_visible,
                           " devices are visible: start at most ", num_visible,
                           " ranks there, or make one device visible to each.");
  return local_rank;
}

LaunchEnv detect_launch(const Environment& environment) {
  LaunchEnv out;
  const Reader env(environment, out.findings);
  const bool from_mpirun =
      env.has("OMPI_COMM_WORLD_RANK") || (env.has("PMI_RANK") && env.has("MPI_LOCALRANKID"));
  if (env.has("CONTEXTURE_RANK") || env.has("CONTEXTURE_WORLD_SIZE")) {
    own_variables(out, env);
  } else if (env.has("RANK") && env.has("LOCAL_RANK")) {
    torchrun(out, env);
  } else if (!from_mpirun && is_slurm_launch(out, env)) {
    slurm(out, env);
  } else if (env.has("OMPI_COMM_WORLD_RANK")) {
    mpi(out, env, true);
  } else if (env.has("PMI_RANK") && env.has("PMI_SIZE")) {
    mpi(out, env, false);
  } else if (env.has("RANK") && env.has("WORLD_SIZE")) {
    kubernetes(out, env);
  } else if (env.has("JOB_COMPLETION_INDEX")) {
    out.notes.push_back(
        "an Indexed Job gives no number of ranks: start ranks with contexture launch --nnodes N "
        "--rendezvous HOST:PORT.");
  }
  if (out.launcher == "none") {
    env.found("rank", 0, "one process");
    env.found("size", 1, "one process");
  }
  if (env.has("GLOO_SOCKET_IFNAME")) {
    out.rendezvous.interface = env.text("GLOO_SOCKET_IFNAME");
    env.found("interface", out.rendezvous.interface, "GLOO_SOCKET_IFNAME");
  }
  return out;
}

NodePlan plan_node(const NodeFlags& flags, const Environment& environment) {
  NodePlan out;
  const Reader env(environment, out.findings);
  // The flag, else the first of these variables that is there, else the default.
  const auto choose = [&](const char* name, bool given, int value, const char* flag,
                          std::vector<std::string> variables, bool is_count, int otherwise) {
    std::string from = given ? flag : "default";
    int result = given ? value : otherwise;
    if (!given) {
      const auto variable = std::find_if(variables.begin(), variables.end(),
                                         [&](const std::string& each) { return env.has(each); });
      if (variable != variables.end()) {
        from = *variable;
        result = is_count ? env.count(from) : env.index(from);
      }
    }
    env.found(name, result, from);
    return result;
  };
  const bool per_pod = env.has("WORLD_SIZE") && env.has("RANK") && !env.has("LOCAL_RANK");
  LaunchEnv task;  // srun --ntasks-per-node=1 contexture launch ...
  const Reader slurm_env(environment, task.findings);
  const bool per_task = is_slurm_launch(task, slurm_env);
  if (per_task) slurm(task, slurm_env);
  std::vector<std::string> counts{"PET_NNODES"}, ranks{"PET_NODE_RANK"};
  if (per_pod) counts.push_back("WORLD_SIZE"), ranks.push_back("RANK");
  if (per_task) counts.push_back("SLURM_STEP_NUM_TASKS"), ranks.push_back("SLURM_PROCID");
  ranks.push_back("JOB_COMPLETION_INDEX");
  CONTEXTURE_USAGE_REQUIRE(flags.nproc >= 0 && flags.nnodes >= 0 && flags.node_rank >= -1,
                           "--nproc and --nnodes must be 1 or more, --node-rank 0 or more.");
  out.nproc = choose("nproc", flags.nproc > 0, flags.nproc, "--nproc",
                     {"PET_NPROC_PER_NODE", "PET_N_PROC_PER_NODE"}, true, 1);
  out.nnodes = choose("nnodes", flags.nnodes > 0, flags.nnodes, "--nnodes", counts, true, 1);
  if (out.nnodes > 1 || flags.node_rank >= 0) {
    out.node_rank =
        choose("node_rank", flags.node_rank >= 0, flags.node_rank, "--node-rank", ranks, false, -1);
  }
  CONTEXTURE_USAGE_REQUIRE(out.node_rank >= 0, "launch over ", out.nnodes,
                           " nodes needs --node-rank, 0 to ", out.nnodes - 1, ".");
  CONTEXTURE_USAGE_REQUIRE(out.node_rank < out.nnodes, "node rank ", out.node_rank, " contradicts ",
                           out.nnodes, " nodes: they count from 0.");
  if (!flags.rendezvous.empty()) {
    std::tie(out.host, out.port) = split_address(flags.rendezvous, "--rendezvous");
    env.found("rendezvous", flags.rendezvous, "--rendezvous");
    return out;
  }
  if (out.nnodes == 1) {
    env.found("rendezvous", "127.0.0.1, a free port", "default");
    return out;
  }
  for (const std::string prefix : {"PET_MASTER_", "MASTER_"}) {
    if (!env.has(prefix + "ADDR")) continue;
    out.host = env.text(prefix + "ADDR");
    out.port = env.has(prefix + "PORT") ? env.port(prefix + "PORT") : kDefaultPort;
    env.found("rendezvous", concat(out.host, ":", out.port), prefix + "ADDR");
    return out;
  }
  if (per_task) {
    out.host = task.rendezvous.host;
    out.port = task.rendezvous.port;
    env.found("rendezvous", concat(out.host, ":", out.port), "SLURM_STEP_NODELIST, SLURM_JOB_ID");
    return out;
  }
  std::string hint = "HOST:PORT";
  if (env.has("JOB_COMPLETION_INDEX") && env.has("HOSTNAME")) {  // pods are <job>-<index>.<service>
    hint = concat(env.text("HOSTNAME").substr(0, env.text("HOSTNAME").rfind('-')),
                  "-0.SERVICE:", kDefaultPort, " with your headless service's name");
  }
  throw UsageError(concat("launch over ", out.nnodes, " nodes needs --rendezvous ", hint,
                          ", where node 0 can listen and all others connect."));
}

Environment rank_environment(const NodePlan& plan, int local_rank, int port) {
  return {{"CONTEXTURE_RANK", concat(plan.node_rank * plan.nproc + local_rank)},
          {"CONTEXTURE_WORLD_SIZE", concat(plan.world_size())},
          {"CONTEXTURE_LOCAL_RANK", concat(local_rank)},
          {"CONTEXTURE_LOCAL_SIZE", concat(plan.nproc)},
          {"CONTEXTURE_RENDEZVOUS",
           concat(plan.host.find(':') == std::string::npos ? plan.host : "[" + plan.host + "]", ":",
                  port)},
          {"CONTEXTURE_STORE_SERVED", "1"}};
}

Environment passed_through(const Environment& env) {
  Environment out;
  for (const auto& [name, value] : env) {
    for (const char* prefix :
         {"NCCL_", "GLOO_", "TORCH_NCCL_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"}) {
      if (name.rfind(prefix, 0) == 0) out[name] = value;
    }
  }
  return out;
}

}  // namespace contexture::parallel
