#include "train/trace_cache.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <fstream>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/log.h"
#include "train/config.h"

namespace contexture::train {
namespace fs = std::filesystem;

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

TraceCache::TraceCache(const parallel::Trace& untimed) {
  const fs::path program = "/proc/self/exe";
  const Json key = {
      {"trace", parallel::to_json(untimed)},
      {"processor", processor_name()},
      {"kernels", at::get_cpu_capability()},
      {"threads", at::get_num_threads()},
      {"libtorch", TORCH_VERSION},
      {"program",
       {fs::file_size(program), fs::last_write_time(program).time_since_epoch().count()}}};
  DataConfig cache;
  cache.root = "{cache}";
  path_ = fs::path(data_path(cache, "contexture/traces")) / (sha256_hex(key.dump()) + ".json");
}

std::optional<parallel::Trace> TraceCache::read() const {
  if (!fs::exists(path_)) return std::nullopt;
  try {
    parallel::Trace known = parallel::read_trace(path_.string());
    log::info("the times of these blocks were measured before: {} (delete it to measure anew)",
              path_.string());
    return known;
  } catch (const UserError& error) {
    log::warn("{}; measuring anew", error.what());
    return std::nullopt;
  }
}

void TraceCache::write(const parallel::Trace& timed) const {
  try {
    make_folders(path_.parent_path());
    parallel::write_trace(timed, path_.string());
  } catch (const UserError& error) {
    log::warn("{}; the times measured are not kept", error.what());
  }
}

}  // namespace contexture::train
