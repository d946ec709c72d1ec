// A loop over independent items on the OpenMP threads, which may throw.
#pragma once
#include <cstdint>
#include <exception>

namespace contexture::retriever::internal {

// body(i) for i in 0..n-1, in any order, on any thread. The exception of the lowest failing i is
// thrown after all ran.
template <typename Body>
void parallel_for(int64_t n, const Body& body) {
  std::exception_ptr failure;
  int64_t failed = n;
#pragma omp parallel for schedule(dynamic, 1) if (n > 1)
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
