// report.html: one self-contained page about a run, readable from any disk, without a network.
//
// Reads what is there of metrics.jsonl, summary.json, config.resolved.json, config.defaults.json,
// samples.json, data_health.json and run.json in the run folder (docs/formats/metrics.md), so the
// page of a run that died shows what it got to. Pictures are embedded. Text of the run can never
// become markup or script in the page.
#pragma once

#include <string>

#include "core/json_fwd.h"

namespace contexture::eval {

// Everything that the page shows, as one JSON object; `write_report` embeds it.
// A damaged line of metrics.jsonl (the torn end of a killed run) is left out and counted in
// "problems"; so is a file that is not JSON. UserError if run_dir is not a folder.
Json report_data(const std::string& run_dir);

// The page for such data: the template with the data in it, escaped.
std::string report_page(const Json& data);

// Writes run_dir/report.html, replacing it atomically.
void write_report(const std::string& run_dir);

}  // namespace contexture::eval
