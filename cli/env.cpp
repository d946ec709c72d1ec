#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <thread>

#include "cli/command.h"
#include "core/error.h"
#include "core/format.h"
#include "core/json.h"
#include "parallel/device.h"
#include "parallel/launch_env.h"
#include "retriever/faiss_version.h"
#include "train/config.h"

namespace contexture::cli {
namespace {

std::string libtorch_file() {
  Dl_info info{};
  return dladdr(reinterpret_cast<const void*>(&c10::GetCPUAllocator), &info) != 0 &&
                 info.dli_fname != nullptr
             ? info.dli_fname
             : "";
}

Json cpu_features() {
  Json features = Json::array();
#if defined(__x86_64__)
  const std::pair<const char*, bool> known[] = {
      {"avx", __builtin_cpu_supports("avx")},
      {"avx2", __builtin_cpu_supports("avx2")},
      {"fma", __builtin_cpu_supports("fma")},
      {"avx512f", __builtin_cpu_supports("avx512f")},
      {"avx512bf16", __builtin_cpu_supports("avx512bf16")}};
  for (const auto& [name, there] : known) {
    if (there) features.push_back(name);
  }
#endif
  return features;
}

// How this process was started, and what said so.
Json launch() {
  const parallel::Environment env = parallel::process_environment();
  const parallel::LaunchEnv found = parallel::detect_launch(env);
  Json out{{"launcher", found.launcher}};
  for (const parallel::Finding& finding : found.findings)
    out[finding.name] = finding.value + " (" + finding.from + ")";
  for (size_t i = 0; i < found.notes.size(); ++i) out[concat("note_", i + 1)] = found.notes[i];
  out["passed_through"] = parallel::passed_through(env);
  return out;
}

// Meets the ranks that were started together and adds up their ones.
Json meet_all(double deadline_s) {
  const auto start = std::chrono::steady_clock::now();
  const parallel::LaunchEnv found = parallel::detect_launch(parallel::process_environment());
  const auto world =
      parallel::connect(found.rendezvous, at::hasCUDA() ? "nccl" : "gloo", deadline_s);
  const at::Device device = parallel::agree_on_device("auto", found, world.get());
  const at::Tensor ones = at::ones({1}, at::TensorOptions().dtype(at::kLong).device(device));
  world->all_reduce(ones).wait();
  return {
      {"ranks", ones.item<int64_t>()},
      {"over", device.is_cuda() ? "NCCL" : "Gloo"},
      {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()}};
}

// "NVIDIA H100 80GB HBM3, 85.0 GB, compute capability 9.0", one for each that this process sees.
Json gpus() {
  Json out = Json::array();
  for (const parallel::Gpu& gpu : parallel::visible_gpus()) {
    out.push_back(format("{}, {:.1f} GB, compute capability {}.{}", gpu.name,
                         gpu.memory_bytes / 1e9, gpu.major, gpu.minor));
  }
  return out;
}

// What run.device=auto and train.precision=auto would take here.
Json automatic() {
  try {
    const at::Device device = parallel::choose_device("auto");
    return {{"device", parallel::describe(device)},
            {"precision", train::precision_of("auto", device) == at::kBFloat16 ? "bf16" : "fp32"}};
  } catch (const UsageError& error) {
    return {{"device", concat("none: ", error.what())}};
  }
}

Json environment() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  train::DataConfig cache;
  cache.root = "{cache}";
  const std::string folder = train::data_path(cache, "contexture");
  return {{"contexture", CONTEXTURE_VERSION},
          {"compiler", __VERSION__},
          {"libtorch",
           {{"version", TORCH_VERSION},
            {"file", libtorch_file()},
            {"cpu_kernels", at::get_cpu_capability()}}},
          {"faiss", retriever::faiss_version()},
          {"cpu",
           {{"cores", std::thread::hardware_concurrency()},
            {"threads", at::get_num_threads()},
            {"features", cpu_features()}}},
          {"auto", automatic()},
          {"cuda", at::globalContext().hasCUDA()},
          {"gpus", gpus()},
          {"launch", launch()},
          {"cache",
           {{"xdg_cache_home", xdg != nullptr ? xdg : ""},
            {"folder", folder},
            {"demo_data", std::filesystem::exists(std::filesystem::path(folder) / "demo-data" /
                                                  "corpus.jsonl")}}}};
}

void print(const Json& value, const std::string& name) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items())
      print(member, name.empty() ? key : name + "." + key);
  } else {
    std::cout << name << std::string(name.size() < 22 ? 22 - name.size() : 1, ' ')
              << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
  }
}

}  // namespace

Command env_command(CLI::App& program) {
  struct Options {
    double deadline_s = 30;
    bool json = false, connect = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "env", "Versions, processor, GPUs, precision, launcher and folders that this program finds");
  app->add_flag("--connect", options->connect,
                "also meet the other ranks, over Gloo or, from GPU to GPU, NCCL: tries a launcher "
                "and a network before a training does");
  app->add_option("--deadline", options->deadline_s, "seconds that --connect waits for them")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            Json all = environment();
            if (options->connect) all["met"] = meet_all(options->deadline_s);
            if (options->json) {
              print_json(all);
            } else {
              print(all, "");
            }
            return 0;
          }};
}

}  // namespace contexture::cli
