// Whole runs on ranks that are threads, and what they left in their folders.
#pragma once
#include <filesystem>
#include <fstream>

#include "layouts.h"
#include "train/trainer.h"

namespace contexture::train {

// In config's layout, with config's refresh ranks beside it.
inline void train_on_threads(const RunConfig& config, bool resume) {
  on_threads(
      config.parallel,
      [&](const parallel::Groups& groups) {
        if (groups.refreshes()) {
          serve_refreshes(config, groups);
        } else {
          Trainer(config, resume, groups).run();
        }
      },
      static_cast<int>(config.retriever.refresh_ranks));
}

// Every step's figures and what refreshes measured, as the metrics file has them.
inline std::vector<Json> records(const std::filesystem::path& run) {
  std::ifstream file(run / "metrics.jsonl");
  std::vector<Json> out;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    Json kept;
    for (const char* key : {"step", "loss", "contrastive", "grad_norm", "recall_at_1",
                            "stale_steps", "stale_recall", "eval"}) {
      if (record.contains(key)) kept[key] = record[key];
    }
    if (kept.size() > 1) out.push_back(kept);
  }
  return out;
}

// Equal but for sums in another order, in fp64.
inline void expect_same_steps(const std::vector<Json>& got, const std::vector<Json>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (!want[i].contains("loss")) continue;
    EXPECT_NEAR(got[i]["loss"].get<double>(), want[i]["loss"].get<double>(),
                1e-10 * want[i]["loss"].get<double>())
        << got[i];
    EXPECT_EQ(got[i]["recall_at_1"], want[i]["recall_at_1"]);
  }
}

inline parallel::NamedTensors retriever_of(const RunConfig& config, int64_t step) {
  auto checkpoint = parallel::load_checkpoint(
      parallel::checkpoint_path(std::filesystem::path(config.run.dir) / "checkpoints", step));
  return checkpoint.files.at("retriever");
}

}  // namespace contexture::train
