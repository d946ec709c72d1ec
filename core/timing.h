// The clock that durations are measured with, and the figure that benches quote.
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

namespace contexture {

// Seconds of a clock that never goes back; only differences mean anything.
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The middle value; of an even number the upper of the two. Not of none.
inline double median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

}  // namespace contexture
