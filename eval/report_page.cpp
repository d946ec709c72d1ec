#include "core/error.h"
#include "core/json.h"
#include "eval/internal/report_template.h"
#include "eval/report.h"

namespace contexture::eval {
namespace {

// JSON that is safe inside a script element: no text of the run can end the element, start a
// comment or be a line separator.
std::string script_json(const Json& data) {
  const std::string text =
      data.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size() + text.size() / 16);
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "\\u003c";
        break;
      case '>':
        out += "\\u003e";
        break;
      case '&':
        out += "\\u0026";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace

std::string report_page(const Json& data) {
  // One pass over the template, so that nothing in the data is taken for a placeholder.
  std::string page;
  std::string_view rest = report_template::kPage;
  while (true) {
    const size_t open = rest.find("{{");
    page += rest.substr(0, open);
    if (open == std::string_view::npos) return page;
    const size_t close = rest.find("}}", open);
    CONTEXTURE_INVARIANT(close != std::string_view::npos, "the page template is cut short");
    const std::string_view name = rest.substr(open + 2, close - open - 2);
    rest.remove_prefix(close + 2);
    if (name == "style") {
      page += report_template::kStyle;
    } else if (name == "charts") {
      page += report_template::kCharts;
    } else if (name == "script") {
      page += report_template::kScript;
    } else {
      CONTEXTURE_INVARIANT(name == "data", "the page template has no part ", name);
      page += script_json(data);
    }
  }
}

}  // namespace contexture::eval
