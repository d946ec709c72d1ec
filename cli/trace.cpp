#include <iostream>
#include <set>

#include "cli/settings.h"
#include "core/error.h"
#include "core/format.h"
#include "core/json.h"
#include "model/model.h"

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

}  // namespace

Command trace_command(CLI::App& program) {
  struct Options {
    SettingOptions settings;
    bool wires = false, json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "trace", "A model's blocks, parameters and wires, without allocating its weights");
  options->settings.add_to(*app);
  app->add_flag("--wires", options->wires, "list the wires too: who writes, who reads");
  app->add_flag("--json", options->json, "print everything as one JSON object on stdout");
  return {app, [options] {
            const train::RunConfig config = run_config(options->settings);
            const model::Model model(config.model);
            const Json traced = trace(model, config.train.precision);
            if (options->json) {
              print_json(traced);
              return 0;
            }
            const int64_t n = traced["parameters"].get<int64_t>();
            print_tree(rows_of(model.blocks()), traced["bytes"]["weights"].get<int64_t>() / n);
            std::cout << grouped(n) << " parameters. Training keeps "
                      << in_bytes(traced["bytes"]["weights"].get<int64_t>()) << " of weights ("
                      << traced["dtype"].get<std::string>() << "), "
                      << in_bytes(traced["bytes"]["gradients"].get<int64_t>())
                      << " of gradients and "
                      << in_bytes(traced["bytes"]["optimizer"].get<int64_t>())
                      << " of optimizer state.\n";
            for (const Json& wire : traced["wires"]) {
              if (!options->wires) break;
              std::cout << wire["name"].get<std::string>() << ": "
                        << wire["producer"].get<std::string>() << " ->";
              for (const Json& reader : wire["readers"])
                std::cout << " " << reader.get<std::string>();
              std::cout << "\n";
            }
            return 0;
          }};
}

}  // namespace contexture::cli
