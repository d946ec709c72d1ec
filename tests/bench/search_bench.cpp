// Times the exact search (factory Flat). Every answer is checked against a plain double loop before
// it is timed. The peer, tests/bench/peers/faiss_cpu_peer.py, runs the same shapes through PyPI's
// faiss-cpu and prints the ratio when this program's output is piped into it:
//   search_bench | python3 tests/bench/peers/faiss_cpu_peer.py
// Usage: search_bench [threads ...]; default 1 2. Each line: JSON with shape, threads and the best
// time of 7 in ms.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/rng.h"
#include "retriever/index.h"

extern "C" void omp_set_num_threads(int);

namespace {

using namespace contexture;

struct Shape {
  int64_t queries, vectors, dim;
};

constexpr int64_t kFound = 10;
constexpr int kRounds = 7;

// With one thread: that thread's processor time, which other programs on the machine disturb less.
double now_ms(int threads) {
  timespec t{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

std::vector<float> unit_vectors(int64_t n, int64_t dim, uint64_t seed) {
  Stream draws(seed, "search bench");
  std::vector<float> vectors(n * dim);
  for (int64_t row = 0; row < n; ++row) {
    double squared = 0;
    for (int64_t i = 0; i < dim; ++i) {
      vectors[row * dim + i] = static_cast<float>(draws.uniform() - 0.5);
      squared += std::pow(vectors[row * dim + i], 2);
    }
    for (int64_t i = 0; i < dim; ++i)
      vectors[row * dim + i] /= static_cast<float>(std::sqrt(squared));
  }
  return vectors;
}

// The first query's best row, the plain way.
bool answer_is_right(const retriever::Index& index, const std::vector<float>& vectors,
                     const std::vector<float>& queries, int64_t dim) {
  const auto found = index.search(queries, kFound);
  double best = -2;
  int64_t best_row = -1;
  for (int64_t row = 0; row < index.size(); ++row) {
    double score = 0;
    for (int64_t i = 0; i < dim; ++i) score += double(queries[i]) * vectors[row * dim + i];
    if (score > best) {
      best = score;
      best_row = row;
    }
  }
  return found[0][0].row == best_row && std::abs(found[0][0].score - best) < 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> threads;
  for (int i = 1; i < argc; ++i) threads.push_back(std::atoi(argv[i]));
  if (threads.empty()) threads = {1, 2};
  for (const Shape shape : {Shape{64, 100'000, 768}, Shape{1, 10'750, 256}, Shape{16, 10'750, 256},
                            Shape{256, 10'750, 256}}) {
    const std::vector<float> vectors = unit_vectors(shape.vectors, shape.dim, 1);
    const std::vector<float> queries = unit_vectors(shape.queries, shape.dim, 2);
    std::vector<std::string> ids;
    for (int64_t row = 0; row < shape.vectors; ++row) ids.push_back(std::to_string(row));
    retriever::IndexOptions options;
    options.metric = retriever::Metric::kInnerProduct;
    const auto index = retriever::Index::build(options, shape.dim, std::move(ids), vectors);
    for (const int count : threads) {
      omp_set_num_threads(count);
      if (!answer_is_right(index, vectors, queries, shape.dim)) {
        std::fprintf(stderr, "wrong answer\n");
        return 1;
      }
      double best_ms = 1e300;
      for (int round = 0; round < kRounds; ++round) {
        const double start = now_ms(count);
        index.search(queries, kFound);
        best_ms = std::min(best_ms, now_ms(count) - start);
      }
      std::printf("{\"queries\":%lld,\"vectors\":%lld,\"dim\":%lld,\"threads\":%d,\"ms\":%.3f}\n",
                  static_cast<long long>(shape.queries), static_cast<long long>(shape.vectors),
                  static_cast<long long>(shape.dim), count, best_ms);
      std::fflush(stdout);
    }
  }
  return 0;
}
