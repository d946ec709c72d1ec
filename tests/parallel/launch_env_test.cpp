#include "parallel/launch_env.h"

#include <gtest/gtest.h>

namespace contexture::parallel {
namespace {

std::string source_of(const std::vector<Finding>& findings, const std::string& name) {
  for (const Finding& finding : findings) {
    if (finding.name == name) return finding.from;
  }
  return "nowhere";
}

template <typename Run>
std::string refusal(const Run& run) {
  try {
    run();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// What torchrun, srun, mpirun and Kubernetes set, as docs and their own output give it.
const Environment kTorchrun{{"RANK", "5"},
                            {"LOCAL_RANK", "1"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"GROUP_RANK", "1"},
                            {"MASTER_ADDR", "node0"},
                            {"MASTER_PORT", "29400"},
                            {"TORCHELASTIC_RUN_ID", "none"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
const Environment kSlurm{{"SLURM_JOB_ID", "4711"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "9"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "2"},
                         {"SLURM_STEP_NUM_TASKS", "11"},
                         {"SLURM_STEP_NUM_NODES", "3"},
                         {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
                         {"SLURM_STEP_NODELIST", "gnode[10,20,25-27]"},
                         {"SLURM_NTASKS", "1"},
                         {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"}};
const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                           {"PMIX_RANK", "3"},
                           {"PMIX_NAMESPACE", "prterun-1"}};
const Environment kHydra{
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Environment kPyTorchJob{{"RANK", "2"},
                              {"WORLD_SIZE", "3"},
                              {"MASTER_ADDR", "job-master-0"},
                              {"MASTER_PORT", "23456"},
                              {"PYTHONUNBUFFERED", "1"}};

Environment with(Environment env, const Environment& more) {
  for (const auto& [name, value] : more) env[name] = value;
  return env;
}
Environment without(Environment env, const std::string& name) {
  env.erase(name);
  return env;
}

struct Case {
  const char* what;
  Environment env;
  const char* launcher;
  int rank, size, local_rank, local_size;
  const char* host;
  int port;  // -1: derived
  const char* host_from;
};

TEST(DetectLaunch, ReadsWhatEveryLauncherSets) {
  const Case cases[] = {
      {"nothing", {{"HOME", "/root"}}, "none", 0, 1, 0, 1, "127.0.0.1", 0, "nowhere"},
      {"torchrun", kTorchrun, "torchrun", 5, 8, 1, 4, "node0", 29400, "MASTER_ADDR"},
      {"torchrun under srun", with(kSlurm, kTorchrun), "torchrun", 5, 8, 1, 4, "node0", 29400,
       "MASTER_ADDR"},
      {"srun", kSlurm, "slurm", 9, 11, 1, 3, "gnode10", -1, "first of SLURM_STEP_NODELIST"},
      {"srun with a master", with(kSlurm, {{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "1234"}}),
       "slurm", 9, 11, 1, 3, "n1", 1234, "MASTER_ADDR"},
      {"mpirun on one node", kOpenMpi, "openmpi", 3, 4, 3, 4, "127.0.0.1", -1,
       "all ranks are local"},
      {"mpirun in a SLURM allocation", with(kSlurm, kOpenMpi), "openmpi", 3, 4, 3, 4, "127.0.0.1",
       -1, "all ranks are local"},
      {"mpiexec.hydra", kHydra, "hydra", 1, 2, 1, 2, "127.0.0.1", 29500, "all ranks are local"},
      {"mpirun -x",
       with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                       {"MASTER_ADDR", "a"},
                       {"MASTER_PORT", "7"}}),
       "openmpi", 3, 4, 1, 2, "a", 7, "MASTER_ADDR"},
      {"a pod of a PyTorchJob", kPyTorchJob, "kubernetes", 2, 3, 0, 1, "job-master-0", 23456,
       "MASTER_ADDR"},
      {"our own, over all others",
       with(with(kSlurm, kTorchrun), {{"CONTEXTURE_RANK", "1"},
                                      {"CONTEXTURE_WORLD_SIZE", "2"},
                                      {"CONTEXTURE_RENDEZVOUS", "[fe80::1]:99"}}),
       "contexture", 1, 2, 0, 1, "fe80::1", 99, "CONTEXTURE_RENDEZVOUS"},
      {"an empty variable is none",
       with(kPyTorchJob, {{"CONTEXTURE_RANK", ""}, {"LOCAL_RANK", ""}}), "kubernetes", 2, 3, 0, 1,
       "job-master-0", 23456, "MASTER_ADDR"},
  };
  for (const Case& each : cases) {
    const LaunchEnv found = detect_launch(each.env);
    EXPECT_EQ(found.launcher, each.launcher) << each.what;
    EXPECT_EQ(found.rendezvous.rank, each.rank) << each.what;
    EXPECT_EQ(found.rendezvous.size, each.size) << each.what;
    EXPECT_EQ(found.local_rank, each.local_rank) << each.what;
    EXPECT_EQ(found.local_size, each.local_size) << each.what;
    EXPECT_EQ(found.rendezvous.host, each.host) << each.what;
    EXPECT_EQ(source_of(found.findings, "host"), each.host_from) << each.what;
    if (each.port >= 0) {
      EXPECT_EQ(found.rendezvous.port, each.port) << each.what;
    } else {
      EXPECT_TRUE(found.rendezvous.port >= 10000 && found.rendezvous.port < 30000) << each.what;
    }
  }
}

TEST(DetectLaunch, JoinsTheStoreOfTorchrunsAgentAndKeepsRestartsApart) {
  EXPECT_FALSE(detect_launch(kTorchrun).rendezvous.store_is_served);
  const LaunchEnv found =
      detect_launch(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_TRUE(found.rendezvous.store_is_served);
  EXPECT_EQ(found.rendezvous.session, "none/2");
  EXPECT_EQ(source_of(found.findings, "store_is_served"), "TORCHELASTIC_USE_AGENT_STORE");
}

TEST(DetectLaunch, ThePortOfAJobIsItsOwnAndTheSameOnAllRanks) {
  const int port = detect_launch(kSlurm).rendezvous.port;
  EXPECT_EQ(
      detect_launch(
          with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}}))
          .rendezvous.port,
      port);
  EXPECT_NE(detect_launch(with(kSlurm, {{"SLURM_JOB_ID", "4712"}})).rendezvous.port, port);
  EXPECT_NE(detect_launch(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).rendezvous.port, port);
}

TEST(DetectLaunch, AShellInAnAllocationIsOneProcess) {
  const Environment shells[] = {
      {{"SLURM_JOB_ID", "4711"},
       {"SLURM_NTASKS", "8"},
       {"SLURM_NNODES", "2"},
       {"SLURM_PROCID", "0"},
       {"SLURM_LOCALID", "0"}},                         // sbatch's script
      with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}}),  // salloc's interactive step
      with(kSlurm, {{"SLURM_PTY_PORT", "40000"}})};     // srun --pty
  for (const Environment& env : shells) {
    const LaunchEnv found = detect_launch(env);
    EXPECT_EQ(found.launcher, "none");
    EXPECT_EQ(found.rendezvous.size, 1);
    ASSERT_EQ(found.notes.size(), 1u);
    EXPECT_TRUE(has(found.notes[0], "4711")) << found.notes[0];
  }
  EXPECT_TRUE(
      detect_launch({{"SLURM_JOB_ID", "1"}}).notes.empty());  // salloc's shell on the login node
}

TEST(DetectLaunch, RefusesContradictionsByName) {
  const std::pair<Environment, const char*> cases[] = {
      {{{"CONTEXTURE_RANK", "4"}, {"CONTEXTURE_WORLD_SIZE", "4"}},
       "CONTEXTURE_RANK=4 contradicts CONTEXTURE_WORLD_SIZE=4"},
      {{{"CONTEXTURE_RANK", "0"}}, "no CONTEXTURE_WORLD_SIZE"},
      {{{"CONTEXTURE_RANK", "0"}, {"CONTEXTURE_WORLD_SIZE", "2"}},
       "needs CONTEXTURE_RENDEZVOUS=HOST:PORT"},
      {{{"CONTEXTURE_RANK", "0"},
        {"CONTEXTURE_WORLD_SIZE", "2"},
        {"CONTEXTURE_RENDEZVOUS", "host"}},
       "CONTEXTURE_RENDEZVOUS host is no HOST:PORT"},
      {{{"CONTEXTURE_RANK", "0"},
        {"CONTEXTURE_WORLD_SIZE", "2"},
        {"CONTEXTURE_RENDEZVOUS", "host:70000"}},
       "is no HOST:PORT"},
      {with(kTorchrun, {{"RANK", "8"}}), "RANK=8 contradicts WORLD_SIZE=8"},
      {with(kTorchrun, {{"RANK", "x"}}), "RANK=x in the environment is no number"},
      {with(kTorchrun, {{"RANK", "-1"}}), "RANK=-1 in the environment is no number"},
      {with(kTorchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK=4 contradicts LOCAL_WORLD_SIZE=4"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}),
       "LOCAL_WORLD_SIZE=9 is more than WORLD_SIZE=8"},
      {with(kTorchrun, {{"MASTER_PORT", "99999"}}),
       "MASTER_PORT=99999 in the environment is no number from 1 to 65535"},
      {without(kTorchrun, "MASTER_ADDR"), "set MASTER_ADDR"},
      {with(kSlurm, {{"SLURM_NODEID", "3"}}),
       "SLURM_NODEID=3 contradicts SLURM_STEP_TASKS_PER_NODE=4(x2),3, which has 3 nodes"},
      {with(kSlurm, {{"SLURM_LOCALID", "3"}}),
       "SLURM_LOCALID=3 contradicts SLURM_STEP_TASKS_PER_NODE=4(x2),3: node 2 has 3 tasks"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}),
       "mpirun -x MASTER_ADDR"},
  };
  for (const auto& [env, words] : cases) {
    const std::string said = refusal([&, &e = env] { detect_launch(e); });
    EXPECT_TRUE(has(said, words)) << said << "\n wanted " << words;
  }
}

TEST(DetectLaunch, OneVisibleDeviceIsDeviceZero) {
  LaunchEnv env = detect_launch(with(kSlurm, {{"SLURM_LOCALID", "2"}}));
  EXPECT_EQ(env.device(1), 0);
  EXPECT_EQ(env.device(3), 2);
  EXPECT_TRUE(has(refusal([&] { env.device(2); }), "2 devices are visible"));
}

TEST(SlurmLists, Expand) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(expand_nodelist("gnode[10,20,25-27]"),
            (Names{"gnode10", "gnode20", "gnode25", "gnode26", "gnode27"}));
  EXPECT_EQ(expand_nodelist("login"), Names{"login"});
  EXPECT_EQ(expand_nodelist("a1,b[08-10],c"), (Names{"a1", "b08", "b09", "b10", "c"}));
  EXPECT_EQ(expand_nodelist("r[1-2]n[3,5]x"), (Names{"r1n3x", "r1n5x", "r2n3x", "r2n5x"}));
  EXPECT_EQ(expand_nodelist("node-7.example"), Names{"node-7.example"});
  EXPECT_EQ(expand_tasks_per_node("4(x2),3"), (std::vector<int>{4, 4, 3}));
  EXPECT_EQ(expand_tasks_per_node("1"), std::vector<int>{1});
  for (const char* text : {"", "a[", "a]", "a[1", "a[[1]]", "a[x]", "a[3-1]", "a[]", "a,,b",
                           "a[0-99999999999]", "a[1-1000][1-1000][1-1000]"}) {
    EXPECT_TRUE(has(refusal([&] { expand_nodelist(text); }), "SLURM list")) << text;
  }
  for (const char* text : {"", "x", "4(x2", "4(2)", "(x2)", "4(x9999999999)"}) {
    EXPECT_TRUE(has(refusal([&] { expand_tasks_per_node(text); }), "SLURM list")) << text;
  }
}

TEST(PlanNode, FlagsComeFirstThenWhatKubernetesAndSrunSay) {
  const NodePlan alone = plan_node({4, 0, -1, ""}, {});
  EXPECT_EQ(alone.world_size(), 4);
  EXPECT_EQ(alone.port, 0);
  EXPECT_EQ(source_of(alone.findings, "nproc"), "--nproc");

  const NodePlan pod =
      plan_node({8, 0, -1, ""}, kPyTorchJob);  // its RANK and WORLD_SIZE count pods
  EXPECT_EQ(pod.world_size(), 24);
  EXPECT_EQ(pod.node_rank, 2);
  EXPECT_EQ(pod.host, "job-master-0");
  EXPECT_EQ(pod.port, 23456);

  const NodePlan trainer = plan_node({}, {{"PET_NNODES", "2"},
                                          {"PET_NPROC_PER_NODE", "4"},
                                          {"PET_NODE_RANK", "1"},
                                          {"PET_MASTER_ADDR", "t-0"},
                                          {"PET_MASTER_PORT", "1"}});
  EXPECT_EQ(trainer.world_size(), 8);
  EXPECT_EQ(trainer.node_rank, 1);
  EXPECT_EQ(trainer.host, "t-0");
  EXPECT_EQ(source_of(trainer.findings, "nproc"), "PET_NPROC_PER_NODE");

  const NodePlan task = plan_node({2, 0, -1, ""}, kSlurm);
  EXPECT_EQ(task.nnodes, 11);
  EXPECT_EQ(task.node_rank, 9);
  EXPECT_EQ(task.host, "gnode10");

  const NodePlan indexed = plan_node({2, 3, -1, "train-0.svc:29500"},
                                     {{"JOB_COMPLETION_INDEX", "1"}, {"HOSTNAME", "train-1"}});
  EXPECT_EQ(indexed.node_rank, 1);
  EXPECT_EQ(indexed.host, "train-0.svc");
  EXPECT_EQ(source_of(indexed.findings, "node_rank"), "JOB_COMPLETION_INDEX");

  EXPECT_TRUE(
      has(refusal([] {
            plan_node({2, 3, -1, ""}, {{"JOB_COMPLETION_INDEX", "1"}, {"HOSTNAME", "train-1"}});
          }),
          "--rendezvous train-0.SERVICE:29500"));
  EXPECT_TRUE(has(refusal([] { plan_node({2, 3, -1, "a:1"}, {}); }), "needs --node-rank, 0 to 2"));
  EXPECT_TRUE(has(refusal([] {
                    plan_node({2, 3, 3, "a:1"}, {});
                  }),
                  "node rank 3 contradicts 3 nodes"));
  EXPECT_TRUE(has(refusal([] {
                    plan_node({2, 1, 0, "a"}, {});
                  }),
                  "--rendezvous a is no HOST:PORT"));
  EXPECT_TRUE(has(refusal([] {
                    plan_node({0, 0, -1, ""}, {{"PET_NPROC_PER_NODE", "auto"}});
                  }),
                  "PET_NPROC_PER_NODE=auto"));
}

TEST(PlanNode, WhatARankIsGivenIsWhatItFinds) {
  const NodePlan plan = plan_node({4, 3, 2, "[::1]:77"}, {});
  const LaunchEnv found = detect_launch(rank_environment(plan, 1, plan.port));
  EXPECT_EQ(found.launcher, "contexture");
  EXPECT_EQ(found.rendezvous.rank, 9);
  EXPECT_EQ(found.rendezvous.size, 12);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_size, 4);
  EXPECT_EQ(found.rendezvous.host, "::1");
  EXPECT_EQ(found.rendezvous.port, 77);
  EXPECT_TRUE(found.rendezvous.store_is_served);
}

TEST(PassedThrough, RecordsOnlyTheKnobsOfLibraries) {
  const Environment out = passed_through({{"NCCL_DEBUG", "INFO"},
                                          {"TORCH_NCCL_BLOCKING_WAIT", "1"},
                                          {"HOME", "/"},
                                          {"MY_NCCL_X", "1"},
                                          {"OMP_NUM_THREADS", "2"}});
  EXPECT_EQ(out, (Environment{{"NCCL_DEBUG", "INFO"},
                              {"OMP_NUM_THREADS", "2"},
                              {"TORCH_NCCL_BLOCKING_WAIT", "1"}}));
}

}  // namespace
}  // namespace contexture::parallel
