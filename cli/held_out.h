// Evaluation on held-out examples, as `demo` and `eval RUN` do it: the figures, and what the run
// folder keeps of them for the report.
#pragma once
#include <string>
#include <vector>

#include "train/evaluator.h"

namespace contexture::cli {

struct HeldOut {
  Json figures;                  // "held_out" of summary.json
  Json samples = Json::array();  // cards, as in samples.json
  Json edits = Json::array();    // the same; empty where edits were not asked for
  Json records = Json::array();  // of each example (docs/evaluation.md); not kept
};

// edits: also edit documents and see whether the answers follow. Collective.
HeldOut evaluate_held_out(train::Session& session, const train::PictureSet& set,
                          const std::vector<const data::Example*>& examples, bool edits);

// Puts it in place of what an earlier evaluation left in the run folder, and writes the report
// anew. train: of summary.json; null: what is there stays. Returns summary.json. By one rank.
Json keep_held_out(const train::RunConfig& config, const HeldOut& found,
                   const Json& train = nullptr);

}  // namespace contexture::cli
