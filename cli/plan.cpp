#include <iostream>
#include <set>

#include "cli/plan_page.h"
#include "cli/settings.h"
#include "core/error.h"
#include "core/format.h"
#include "core/json.h"
#include "core/timing.h"
#include "parallel/plan_report.h"
#include "train/distinct.h"
#include "train/planning.h"
#include "train/published_encoder.h"

namespace contexture::cli {
namespace {

struct Options {
  SettingOptions settings;
  std::string cluster, html, timeline, measured;
  int nodes = 0, gpus_per_node = 0, top = 5;
  train::PlanningFacts facts;
  double search_ms = 0.0, distinct = 0.0, network_share = -1.0, round_ratio = 0.0;
  bool json = false;
};

parallel::Cluster cluster_of(const Options& options) {
  const bool counted = options.nodes != 0 || options.gpus_per_node != 0;
  CONTEXTURE_USAGE_REQUIRE(options.cluster.empty() || !counted, "--cluster ", options.cluster,
                           " says how many nodes there are, and so do --nodes and --gpus-per-node: "
                           "give one of the two.");
  CONTEXTURE_USAGE_REQUIRE(!options.cluster.empty() || counted,
                           "Say which machines to plan for: --cluster FILE "
                           "(docs/formats/cluster.md), or --nodes N --gpus-per-node M.");
  return options.cluster.empty() ? parallel::default_cluster(options.nodes, options.gpus_per_node)
                                 : parallel::read_cluster(options.cluster);
}

// Settings of the layout that the user has decided: all that --set names; of a file's only the
// mesh and its order, since a configuration usually says something of the rest.
parallel::FixedLayout fixed_of(const SettingOptions& settings, const train::RunConfig& config) {
  const parallel::ParallelConfig& p = config.parallel;
  std::set<std::string> named;
  for (const std::string& set : settings.sets) named.insert(set.substr(0, set.find('=')));
  if (!settings.file.empty()) {
    const Json file = read_json_file(settings.file);
    for (const char* axis : {"dp", "pp", "tp", "order"}) {
      if (file.contains("parallel") && file["parallel"].contains(axis))
        named.insert(concat("parallel.", axis));
    }
  }
  const auto given = [&](const char* name) { return named.count(concat("parallel.", name)) != 0; };
  parallel::FixedLayout fixed;
  if (given("dp")) fixed.dp = static_cast<int>(p.dp);
  if (given("pp")) fixed.pp = static_cast<int>(p.pp);
  if (given("tp")) fixed.tp = static_cast<int>(p.tp);
  if (given("chunks")) fixed.chunks = static_cast<int>(p.chunks);
  if (given("zero")) fixed.zero = static_cast<int>(p.zero);
  if (given("microbatches")) fixed.microbatches = p.microbatches;
  if (given("schedule")) fixed.schedule = p.schedule;
  if (given("recompute")) fixed.recompute = p.recompute;
  if (given("token_slices")) fixed.token_slices = p.token_slices;
  if (given("order")) fixed.order = p.order;
  if (named.count("data.assembly") != 0) fixed.assembly = config.data.assembly;
  return fixed;
}

// Everything about the run but its layout must be right; the layout is what is looked for.
void validate(train::RunConfig config) {
  config.parallel = {};
  config.validate();
}

// Whether the run's way of encoding documents goes with token slices.
bool takes_slices(train::RunConfig config) {
  const std::string encode_once = config.parallel.encode_once;
  config.parallel = {};
  config.parallel.pp = config.parallel.token_slices = 2;
  config.parallel.encode_once = encode_once;
  try {
    config.validate();
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

parallel::PlannedModel model_of(const train::RunConfig& config, const train::PlanningFacts& facts) {
  parallel::PlannedModel out = train::planned_model(config, facts);
  out.assembly = config.data.assembly;
  out.token_slices = takes_slices(config);
  out.offload_in_file = out.offload && config.parallel.offload != "host";
  return out;
}

[[noreturn]] void refuse(parallel::Planner& planner, const parallel::FixedLayout& fixed) {
  const parallel::LayoutPlan least = planner.leanest(fixed);
  const int nodes = planner.nodes_that_fit(fixed);
  throw UserError(
      format("nothing fits: of {} layouts the one of least memory ({}) needs {} a GPU, and {} of "
             "{} are usable. {}",
             planner.layouts_possible(), parallel::in_words(least.layout),
             parallel::bytes_in_words(least.memory_bytes),
             parallel::bytes_in_words(planner.usable_bytes()),
             parallel::bytes_in_words(planner.cluster().memory_bytes),
             nodes > 0 ? format("With {} nodes something fits.", nodes)
                       : std::string("More nodes alone do not help: use a smaller batch, shorter "
                                     "sequences or GPUs with more memory, or fix less.")));
}

std::string command_of(const Options& options, const parallel::Cluster& cluster, const Json& plan) {
  std::string out = format("contexture launch --nproc {} ", cluster.gpus_per_node);
  if (cluster.nodes > 1)
    out += format("--nnodes {} --node-rank $RANK --rendezvous $HOST:29500 ", cluster.nodes);
  out += "-- train" +
         (options.settings.file.empty() ? std::string() : " --config " + options.settings.file);
  const auto name_of = [](const std::string& set) { return set.substr(0, set.find('=')); };
  std::set<std::string> planned;
  for (const Json& set : plan["settings"]) planned.insert(name_of(set.get<std::string>()));
  for (const std::string& set : options.settings.sets) {
    if (planned.count(name_of(set)) == 0) out += " --set '" + set + "'";
  }
  for (const Json& set : plan["settings"]) out += " --set '" + set.get<std::string>() + "'";
  return out;
}

std::string percent(double share) { return format("{:.1f} %", 100.0 * share); }

void print(const Json& out) {
  const Json &cluster = out["cluster"], &model = out["model"];
  const double parameters = model["parameters"].get<double>();
  const bool billions = parameters >= 1e9;
  std::cout << format(
      "{} GPUs ({} nodes of {}), {:.3g} GB each, of which {:.3g} are usable. {:.3g} {} "
      "parameters in {}, {} inputs a step.\n",
      cluster["nodes"].get<int>() * cluster["gpus_per_node"].get<int>(),
      cluster["nodes"].get<int>(), cluster["gpus_per_node"].get<int>(),
      cluster["gpu"]["memory_gb"].get<double>(), out["usable_gb"].get<double>(),
      parameters / (billions ? 1e9 : 1e6), billions ? "billion" : "million",
      model["dtype"].get<std::string>(), model["batch_size"].get<int64_t>());
  std::cout << format("{} layouts are possible; {} had to be priced, in {:.2f} s.\n\n",
                      out["layouts_possible"].get<int>(), out["layouts_priced"].get<int>(),
                      out["search_s"].get<double>());
  std::cout << format(
      "{:>3}{:>5}{:>5}{:>5}  {:<10}{:<14}{:>4}{:>8}  {:<9}{:>4}  "
      "{:<16}{:>10}{:>8}{:>8}{:>8}{:>11}{:>10}\n",
      "", "dp", "pp", "tp", "order", "schedule", "mb", "slices", "assembly", "ZeRO", "recompute",
      "step s", "GB", "idle", "MFU", "samples/s", "$/1,000");
  int rank = 0;
  for (const Json& plan : out["plans"]) {
    std::string recompute;
    for (const Json& name : plan["recompute"])
      recompute += (recompute.empty() ? "" : ",") + name.get<std::string>();
    const int chunks = plan["chunks"].get<int>();
    const auto slices = plan["token_slices"].get<int64_t>();
    const std::string schedule =
        plan["pp"].get<int>() == 1
            ? "-"
            : plan["schedule"].get<std::string>() + (chunks > 1 ? format(" x{}", chunks) : "");
    std::cout << format(
        "{:>3}{:>5}{:>5}{:>5}  {:<10}{:<14}{:>4}{:>8}  {:<9}{:>4}  "
        "{:<16}{:>10.4g}{:>8.1f}{:>8}{:>8}{:>11.1f}{:>10}\n",
        ++rank, plan["dp"].get<int>(), plan["pp"].get<int>(), plan["tp"].get<int>(),
        plan["order"].get<std::string>(), schedule, plan["microbatches"].get<int64_t>(),
        slices == 0   ? "planned"
        : slices == 1 ? "-"
                      : format("{}", slices),
        plan["assembly"].get<std::string>(), plan["zero"].get<int>(),
        recompute.empty() ? "-" : recompute, plan["step_s"].get<double>(),
        plan["memory_gb"].get<double>(), percent(plan["idle"].get<double>()),
        percent(plan["mfu"].get<double>()), plan["samples_per_s"].get<double>(),
        plan["usd_per_1k_samples"].is_null()
            ? "-"
            : format("{:.4g}", plan["usd_per_1k_samples"].get<double>()));
  }
  if (out.contains("distinct")) {
    std::cout << format("Different documents are {:.3g} of the slots: {}.\n",
                        out["distinct"]["ratio"].get<double>(),
                        out["distinct"]["source"].get<std::string>());
  }
  const Json& best = out["plans"][0];
  std::cout << format(
      "\nThe first: MFU {} of what is executed, {} counting every document for each input. A step:",
      percent(best["mfu"].get<double>()), percent(best["mfu_logical"].get<double>()));
  for (const auto& [name, seconds] : best["step_parts"].items()) {
    if (seconds.get<double>() > 0)
      std::cout << format(" {} {:.3g} s", name.substr(0, name.size() - 2), seconds.get<double>());
  }
  std::cout << "\n";
  if (best["pp"].get<int>() > 1) {
    std::cout << format("{:>6}{:>6}{:>6}{:>8}{:>11}{:>11}{:>8}{:>13}  from and to\n", "stage",
                        "rank", "node", "blocks", "forward ms", "back ms", "GB", "wires in");
    int s = 0;
    for (const Json& stage : best["stages"]) {
      double in = 0.0;
      for (const Json& wire : stage["wires_in"]) in += wire["forward_bytes"].get<double>();
      const Json& blocks = stage["blocks"];
      std::cout << format(
          "{:>6}{:>6}{:>6}{:>8}{:>11.2f}{:>11.2f}{:>8.1f}{:>13}  {}{}\n", s++,
          stage["rank"].get<int>(), stage["node"].get<int>(), blocks.size(),
          1e3 * stage["forward_s"].get<double>(),
          1e3 * (stage["input_grad_s"].get<double>() + stage["weight_grad_s"].get<double>()),
          stage["memory_gb"].get<double>(), parallel::bytes_in_words(in),
          blocks.front().get<std::string>(),
          blocks.size() > 1 ? " .. " + blocks.back().get<std::string>() : "");
    }
  }
  std::cout << "\n" << best["command"].get<std::string>() << "\n\n";
  for (const Json& sentence : out["advice"])
    std::cout << "- " << sentence.get<std::string>() << "\n";
}

// What the ranks of the first replica did in a step of a run: the timeline.json that a pipeline
// leaves.
Json measured_step(const std::string& path) {
  const Json trace = read_json_file(path);
  CONTEXTURE_DATA_REQUIRE(
      trace.is_object() && trace.contains("traceEvents") && trace["traceEvents"].is_array(), path,
      " is no Chrome trace: it has no list traceEvents. Give the timeline.json of a run with "
      "parallel.pp above 1.");
  Json out = Json::array();
  for (const Json& event : trace["traceEvents"]) {
    const std::string where = concat(path, ": event ", out.size());
    if (json_get<std::string>(event, "ph", where) != "X" ||
        json_get<int64_t>(event, "pid", where) != 0)
      continue;
    CONTEXTURE_DATA_REQUIRE(json_get<double>(event, "ts", where) >= 0.0 &&
                                json_get<double>(event, "dur", where) >= 0.0 &&
                                json_get<int64_t>(event, "tid", where) >= 0 &&
                                json_get<int64_t>(event, "tid", where) < 100'000,
                            where, " has a time or rank that cannot be.");
    Json& kept = out.emplace_back(Json{{"name", json_get<std::string>(event, "name", where)}});
    for (const char* key : {"ts", "dur", "tid"}) kept[key] = event[key];
    if (event.contains("args"))
      kept["args"]["waited_us"] = json_get_or<double>(event["args"], "waited_us", 0.0, where);
  }
  CONTEXTURE_DATA_REQUIRE(!out.empty(), path, " has no work of the first replica (pid 0, ph X).");
  return out;
}

int run(const Options& options) {
  const parallel::Cluster cluster = cluster_of(options);
  CONTEXTURE_USAGE_REQUIRE(options.measured.empty() || !options.html.empty(), "--measured ",
                           options.measured, " is drawn on the page: give --html FILE, too.");
  const Json measured = options.measured.empty() ? Json() : measured_step(options.measured);
  CONTEXTURE_USAGE_REQUIRE(options.top >= 1, "--top ", options.top, " must be at least 1.");
  train::RunConfig config = run_config(options.settings);
  train::read_text_encoder(config);
  validate(config);
  train::PlanningFacts facts = options.facts;
  facts.search_s = options.search_ms / 1000.0;
  parallel::SearchOptions search;
  search.optimize = parallel::parse_optimize(config.parallel.optimize);
  search.memory_weight = config.parallel.memory_weight;
  if (config.parallel.memory_gb > 0)
    search.usable_memory = 1e9 * config.parallel.memory_gb / cluster.memory_bytes;
  search.partitioner = parallel::parse_partitioner(config.parallel.partitioner ==
                                                           train::RunConfig().parallel.partitioner
                                                       ? "exact"
                                                       : config.parallel.partitioner);
  std::optional<train::DistinctRatio> distinct;
  if (options.distinct > 0) {
    distinct = train::DistinctRatio{options.distinct, "--distinct"};
  } else {
    distinct = train::distinct_of_data(config);
  }
  if (distinct) search.distinct_ratio = distinct->ratio;
  parallel::Planner planner(model_of(config, facts), cluster, search);
  parallel::AdviceFacts advice{.fixed = fixed_of(options.settings, config),
                               .network_share = options.network_share,
                               .round_ratio = options.round_ratio};
  const double start = now_s();
  const std::vector<parallel::LayoutPlan> plans = planner.search(advice.fixed, options.top);
  Json out{{"cluster", parallel::to_json(cluster)},
           {"usable_gb", planner.usable_bytes() / 1e9},
           {"layouts_possible", planner.layouts_possible()},
           {"layouts_priced", planner.layouts_priced()},
           {"search_s", now_s() - start}};
  if (plans.empty()) refuse(planner, advice.fixed);
  double bytes = 0.0;
  for (const parallel::TraceParameter& p : planner.model().trace(1).parameters)
    bytes += static_cast<double>(p.bytes);
  out["model"] = {{"parameters", bytes / planner.model().weight_bytes},
                  {"dtype", planner.model().dtype},
                  {"batch_size", planner.model().batch_size}};
  if (distinct) out["distinct"] = {{"ratio", distinct->ratio}, {"source", distinct->source}};
  for (const parallel::LayoutPlan& plan : plans) {
    Json described = parallel::to_json(planner, plan);
    described["command"] = command_of(options, cluster, described);
    out["plans"].push_back(std::move(described));
  }
  advice.variants = train::halved_variants(config, facts, cluster, search, plans.front().layout);
  advice.files_per_sample = 1.0 + static_cast<double>(config.retriever.documents) /
                                      static_cast<double>(config.data.group_size);
  out["advice"] = parallel::advice(planner, plans, advice);
  if (!options.timeline.empty())
    write_file_atomic(options.timeline, parallel::chrome_trace(plans.front()).dump() + "\n");
  if (!options.html.empty()) {
    Json page = out;
    page["timeline"] = parallel::chrome_trace(plans.front())["traceEvents"];
    if (!measured.is_null()) page["measured"] = measured;
    write_file_atomic(options.html, plan_page(page));
  }
  options.json ? print_json(out) : print(out);
  return 0;
}

}  // namespace

Command plan_command(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand("plan",
                                         "The best layouts of a model on a cluster, with memory, "
                                         "step time and cost, before it is rented");
  options->settings.add_to(*app);
  app->add_option(
      "--cluster", options->cluster,
      "JSON file of the machines (docs/formats/cluster.md); contexture bench links writes one");
  app->add_option("--nodes", options->nodes, "instead: so many nodes");
  app->add_option("--gpus-per-node", options->gpus_per_node,
                  "of so many GPUs (80 GB, 312 TFLOP/s, 300 GB/s inside a node, 25 GB/s across)");
  app->add_option("--documents", options->facts.documents,
                  "documents of the corpus, for the index's memory and its refresh")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--search-ms", options->search_ms, "a step's index search, as measured")
      ->check(CLI::NonNegativeNumber);
  app->add_option(
         "--distinct", options->distinct,
         "different documents of a step over the slots they fill, as metrics.jsonl of a run of "
         "one replica has them (distinct_documents / slots): says what data.assembly=grouped "
         "saves; without it what the run's metrics or the examples' gold documents say")
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--network-share", options->network_share,
                  "share w of the reference formula in the advice; else what the plan predicts")
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--round-ratio", options->round_ratio,
                  "its ratio r of communication rounds; else both published readings")
      ->check(CLI::PositiveNumber);
  app->add_option("--top", options->top, "plans to list")->capture_default_str();
  app->add_flag(
      "--timed", options->facts.timed,
      "time the blocks on this machine instead of dividing their FLOPs by the GPU's peak");
  app->add_option("--html", options->html, "also write the best plan as one self-contained page");
  app->add_option("--measured", options->measured,
                  "on that page, below the simulated step: one that ran, a run's timeline.json");
  app->add_option("--timeline", options->timeline,
                  "also write its simulated schedule as a Chrome trace");
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] { return run(*options); }};
}

}  // namespace contexture::cli
