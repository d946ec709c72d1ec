#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <thread>

#include "cli/command.h"
#include "core/json.h"
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
          {"precision_auto", train::precision_of("auto") == at::kBFloat16 ? "bf16" : "fp32"},
          {"cuda", at::globalContext().hasCUDA()},
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
  auto json = std::make_shared<bool>(false);
  CLI::App* app = program.add_subcommand(
      "env", "Versions, processor, precision and folders that this program finds");
  app->add_flag("--json", *json, "print one JSON object on stdout");
  return {app, [json] {
            if (*json) {
              print_json(environment());
            } else {
              print(environment(), "");
            }
            return 0;
          }};
}

}  // namespace contexture::cli
