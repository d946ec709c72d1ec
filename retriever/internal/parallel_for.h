// A loop over independent items on the OpenMP threads, which may throw.
#pragma once
#include <cstdint>
#include <exception>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace contexture::retriever::internal {

// Multiply-adds below which a second thread costs more than it saves: waking one takes tens of
// microseconds, a whole time slice when the machine is busy.
inline constexpr int64_t kWorthThreads = 4'000'000;

// The OpenMP threads of the next parallel region and the number of this one; 1 and 0 in a file
// compiled without.
inline int max_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}
inline int thread_number() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

// body(i) for i in 0..n-1, in any order, on any thread if there are `work` multiply-adds or more to
// share. The exception of the lowest failing i is thrown after all ran.
template <typename Body>
void parallel_for(int64_t n, int64_t work, const Body& body) {
  [[maybe_unused]] const bool shared = n > 1 && work >= kWorthThreads;  // unused without OpenMP
  std::exception_ptr failure;
  int64_t failed = n;
#pragma omp parallel for schedule(dynamic, 1) if (shared)
  for (int64_t i = 0; i < n; ++i) {
    try {
      body(i);
    } catch (...) {
#pragma omp critical(contexture_parallel_for)
      if (i < failed) {
        failed = i;
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace contexture::retriever::internal
