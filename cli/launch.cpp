#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include "cli/command.h"
#include "cli/rank_processes.h"
#include "core/error.h"
#include "core/files.h"
#include "core/format.h"
#include "core/json.h"
#include "core/log.h"
#include "core/signals.h"
#include "parallel/launch_env.h"
#include "parallel/mesh.h"

namespace contexture::cli {
namespace {

using parallel::NodePlan;

// The parallel.* settings of the command to be started, as far as they say where ranks stand; 0 is
// not given.
struct MeshSettings {
  int dp = 0, pp = 0, tp = 0;
  std::string order = "dp,pp,tp";
};

MeshSettings mesh_settings(const std::vector<std::string>& arguments) {
  MeshSettings out;
  const std::pair<const char*, int*> sizes[] = {{"dp", &out.dp}, {"pp", &out.pp}, {"tp", &out.tp}};
  // Values that aren't numbers are the command's own to refuse.
  const auto value_of = [&](size_t& i, const std::string& option) -> std::string {
    if (arguments[i] == option && i + 1 < arguments.size()) return arguments[++i];
    return arguments[i].rfind(option + "=", 0) == 0 ? arguments[i].substr(option.size() + 1) : "";
  };
  for (size_t i = 0; i < arguments.size(); ++i) {  // a file's come first, whatever the order
    const std::string file = value_of(i, "--config");
    if (file.empty()) continue;
    const Json config = parse_json(read_file(file), file);
    if (!config.is_object() || !config.contains("parallel") || !config["parallel"].is_object())
      continue;
    for (const auto& [name, target] : sizes) {
      if (config["parallel"].contains(name) && config["parallel"][name].is_number_integer())
        *target = config["parallel"][name].get<int>();
    }
    if (config["parallel"].contains("order") && config["parallel"]["order"].is_string())
      out.order = config["parallel"]["order"].get<std::string>();
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string set = value_of(i, "--set");
    const size_t equals = set.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = set.substr(0, equals), value = set.substr(equals + 1);
    for (const auto& [axis, target] : sizes) {
      if (name == concat("parallel.", axis) && !value.empty() && value.size() < 8 &&
          value.find_first_not_of("0123456789") == std::string::npos) {
        *target = std::stoi(value);
      }
    }
    if (name == "parallel.order") out.order = value;
  }
  return out;
}

// The mesh that the settings ask for, refused here once rather than by every rank. dp not given:
// what the others leave.
parallel::MeshLayout layout_of(const NodePlan& plan, const MeshSettings& settings) {
  const int pp = std::max(1, settings.pp), tp = std::max(1, settings.tp);
  return parallel::MeshLayout(
      plan.world_size(), settings.dp > 0 ? settings.dp : std::max(1, plan.world_size() / (pp * tp)),
      pp, tp, settings.order);
}

Json describe(const NodePlan& plan, const parallel::MeshLayout& layout,
              const std::vector<std::string>& arguments) {
  Json out{{"ranks", Json::array()}, {"command", arguments}, {"found", Json::array()}};
  for (const parallel::Finding& finding : plan.findings) {
    out["found"].push_back(
        {{"name", finding.name}, {"value", finding.value}, {"from", finding.from}});
  }
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    const parallel::Coordinate at = layout.coordinate(rank);
    out["ranks"].push_back({{"rank", rank},
                            {"node", rank / plan.nproc},
                            {"local_rank", rank % plan.nproc},
                            {"dp", at.dp},
                            {"pp", at.pp},
                            {"tp", at.tp}});
  }
  return out;
}

void print_plan(const Json& plan) {
  std::cout << "rank  node  local     dp  pp  tp\n";
  for (const Json& rank : plan["ranks"]) {
    std::cout << format("{:4}  {:4}  {:5}   {:4}{:4}{:4}\n", rank["rank"].get<int>(),
                        rank["node"].get<int>(), rank["local_rank"].get<int>(),
                        rank["dp"].get<int>(), rank["pp"].get<int>(), rank["tp"].get<int>());
  }
  for (const Json& found : plan["found"]) {
    std::cout << format("{} = {} ({})\n", found["name"].get<std::string>(),
                        found["value"].get<std::string>(), found["from"].get<std::string>());
  }
}

int launch(const NodePlan& plan, const std::vector<std::string>& arguments, double grace_s) {
  // The store lives here and not in rank 0, so that rank 0's death can be told, too.
  std::unique_ptr<parallel::RendezvousServer> server;
  if (plan.node_rank == 0) server = std::make_unique<parallel::RendezvousServer>(plan.port);
  const int port = server ? server->port() : plan.port;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  std::vector<RankCommand> commands;
  for (int local = 0; local < plan.nproc; ++local) {
    RankCommand command{plan.node_rank * plan.nproc + local, arguments,
                        parallel::rank_environment(plan, local, port)};
    if (std::getenv("OMP_NUM_THREADS") == nullptr &&
        plan.nproc > 1) {  // or the ranks' threads fight for the cores
      command.environment["OMP_NUM_THREADS"] =
          concat(std::max(1u, cores / static_cast<unsigned>(plan.nproc)));
    }
    commands.push_back(std::move(command));
  }
  log::info("{} ranks, {} here, meeting at {}:{}", plan.world_size(), plan.nproc, plan.host, port);
  const int code = run_ranks(commands, plan.world_size(), grace_s);
  // Ranks of other nodes may still want to read the first cause.
  if (code != 0 && server && plan.nnodes > 1) std::this_thread::sleep_for(std::chrono::seconds(3));
  return code;
}

}  // namespace

Command launch_command(CLI::App& program) {
  struct Options {
    parallel::NodeFlags flags;
    std::vector<std::string> arguments;
    double grace_s = 15;
    bool dry_run = false, json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "launch", "Start a command as several ranks: contexture launch --nproc 4 -- train ...");
  app->add_option("--nproc", options->flags.nproc, "ranks on this node [1]")
      ->check(CLI::PositiveNumber);
  app->add_option("--nnodes", options->flags.nnodes, "nodes, each of which runs this command [1]")
      ->check(CLI::PositiveNumber);
  app->add_option("--node-rank", options->flags.node_rank, "which of them this is, from 0")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--rendezvous", options->flags.rendezvous,
                  "HOST:PORT on node 0 where all meet [one node: a free port]");
  app->add_option("--grace", options->grace_s,
                  "seconds that the others have after one rank's failure")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app->add_flag("--dry-run", options->dry_run,
                "print where each rank would stand, and start nothing");
  app->add_flag("--json", options->json, "with --dry-run: print one JSON object on stdout");
  app->add_option("command", options->arguments,
                  "after --: a command of this program with its options")
      ->required();
  app->footer(
      "Under torchrun, srun, mpirun or Kubernetes run the command itself, without launch "
      "(contexture env says what is found there),\n"
      "or launch once a node.");
  return {app, [options] {
            CONTEXTURE_USAGE_REQUIRE(options->arguments[0] != "launch",
                                     "launch starts other commands, not itself.");
            const NodePlan plan =
                parallel::plan_node(options->flags, parallel::process_environment());
            const parallel::MeshLayout layout = layout_of(plan, mesh_settings(options->arguments));
            if (layout.size(parallel::Axis::kTp) > 1 &&
                layout.crosses_nodes(parallel::Axis::kTp, plan.nproc)) {
              log::warn(
                  "tensor-parallel ranks are on different nodes, which is slow: let parallel.tp "
                  "divide --nproc, with tp last in parallel.order");
            }
            if (!options->dry_run) return launch(plan, options->arguments, options->grace_s);
            const Json description = describe(plan, layout, options->arguments);
            if (options->json) {
              print_json(description);
            } else {
              print_plan(description);
            }
            return 0;
          }};
}

}  // namespace contexture::cli
