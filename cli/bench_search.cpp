#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "cli/bench.h"
#include "core/error.h"
#include "core/files.h"
#include "core/format.h"
#include "core/rng.h"
#include "retriever/index.h"

namespace contexture::cli {
namespace {

constexpr int64_t kFound = 10;

struct Options {
  PeerOptions peers;
  std::vector<std::string> shapes{"1x10750x256", "16x10750x256", "256x10750x256", "64x100000x768"};
  double seconds = 1.0;
};

struct Shape {
  long long queries = 0, vectors = 0, dim = 0;
};

Shape parse_shape(const std::string& text) {
  Shape shape;
  char rest = 0;
  const int read = std::sscanf(text.c_str(), "%lldx%lldx%lld%c", &shape.queries, &shape.vectors,
                               &shape.dim, &rest);
  CONTEXTURE_USAGE_REQUIRE(read == 3 && shape.queries > 0 && shape.vectors > 0 && shape.dim > 0,
                           "--shape ", text, " is not QUERIESxVECTORSxWIDTH, as in 16x10750x256.");
  return shape;
}

std::vector<float> unit_vectors(int64_t n, int64_t dim, const char* name) {
  Stream draws(1, name);
  std::vector<float> vectors(static_cast<size_t>(n * dim));
  for (int64_t row = 0; row < n; ++row) {
    float* x = vectors.data() + row * dim;
    double squared = 0;
    for (int64_t i = 0; i < dim; ++i) {
      x[i] = static_cast<float>(draws.uniform() - 0.5);
      squared += static_cast<double>(x[i]) * x[i];
    }
    for (int64_t i = 0; i < dim; ++i) x[i] /= static_cast<float>(std::sqrt(squared));
  }
  return vectors;
}

// The best row of each query, by a plain loop in double. Throws Bug when the index found another.
void check(const std::vector<retriever::Ranking>& found, const std::vector<float>& queries,
           const std::vector<float>& vectors, int64_t dim) {
  for (size_t q = 0; q < found.size(); q += 1 + found.size() / 4) {
    double best = -2;
    int64_t best_row = -1;
    for (int64_t row = 0; row < static_cast<int64_t>(vectors.size()) / dim; ++row) {
      double score = 0;
      for (int64_t i = 0; i < dim; ++i)
        score += static_cast<double>(queries[q * dim + i]) * vectors[row * dim + i];
      if (score > best) best = score, best_row = row;
    }
    CONTEXTURE_INVARIANT(found[q][0].row == best_row, "query ", q, " found row ", found[q][0].row,
                         ", not ", best_row);
  }
}

template <typename T>
void write_raw(const std::filesystem::path& path, const std::vector<T>& values) {
  write_file_atomic(path, std::as_bytes(std::span(values)));
}

Json run(const Options& options, const Shape& shape) {
  const std::vector<float> vectors = unit_vectors(shape.vectors, shape.dim, "bench vectors");
  const std::vector<float> queries = unit_vectors(shape.queries, shape.dim, "bench queries");
  std::vector<std::string> ids;
  for (int64_t row = 0; row < shape.vectors; ++row) ids.push_back(std::to_string(row));
  retriever::IndexOptions flat;
  flat.metric = retriever::Metric::kInnerProduct;
  const auto index = retriever::Index::build(flat, shape.dim, std::move(ids), vectors);
  const std::vector<retriever::Ranking> found = index.search(queries, kFound);
  check(found, queries, vectors, shape.dim);
  double best = 1e9;
  const auto begin = std::chrono::steady_clock::now();
  const auto since = [](auto start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  while (since(begin) < options.seconds) {
    const auto start = std::chrono::steady_clock::now();
    index.search(queries, kFound);
    best = std::min(best, since(start));
  }
  Json out{{"queries", shape.queries},
           {"vectors", shape.vectors},
           {"dim", shape.dim},
           {"threads", options.peers.threads}};
  out["contexture"]["ms"] = 1e3 * best;
  if (!options.peers.scripts.empty()) {
    const TempDir folder;
    std::vector<int64_t> rows;
    for (const retriever::Ranking& ranking : found) {
      for (const retriever::Hit& hit : ranking) rows.push_back(hit.row);
    }
    write_raw(folder.path() / "vectors.f32", vectors);
    write_raw(folder.path() / "queries.f32", queries);
    write_raw(folder.path() / "rows.i64", rows);
    const Json peer =
        run_peer(options.peers,
                 format("faiss_cpu_peer.py {} --dim {} --found {} --threads {} --seconds {}",
                        folder.path().string(), shape.dim, std::min<int64_t>(kFound, shape.vectors),
                        options.peers.threads, options.seconds));
    out["faiss_cpu"] = peer;
    out["ratio"]["faiss_cpu"] = peer["ms"].get<double>() / (1e3 * best);
  }
  return out;
}

}  // namespace

Command bench_search_command(CLI::App& group) {
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(
      "search", "Exact search (factory Flat) of random vectors for the best 10");
  app->add_option("--shape", options->shapes, "QUERIESxVECTORSxWIDTH, or a list")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--seconds", options->seconds,
                  "how long to repeat each search; the fastest counts")
      ->capture_default_str();
  options->peers.add_to(*app);
  return {app, [options] {
            at::set_num_threads(static_cast<int>(options->peers.threads));
            Json runs = Json::array();
            for (const std::string& text : options->shapes) {
              const Json result = run(*options, parse_shape(text));
              runs.push_back(result);
              if (options->peers.json) continue;
              std::cout << format("{} queries, {} vectors of {}, {} threads: {:.3f} ms",
                                  result["queries"].get<int64_t>(),
                                  result["vectors"].get<int64_t>(), result["dim"].get<int64_t>(),
                                  options->peers.threads, result["contexture"]["ms"].get<double>());
              if (result.contains("ratio")) {
                std::cout << format("   faiss-cpu {:.3f} ms, contexture is {:.2f} times as fast",
                                    result["faiss_cpu"]["ms"].get<double>(),
                                    result["ratio"]["faiss_cpu"].get<double>());
              }
              std::cout << std::endl;
            }
            if (options->peers.json) print_json({{"runs", runs}});
            return 0;
          }};
}

}  // namespace contexture::cli
