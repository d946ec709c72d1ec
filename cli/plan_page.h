// A plan as one HTML file that needs no network.
#pragma once
#include <string>

#include "core/json_fwd.h"

namespace contexture::cli {

// data: what `contexture plan --json` prints, with "timeline": the events of parallel::chrome_trace
// of the first plan.
std::string plan_page(const Json& data);

}  // namespace contexture::cli
