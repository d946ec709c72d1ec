// Parallel loops for the CPU kernels, on the one OpenMP runtime that LibTorch brings. GOMP_parallel
// is the function behind `#pragma omp parallel`: calling it keeps clang builds on the same runtime
// as g++ builds. at::set_num_threads sets the number of threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

extern "C" {
void GOMP_parallel(void (*body)(void*), void* data, unsigned num_threads, unsigned flags);
int omp_get_max_threads(void);
}

namespace contexture::model::ops::internal {

// task(i) for every i in [0, n), in no fixed order. Tasks must not throw. Runs inline when `work`
// (roughly, multiply-adds of the whole loop) is too small to be worth waking the other threads.
template <typename Task>
void parallel_tasks(int64_t n, int64_t work, const Task& task) {
  constexpr int64_t kWorthIt = 100'000;
  const int threads = n > 1 && work >= kWorthIt ? omp_get_max_threads() : 1;
  if (threads <= 1) {
    for (int64_t i = 0; i < n; ++i) task(i);
    return;
  }
  struct Loop {
    const Task& task;
    int64_t n;
    std::atomic<int64_t> next{0};
  } loop{task, n};
  const auto body = [](void* data) {
    Loop& loop = *static_cast<Loop*>(data);
    for (int64_t i; (i = loop.next.fetch_add(1, std::memory_order_relaxed)) < loop.n;) loop.task(i);
  };
  GOMP_parallel(body, &loop, unsigned(threads < n ? threads : n), 0);
}

// Room for `count` elements that lives until the same thread asks again with the same Tag. Not
// cleared.
template <typename Tag, typename T>
T* scratch(int64_t count) {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<void, Free> memory;
  thread_local int64_t capacity = 0;
  const int64_t bytes = (count * int64_t(sizeof(T)) + 63) / 64 * 64;
  if (bytes > capacity) {
    memory.reset();
    capacity = 0;
    memory.reset(std::aligned_alloc(64, size_t(bytes)));
    if (!memory) throw std::bad_alloc();
    capacity = bytes;
  }
  return static_cast<T*>(memory.get());
}

}  // namespace contexture::model::ops::internal
