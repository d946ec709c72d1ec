// Chrome's trace format (chrome://tracing, Perfetto): what is simulated and what was measured is
// written alike.
#pragma once
#include <string>

#include "core/json.h"

namespace contexture::parallel {

// A stretch of work: pid groups rows, tid is the row. The format counts microseconds.
inline Json chrome_event(const std::string& name, const std::string& category, int pid, int tid,
                         double start_s, double seconds) {
  return {{"name", name}, {"cat", category},     {"ph", "X"},           {"pid", pid},
          {"tid", tid},   {"ts", start_s * 1e6}, {"dur", seconds * 1e6}};
}

inline Json chrome_trace_file(Json events) {
  return {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
}

}  // namespace contexture::parallel
