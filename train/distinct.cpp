#include "train/distinct.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include "core/error.h"
#include "core/format.h"
#include "core/json.h"
#include "train/step_data.h"

namespace contexture::train {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kSteps = 32;  // whose gold documents are counted

std::optional<DistinctRatio> of_run(const fs::path& run) {
  const fs::path metrics = run / "metrics.jsonl", resolved = run / "config.resolved.json";
  if (!fs::exists(metrics) || !fs::exists(resolved)) return std::nullopt;
  const Json config = read_json_file(resolved.string());
  if (config.value("/parallel/dp"_json_pointer, 0) != 1) return std::nullopt;
  std::ifstream file(metrics);
  double slots = 0.0, distinct = 0.0;
  int64_t steps = 0;
  for (std::string line; std::getline(file, line);) {
    const Json step = parse_json(line, metrics.string());
    if (!step.contains("slots") || !step.contains("distinct_documents")) continue;
    slots += step["slots"].get<double>();
    distinct += step["distinct_documents"].get<double>();
    ++steps;
  }
  if (slots == 0.0 || distinct == 0.0) return std::nullopt;
  return DistinctRatio{distinct / slots, format("{} steps of the run in {}", steps, run.string())};
}

std::optional<DistinctRatio> of_examples(const RunConfig& config) {
  std::vector<data::ExampleSet> sets;
  data::BadRecords reported_elsewhere(data::BadRecords::Policy::kSkip);  // by who trains on them
  for (const TrainingSet& set : config.data.train) {
    const std::string path = data_path(config.data, set.path);
    if (!set.spans.empty() || !fs::exists(path)) return std::nullopt;
    sets.push_back(data::read_examples(path, reported_elsewhere));
    std::erase_if(sets.back().examples,
                  [&](const data::Example& e) { return !is_of(set.types, e); });
    if (sets.back().examples.empty()) return std::nullopt;
  }
  if (sets.empty()) return std::nullopt;
  std::vector<const data::ExampleSet*> pointers;
  for (const data::ExampleSet& set : sets) pointers.push_back(&set);
  const data::Sampler sampler(sampling_of(config), pointers);
  const int64_t steps = std::min(kSteps, config.train.steps);
  int64_t slots = 0, distinct = 0;
  for (int64_t step = 0; step < steps; ++step) {
    std::set<std::string> seen;
    for (const data::Pick& pick : sampler.batch_at(step)) {
      const std::vector<std::string>& gold =
          sets[pick.dataset].examples[static_cast<size_t>(pick.index)].documents;
      seen.insert(gold.begin(), gold.end());
      slots += static_cast<int64_t>(gold.size());
    }
    distinct += static_cast<int64_t>(seen.size());
  }
  if (slots == 0) return std::nullopt;
  return DistinctRatio{
      static_cast<double>(distinct) / static_cast<double>(slots),
      format("an estimate from the gold documents of the first {} steps' examples", steps)};
}

}  // namespace

std::optional<DistinctRatio> distinct_of_data(const RunConfig& config) {
  if (auto known = of_run(config.run.dir)) return known;
  return of_examples(config);
}

}  // namespace contexture::train
