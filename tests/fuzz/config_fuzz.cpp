// Any text is either refused with a UsageError or gives a config whose dump gives the same config
// again. The first byte chooses between a JSON file and a --set.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/config.h"
#include "core/error.h"
#include "core/json.h"

namespace {

struct Source {
  std::string path;
  double weight = 1.0;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("path", path, "");
    visit("weight", weight, "");
  }
};

struct Train {
  int64_t steps = 1;
  double lr = 0.1;
  bool compile = false;
  std::vector<int64_t> shape;
  std::vector<double> betas;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("steps", steps, "");
    visit("lr", lr, "");
    visit("compile", compile, "");
    visit("shape", shape, "");
    visit("betas", betas, "");
  }
};

struct Config {
  std::string name;
  Train train;
  std::vector<Source> sources;
  std::map<std::string, double> weights;
  std::vector<std::string> tags;
  int threads = 2;
  uint64_t seed = 1;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("name", name, "");
    visit("train", train, "");
    visit("sources", sources, "");
    visit("weights", weights, "");
    visit("tags", tags, "");
    visit("threads", threads, "");
    visit("seed", seed, "");
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contexture;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Config config;
  try {
    if (text.starts_with('=')) {
      apply_set(config, text.substr(1));
    } else {
      apply_json(config, text, "input");
    }
  } catch (const UsageError& error) {
    (void)error.what();
    return 0;
  }
  const Json dump = to_json(config);
  Config again;
  apply_json(again, dump.dump(), "dump");
  if (to_json(again) != dump) std::abort();
  return 0;
}
