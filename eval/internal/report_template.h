// The files of eval/report/, compiled in by CMake (report_template.cpp.in).
#pragma once

#include <string_view>

namespace contexture::eval::report_template {

extern const std::string_view kPage, kStyle, kCharts, kScript;

}  // namespace contexture::eval::report_template
