#include <algorithm>
#include <cstring>
#include <iostream>
#include <set>

#include "cli/command.h"
#include "core/error.h"
#include "core/files.h"
#include "core/format.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "parallel/row_pieces.h"
#include "train/model_folder.h"
#include "train/published_encoder.h"

namespace contexture::cli {
namespace {
namespace fs = std::filesystem;

// A checkpoint folder, a run folder (its newest checkpoint, or the one of `step`), or one
// safetensors file.
fs::path locate(const fs::path& given, int64_t step) {
  if (fs::is_regular_file(given) || fs::exists(given / "manifest.json")) return given;
  const fs::path folder = fs::is_directory(given / "checkpoints") ? given / "checkpoints" : given;
  const std::vector<int64_t> steps = parallel::list_checkpoints(folder);
  CONTEXTURE_DATA_REQUIRE(!steps.empty(), given.string(),
                          " is no checkpoint (manifest.json is missing), and no run that has one.");
  return parallel::checkpoint_path(folder, step < 0 ? steps.back() : step);
}

// The safetensors files of a checkpoint by stem, only those asked for.
std::map<std::string, fs::path> tensor_files(const fs::path& checkpoint,
                                             const std::vector<std::string>& only) {
  std::map<std::string, fs::path> out;
  if (fs::is_regular_file(checkpoint)) return {{checkpoint.stem().string(), checkpoint}};
  const Json manifest = parallel::read_manifest(checkpoint);
  for (const auto& [name, about] : manifest["files"].items()) {
    const fs::path path = checkpoint / name;
    const bool wanted =
        only.empty() || std::find(only.begin(), only.end(),
                                  parallel::file_group(path.stem().string())) != only.end();
    if (wanted && path.extension() == ".safetensors") out[path.stem().string()] = path;
  }
  CONTEXTURE_USAGE_REQUIRE(!out.empty(), checkpoint.string(),
                           " has no such file. Checkpoints hold model, optimizer and retriever.");
  return out;
}

std::string shape_text(const std::vector<int64_t>& shape) { return Json(shape).dump(); }

Command inspect_command(CLI::App& group) {
  struct Options {
    std::string path;
    std::vector<std::string> files;
    int64_t step = -1;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand("inspect", "List the tensors of a checkpoint");
  app->add_option("path", options->path,
                  "checkpoint folder, run folder (its newest) or .safetensors file")
      ->required();
  app->add_option("--step", options->step, "of a run folder: this step's checkpoint");
  app->add_option("--file", options->files,
                  "model, optimizer or retriever; may be repeated; default: all")
      ->allow_extra_args(false);
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            const fs::path checkpoint = locate(options->path, options->step);
            Json files = Json::object();
            for (const auto& [stem, path] : tensor_files(checkpoint, options->files)) {
              const SafetensorsReader reader(path);
              Json tensors = Json::array();
              int64_t elements = 0;
              for (const std::string& name :
                   std::set<std::string>(reader.names().begin(), reader.names().end())) {
                const TensorView& view = reader.get(name);
                elements += static_cast<int64_t>(view.bytes.size()) * 8 / dtype_bits(view.dtype);
                tensors.push_back({{"name", name},
                                   {"dtype", dtype_name(view.dtype)},
                                   {"shape", view.shape},
                                   {"bytes", view.bytes.size()}});
              }
              files[stem] = {{"file", path.string()}, {"elements", elements}, {"tensors", tensors}};
            }
            if (options->json) {
              print_json({{"checkpoint", checkpoint.string()}, {"files", files}});
              return 0;
            }
            for (const auto& [stem, file] : files.items()) {
              std::cout << stem << ": " << file["tensors"].size() << " tensors, "
                        << file["elements"] << " elements\n";
              for (const Json& tensor : file["tensors"]) {
                std::cout << format("  {:<5} {:<18} {}\n", tensor["dtype"].get<std::string>(),
                                    shape_text(tensor["shape"].get<std::vector<int64_t>>()),
                                    tensor["name"].get<std::string>());
              }
            }
            return 0;
          }};
}

Command verify_command(CLI::App& group) {
  struct Options {
    std::string path;
    int64_t step = -1;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(
      "verify", "Read every byte of a checkpoint against its checksums; exit code 3 if damaged");
  app->add_option("path", options->path, "checkpoint folder, or run folder (its newest)")
      ->required();
  app->add_option("--step", options->step, "of a run folder: this step's checkpoint");
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            const fs::path checkpoint = locate(options->path, options->step);
            const std::vector<std::string> problems = parallel::verify_checkpoint(checkpoint);
            if (options->json) {
              print_json({{"checkpoint", checkpoint.string()},
                          {"ok", problems.empty()},
                          {"problems", problems}});
            } else {
              for (const std::string& problem : problems) std::cout << problem << "\n";
              std::cout << checkpoint.string()
                        << (problems.empty() ? " is whole\n" : " is damaged\n");
            }
            return problems.empty() ? 0 : 3;
          }};
}

Command reshard_command(CLI::App& group) {
  struct Options {
    std::string from, to;
    int64_t step = -1;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(
      "reshard",
      "Rewrite a checkpoint of many ranks as one file each of model, optimizer, retriever");
  app->add_option("from", options->from, "checkpoint folder or run folder (its newest)")
      ->required();
  app->add_option("to", options->to, "folder to write step-NNNNNNNN into")->required();
  app->add_option("--step", options->step, "of a run folder: this step's checkpoint");
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            const fs::path from = locate(options->from, options->step);
            parallel::Checkpoint checkpoint = parallel::load_checkpoint(from);
            parallel::join_pieces(checkpoint.files["retriever"]);
            const fs::path to = parallel::checkpoint_path(options->to, checkpoint.step);
            CONTEXTURE_USAGE_REQUIRE(!fs::exists(to), to.string(), " exists. Name another folder.");
            make_folders(options->to);
            parallel::save_checkpoint(options->to, checkpoint);
            if (options->json) {
              print_json({{"checkpoint", to.string()}, {"step", checkpoint.step}});
            } else {
              std::cout << to.string() << "\n";
            }
            return 0;
          }};
}

struct Difference {
  std::string what;  // empty: equal
  double relative = 0.0, largest = 0.0;
};

// Norms in fp64: |a - b| / |a|, and the largest single difference.
Difference difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type())
    return {concat("dtype ", a.scalar_type(), " and ", b.scalar_type())};
  if (a.sizes() != b.sizes())
    return {concat("shape ", shape_text(a.sizes().vec()), " and ", shape_text(b.sizes().vec()))};
  if (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0) return {};
  const at::Tensor wide_a = a.to(at::kDouble), delta = b.to(at::kDouble) - wide_a;
  const double norm = wide_a.norm().item<double>();
  Difference out{"values"};
  out.largest = delta.abs().max().item<double>();
  const double moved = delta.norm().item<double>();
  out.relative = norm > 0 ? moved / norm : moved;
  return out;
}

Command diff_command(CLI::App& group) {
  struct Options {
    std::string a, b;
    std::vector<std::string> files;
    double tolerance = 0.0;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(
      "diff", "Compare the tensors of two checkpoints; exit code 1 if they differ");
  app->add_option("a", options->a,
                  "checkpoint folder, run folder (its newest) or .safetensors file")
      ->required();
  app->add_option("b", options->b, "the other one")->required();
  app->add_option("--file", options->files,
                  "model, optimizer or retriever; may be repeated; default: all")
      ->allow_extra_args(false);
  app->add_option("--tolerance", options->tolerance,
                  "relative norm of the difference that still counts as equal")
      ->capture_default_str();
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {
      app, [options] {
        const auto load = [&](const std::string& path) {
          parallel::NamedTensors tensors;
          for (const auto& [stem, file] : tensor_files(locate(path, -1), options->files)) {
            for (const auto& [name, tensor] : parallel::read_tensors(file))
              tensors[parallel::file_group(stem) + "/" + name] = tensor;
          }
          parallel::join_pieces(tensors);
          return tensors;
        };
        const auto a = load(options->a), b = load(options->b);
        std::set<std::string> names;
        for (const auto& [name, tensor] : a) names.insert(name);
        for (const auto& [name, tensor] : b) names.insert(name);
        Json differences = Json::array();
        for (const std::string& name : names) {
          Difference found{a.contains(name) ? "only in the first" : "only in the second"};
          if (a.contains(name) && b.contains(name)) found = difference(a.at(name), b.at(name));
          if (found.what.empty() ||
              (found.what == "values" && found.relative <= options->tolerance))
            continue;
          differences.push_back({{"tensor", name}, {"difference", found.what}});
          if (found.what == "values")
            differences.back().update({{"relative", found.relative}, {"largest", found.largest}});
        }
        if (options->json) {
          print_json({{"equal", differences.empty()},
                      {"tensors", names.size()},
                      {"differences", differences}});
        } else {
          for (const Json& d : differences) {
            std::cout << d["tensor"].get<std::string>() << ": ";
            if (d.contains("relative")) {
              std::cout << format("relative {:.3e}, largest {:.3e}\n", d["relative"].get<double>(),
                                  d["largest"].get<double>());
            } else {
              std::cout << d["difference"].get<std::string>() << "\n";
            }
          }
          std::cout << differences.size() << " of " << names.size() << " tensors differ\n";
        }
        return differences.empty() ? 0 : 1;
      }};
}

using Export = void (*)(const fs::path& run, const fs::path& output, int64_t step);

Command export_command(CLI::App& group, const std::string& name, const std::string& about,
                       Export write) {
  struct Options {
    std::string run, output;
    int64_t step = -1;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(name, about);
  app->add_option("run", options->run, "run folder")->required();
  app->add_option("output", options->output, "folder to write")->required();
  app->add_option("--step", options->step, "the run's checkpoint; default: the newest");
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options, write] {
            write(options->run, options->output, options->step);
            if (options->json) {
              print_json({{"folder", options->output}});
            } else {
              std::cout << options->output << "\n";
            }
            return 0;
          }};
}

}  // namespace

Command checkpoint_command(CLI::App& program) {
  CLI::App* app =
      program.add_subcommand("checkpoint", "Look into checkpoints, verify and compare them");
  return command_group(
      app, {inspect_command(*app), verify_command(*app), diff_command(*app), reshard_command(*app),
            export_command(*app, "export",
                           "Write a run's model apart from the run: weights, "
                           "config.json, tokenizer; train.start_from reads it",
                           train::export_model),
            export_command(*app, "export-encoder",
                           "Write a run's model.text_encoder, as trained, as a "
                           "Hugging Face folder",
                           train::export_encoder)});
}

}  // namespace contexture::cli
