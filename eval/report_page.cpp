#include "core/error.h"
#include "core/json.h"
#include "eval/internal/report_template.h"
#include "eval/page.h"
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

std::string fill_page(std::string_view page,
                      const std::map<std::string_view, std::string_view>& parts, const Json& data) {
  std::string out;
  while (true) {
    const size_t open = page.find("{{");
    out += page.substr(0, open);
    if (open == std::string_view::npos) return out;
    const size_t close = page.find("}}", open);
    CONTEXTURE_INVARIANT(close != std::string_view::npos, "the page template is cut short");
    const std::string_view name = page.substr(open + 2, close - open - 2);
    page.remove_prefix(close + 2);
    if (name == "data") {
      out += script_json(data);
      continue;
    }
    const auto part = parts.find(name);
    CONTEXTURE_INVARIANT(part != parts.end(), "the page template has no part ", name);
    out += part->second;
  }
}

std::string_view house_style() { return report_template::kStyle; }

std::string report_page(const Json& data) {
  using namespace report_template;
  return fill_page(kPage, {{"style", kStyle}, {"charts", kCharts}, {"script", kScript}}, data);
}

}  // namespace contexture::eval
