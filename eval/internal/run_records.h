// metrics.jsonl as columns for curves (docs/formats/metrics.md). Internal to the report.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/json_fwd.h"

namespace contexture::eval {

// text: the file's content. Gives an object with
//   train: {"step": [...], "loss": [...], ...}  columns of equal length, null where nothing is
//   known evals: the same for evaluations; nested figures are named with dots ("recall_at.1")
//   refreshes: [{"step", "time"}]; extra_series: names of unusual training columns
//   last_step, seconds (or null), num_bad_lines, thinned (training records per point)
// More than max_points training records are thinned to means of equal runs of records.
Json run_curves(std::string_view text, size_t max_points = 3000);

}  // namespace contexture::eval
