#include <cmath>
#include <iostream>
#include <optional>
#include <set>

#include "cli/settings.h"
#include "core/error.h"
#include "core/format.h"
#include "core/json.h"
#include "model/model.h"
#include "train/distinct.h"
#include "train/model_trace.h"
#include "train/published_encoder.h"

namespace contexture::cli {
namespace {

// One block: `parameters` counts all that it reads, `own` those that no earlier block reads.
struct Row {
  std::string path;
  int64_t parameters = 0, own = 0;
  std::vector<std::string> reads, writes;
};

std::vector<Row> rows_of(const parallel::BlockList& blocks) {
  std::vector<Row> rows;
  std::set<const parallel::Parameter*> counted;
  for (const auto& block : blocks) {
    Row row{block->name(), 0, 0, block->inputs(), block->outputs()};
    for (const parallel::Parameter* parameter : block->parameters()) {
      row.parameters += parameter->numel();
      if (counted.insert(parameter).second) row.own += parameter->numel();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string grouped(int64_t n) {  // 1234567 as 1,234,567
  const std::string digits = std::to_string(n);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string in_bytes(int64_t n) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(n);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return unit == 0 ? concat(n, " B") : format("{:.1f} {}", value, units[unit]);
}

void print_line(const std::string& name, int64_t parameters, int64_t own, int64_t element_bytes) {
  std::cout << format("{:<34} {:>18} {:>18} {:>12}\n", name, grouped(parameters), grouped(own),
                      in_bytes(own * element_bytes));
}

// The part of a block's name before its own number: "doc.layer" of "doc.layer.3", or all of it.
std::string stem(const std::string& path) {
  const size_t dot = path.rfind('.');
  const bool numbered = dot != std::string::npos &&
                        path.find_first_not_of("0123456789", dot + 1) == std::string::npos;
  return numbered ? path.substr(0, dot) : path;
}

// Runs of like layers take one line each.
void print_tree(const std::vector<Row>& rows, int64_t element_bytes) {
  std::cout << format("{:<34} {:>18} {:>18} {:>12}\n", "block", "parameters", "first read here",
                      "bytes");
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    const Row& first = rows[begin];
    int64_t parameters = 0, own = 0;
    while (end < rows.size() && stem(rows[end].path) == stem(first.path) &&
           rows[end].parameters == first.parameters && rows[end].own == first.own) {
      parameters += rows[end].parameters;
      own += rows[end].own;
      ++end;
    }
    const std::string name =
        end - begin == 1
            ? first.path
            : concat(first.path, " .. ", rows[end - 1].path.substr(stem(first.path).size() + 1));
    print_line(name, parameters, own, element_bytes);
  }
}

Json trace(const model::Model& model, const std::string& precision) {
  const at::ScalarType dtype = train::precision_of(precision);
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  const auto wide_bytes = static_cast<int64_t>(c10::elementSize(parallel::wide_dtype(dtype)));
  const int64_t n = model.parameters().num_elements();
  const std::vector<Row> rows = rows_of(model.blocks());
  Json blocks = Json::array(), wires = Json::array();
  for (const Row& row : rows) {
    blocks.push_back({{"path", row.path},
                      {"parameters", row.parameters},
                      {"own_parameters", row.own},
                      {"bytes", row.own * element_bytes},
                      {"reads", row.reads},
                      {"writes", row.writes}});
  }
  for (const parallel::Wire& wire : parallel::wires_of(model.blocks())) {
    std::vector<std::string> readers;
    for (const int reader : wire.readers) readers.push_back(rows[static_cast<size_t>(reader)].path);
    wires.push_back({{"name", wire.name},
                     {"producer", rows[static_cast<size_t>(wire.producer)].path},
                     {"readers", readers}});
  }
  // A master of its own is kept only where the weights are narrower than it.
  const int64_t masters = element_bytes < wide_bytes ? n * wide_bytes : 0;
  return {{"parameters", n},
          {"dtype", c10::toString(dtype)},
          {"bytes",
           {{"weights", n * element_bytes},
            {"gradients", n * wide_bytes},
            {"optimizer", masters + 2 * n * wide_bytes}}},
          {"blocks", blocks},
          {"wires", wires}};
}

// Without --timed, seconds follow from FLOPs at this rate: only their ratios mean anything.
constexpr double kGuessedFlops = 1e12;

Json work_of(const parallel::Trace& costs) {
  Json blocks = Json::array();
  for (const parallel::TraceBlock& block : costs.blocks) {
    blocks.push_back({{"path", block.name},
                      {"forward_flops", block.forward_flops},
                      {"forward_s", block.forward_s},
                      {"input_grad_s", block.input_grad_s},
                      {"weight_grad_s", block.weight_grad_s},
                      {"activation_bytes", block.activation_bytes},
                      {"peak_bytes", block.peak_bytes}});
  }
  const Json whole = parallel::to_json(costs);
  return {{"inputs", costs.inputs},
          {"timed", costs.timed},
          {"distinct", whole["distinct"]},
          {"blocks", blocks},
          {"wires", whole["wires"]}};
}

Json describe(const parallel::Trace& costs, const parallel::Plan& plan) {
  Json stages = Json::array();
  for (const parallel::StageCost& stage : plan.stages) {
    std::vector<std::string> names;
    for (const int b : stage.blocks) names.push_back(costs.blocks[b].name);
    stages.push_back({{"device", stage.device},
                      {"blocks", names},
                      {"seconds", stage.time_s()},
                      {"parameter_bytes", stage.parameter_bytes},
                      {"memory_bytes", stage.memory_bytes},
                      {"bytes_in", stage.forward_bytes_in}});
  }
  Json copies = Json::array();
  for (size_t p = 0; p < plan.parameters.size(); ++p) {
    if (plan.parameters[p].replica_stages.empty()) continue;
    copies.push_back({{"parameter", costs.parameters[p].name},
                      {"owner", plan.parameters[p].owner_stage},
                      {"replicas", plan.parameters[p].replica_stages}});
  }
  return {{"partitioner", parallel::to_string(plan.partitioner)},
          {"stages", stages},
          {"largest_s", plan.max_s},
          {"device_memory_bytes", plan.device_memory},
          {"copies", copies},
          {"copies_s", plan.replica_s},
          {"forward_bytes", plan.forward_bytes},
          {"backward_bytes", plan.backward_bytes},
          {"exact", plan.is_exact},
          {"no_gain", plan.no_gain},
          {"remark", plan.remark}};
}

void print_plan(const Json& plan) {
  std::cout << format(
      "\n{} cut, {} bytes forward and {} back between stages, per "
      "microbatch\n{:<7}{:>8}{:>8}{:>12}{:>14}  from and to\n",
      plan["partitioner"].get<std::string>(),
      grouped(std::llround(plan["forward_bytes"].get<double>())),
      grouped(std::llround(plan["backward_bytes"].get<double>())), "device", "blocks", "share",
      "weights", "wires in");
  double total = 0.0;
  for (const Json& stage : plan["stages"]) total += stage["seconds"].get<double>();
  for (const Json& stage : plan["stages"]) {
    const Json& blocks = stage["blocks"];
    std::cout << format("{:<7}{:>8}{:>7.1f}%{:>12}{:>14}  {}{}\n", stage["device"].get<int>(),
                        blocks.size(), 100.0 * stage["seconds"].get<double>() / total,
                        in_bytes(std::llround(stage["parameter_bytes"].get<double>())),
                        in_bytes(std::llround(stage["bytes_in"].get<double>())),
                        blocks.front().get<std::string>(),
                        blocks.size() > 1 ? " .. " + blocks.back().get<std::string>() : "");
  }
  if (!plan["remark"].get<std::string>().empty())
    std::cout << plan["remark"].get<std::string>() << "\n";
}

}  // namespace

Command trace_command(CLI::App& program) {
  struct Options {
    SettingOptions settings;
    std::string output, partitioner = "exact";
    int stages = 0;
    int64_t documents = 0;
    bool wires = false, timed = false, json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "trace", "A model's blocks, parameters, wires and work, without allocating its weights");
  options->settings.add_to(*app);
  app->add_flag("--wires", options->wires, "list the wires too: who writes, who reads");
  app->add_flag("--timed", options->timed,
                "run each kind of block for a typical microbatch and note its seconds and bytes "
                "(one block's weights at a time)");
  app->add_option("--output", options->output,
                  "write the trace to this file (docs/formats/trace.md)");
  app->add_option("--stages", options->stages,
                  "also cut the model into so many pipeline stages and print them");
  app->add_option("--partitioner", options->partitioner,
                  "of --stages: exact, blind, linear, tree, pipedream, parameters or uniform")
      ->capture_default_str();
  app->add_option("--documents", options->documents,
                  "of --stages: documents of the corpus, whose index takes memory, too")
      ->check(CLI::NonNegativeNumber);
  app->add_flag("--json", options->json, "print everything as one JSON object on stdout");
  return {
      app, [options] {
        train::RunConfig config = run_config(options->settings);
        train::read_text_encoder(config);
        const model::Model model(config.model, nullptr, false,
                                 config.retriever.objective_options());
        Json traced = trace(model, config.train.precision);
        std::optional<parallel::Plan> plan;
        if (options->timed || options->stages > 0 || !options->output.empty()) {
          config.validate();
          parallel::Trace costs = train::trace_model(config, model, options->timed);
          if (const auto data = train::distinct_of_data(config)) {
            costs.distinct_ratio = data->ratio;
            costs.distinct_source = data->source;
          }
          if (!options->output.empty()) parallel::write_trace(costs, options->output);
          traced["work"] = work_of(costs);
          if (options->stages > 0) {
            if (!options->timed) parallel::set_times(costs, kGuessedFlops);
            plan = train::partition_for(config, costs, options->partitioner, options->stages,
                                        options->documents);
            traced["plan"] = describe(costs, *plan);
          }
        }
        if (options->json) {
          print_json(traced);
          return 0;
        }
        const int64_t n = traced["parameters"].get<int64_t>();
        print_tree(rows_of(model.blocks()), traced["bytes"]["weights"].get<int64_t>() / n);
        std::cout << grouped(n) << " parameters. Training keeps "
                  << in_bytes(traced["bytes"]["weights"].get<int64_t>()) << " of weights ("
                  << traced["dtype"].get<std::string>() << "), "
                  << in_bytes(traced["bytes"]["gradients"].get<int64_t>()) << " of gradients and "
                  << in_bytes(traced["bytes"]["optimizer"].get<int64_t>())
                  << " of optimizer state.\n";
        for (const Json& wire : traced["wires"]) {
          if (!options->wires) break;
          std::cout << wire["name"].get<std::string>() << ": "
                    << wire["producer"].get<std::string>() << " ->";
          for (const Json& reader : wire["readers"]) std::cout << " " << reader.get<std::string>();
          std::cout << "\n";
        }
        if (options->timed) {
          double forward = 0.0, backward = 0.0;
          for (const Json& block : traced["work"]["blocks"]) {
            forward += block["forward_s"].get<double>();
            backward += block["input_grad_s"].get<double>() + block["weight_grad_s"].get<double>();
          }
          std::cout << format(
              "A microbatch of {:.0f} inputs takes {:.3f} s forward and {:.3f} s backward here.\n",
              traced["work"]["inputs"].get<double>(), forward, backward);
        }
        if (plan) print_plan(traced["plan"]);
        return 0;
      }};
}

}  // namespace contexture::cli
