// Self-contained pages: a template with its style and scripts, and data in it that can never become
// markup or script.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/json_fwd.h"

namespace contexture::eval {

// `page` with {{name}} replaced by parts[name], and {{data}} by the data as JSON for a script
// element of type application/json. One pass: nothing in the data is taken for a placeholder. Bug
// on a name that is not among the parts.
std::string fill_page(std::string_view page,
                      const std::map<std::string_view, std::string_view>& parts, const Json& data);

// The report's style sheet, for pages that look like it.
std::string_view house_style();

}  // namespace contexture::eval
