#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <iostream>

#include "cli/index.h"
#include "core/error.h"
#include "core/format.h"
#include "retriever/choose_index.h"

namespace contexture::cli {
namespace {

struct BenchOptions {
  std::string index, queries, exact, search;
  std::vector<int64_t> batches{1, 16, 256};
  int64_t k = 10, threads = 0;
  double seconds = 1.0;
  bool json = false, mapped = false;
};

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int bench(const BenchOptions& options) {
  CONTEXTURE_USAGE_REQUIRE(options.k > 0 && options.seconds > 0,
                           "-k and --seconds must be above 0.");
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  const auto begin = std::chrono::steady_clock::now();
  auto index = retriever::ShardedIndex::load(options.index, options.mapped);
  Json result = describe(index);
  result["load_s"] = since(begin);
  result["threads"] = at::get_num_threads();
  if (!options.search.empty()) index.set_search(options.search);
  const int64_t dim = index.dim();
  std::vector<float> queries;
  if (options.queries.empty()) {
    const int64_t n = std::min<int64_t>(256, index.size());
    for (int64_t i = 0; i < n; ++i) {
      const std::vector<float> one = index.vector(i * index.size() / n);
      queries.insert(queries.end(), one.begin(), one.end());
    }
  } else {
    const NpyMatrix matrix(options.queries);
    CONTEXTURE_DATA_REQUIRE(matrix.dim() == dim && matrix.rows() > 0, options.queries, " has ",
                            matrix.rows(), " vectors of ", matrix.dim(),
                            " numbers, the index has vectors of ", dim, ".");
    queries.resize(static_cast<size_t>(matrix.rows() * dim));
    matrix.read(0, queries);
  }
  const auto count = static_cast<int64_t>(queries.size()) / dim;
  if (!options.exact.empty()) {
    const NpyMatrix vectors(options.exact);
    CONTEXTURE_DATA_REQUIRE(vectors.rows() == index.size() && vectors.dim() == dim, options.exact,
                            " has ", vectors.rows(), " vectors of ", vectors.dim(),
                            " numbers, the index ", index.size(), " of ", dim,
                            ". Give what it was built from.");
    std::vector<float> owned;
    std::span<const float> numbers = vectors.floats();
    if (numbers.empty()) {
      owned.resize(static_cast<size_t>(vectors.rows() * dim));
      vectors.read(0, owned);
      numbers = owned;
    }
    const auto exact =
        retriever::exact_search(index.options().metric, dim, numbers, queries, options.k);
    result["recall_of_exact"] = retriever::overlap(index.search(queries, options.k), exact);
  }
  for (const int64_t batch : options.batches) {
    CONTEXTURE_USAGE_REQUIRE(batch >= 1, "--batch ", batch, " must be at least 1.");
    const int64_t used = std::min(batch, count);
    double best = 1e30;
    int64_t at = 0;
    for (const auto start = std::chrono::steady_clock::now(); since(start) < options.seconds;
         at = (at + used) % std::max<int64_t>(1, count - used + 1)) {
      const auto one = std::chrono::steady_clock::now();
      index.search(std::span(queries).subspan(static_cast<size_t>(at * dim),
                                              static_cast<size_t>(used * dim)),
                   options.k);
      best = std::min(best, since(one));
    }
    result["batches"].push_back({{"queries", used},
                                 {"ms", 1e3 * best},
                                 {"queries_per_s", static_cast<double>(used) / best}});
  }
  print_result(result, options.json);
  return 0;
}

}  // namespace

Command index_bench_command(CLI::App& group) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* app = group.add_subcommand(
      "bench", "How fast an index loads and answers, and how much of the exact answer it finds");
  app->add_option("index", options->index, "index file, or list of shards")->required();
  app->add_option("--queries", options->queries,
                  "a .npy file of query vectors; default: up to 256 of the index's own");
  app->add_option("--exact", options->exact,
                  "the .npy file that the index was built from: measures the recall");
  app->add_option("--batch", options->batches, "queries searched together, or a list")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("-k", options->k, "documents to find")->capture_default_str();
  app->add_option("--seconds", options->seconds,
                  "how long to repeat each batch; the fastest counts")
      ->capture_default_str();
  app->add_option("--search", options->search,
                  "FAISS search parameters instead of the index's own");
  app->add_flag("--mapped", options->mapped, "leave vectors in the file");
  app->add_option("--threads", options->threads, "threads; default: as many as there are");
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] { return bench(*options); }};
}

}  // namespace contexture::cli
