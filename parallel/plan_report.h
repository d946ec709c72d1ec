// A plan for people and for other programs: as JSON, as sentences with numbers, as a Chrome trace.
#pragma once
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "parallel/planner.h"

namespace contexture::parallel {

// {"dp", "pp", "tp", "schedule", "microbatches", "zero", "step_s", "memory_gb", "idle",
// "usd_per_1k_samples" (null without a price), "stages": [...], ...}: docs/planning.md lists the
// members.
Json to_json(const Planner& planner, const LayoutPlan& plan);

// The simulated schedule of one step in Chrome's trace format: a row a pipeline rank, time in
// microseconds.
Json chrome_trace(const LayoutPlan& plan);

// The best layout with one setting changed.
struct Variant {
  std::string change;  // "train.batch_size halved to 128"
  double memory_bytes = 0.0, activation_bytes = 0.0;
};

struct AdviceFacts {
  FixedLayout fixed;
  std::vector<Variant> variants = {};  // of the best plan
  double files_per_sample =
      0.0;                      // that a training input and its documents would be as single files
  double network_share = -1.0;  // w of the reference formula; negative: what the best plan predicts
  double round_ratio = 0.0;     // r of the reference formula; 0: its two published readings
};

// What to do and why, most important first. plans: best first, not empty. Searches further (plain
// data parallelism, the best pipeline, the best without one), which takes about as long as the
// first search.
std::vector<std::string> advice(Planner& planner, const std::vector<LayoutPlan>& plans,
                                const AdviceFacts& facts);

// "1.5 GB", "12 MB".
std::string bytes_in_words(double bytes);
// "dp 8 x pp 4 x tp 4, 1f1b, 32 microbatches, ZeRO 1, recompute all"; token slices, assembly and
// the mesh's order where they are not the usual
std::string in_words(const Layout& layout);

}  // namespace contexture::parallel
