// A run's settings as the planner sees them (parallel/planner.h).
#pragma once
#include "parallel/plan_report.h"
#include "train/config.h"

namespace contexture::train {

// What settings do not say of a run.
struct PlanningFacts {
  int64_t documents = 0;  // of the corpus; 0: unknown, and refreshes and the index cost nothing
  double search_s = 0.0;  // a step's index search, as measured
  bool timed =
      false;  // blocks are timed on this machine instead of by FLOPs and the cluster's peak
};

// Traces of any size follow from two: all amounts are sums of a part per input and a part per group
// of inputs that read the same documents (data.group_size), which is exact since rows are packed.
// The model's shapes live as long as the result.
parallel::PlannedModel planned_model(const RunConfig& config, const PlanningFacts& facts);

// Bytes that an index of this factory string keeps of a vector: codes as FAISS lays them out, and
// the fp32 vectors where the index has less.
double index_bytes_per_vector(const std::string& factory, int64_t width);

// What halving the batch, the pictures' size or the texts' length would leave on the fullest GPU
// under a layout.
std::vector<parallel::Variant> halved_variants(const RunConfig& config, const PlanningFacts& facts,
                                               const parallel::Cluster& cluster,
                                               const parallel::SearchOptions& options,
                                               const parallel::Layout& layout);

}  // namespace contexture::train
