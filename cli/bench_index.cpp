#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>

#include "cli/bench.h"
#include "core/error.h"
#include "core/files.h"
#include "core/format.h"
#include "core/npy.h"
#include "core/rng.h"
#include "retriever/choose_index.h"

namespace contexture::cli {
namespace {

constexpr int64_t kFound = 10;

struct Options {
  PeerOptions peers;
  std::vector<std::string> factories{"Flat", "IVF1024,Flat"};
  std::vector<int64_t> batches{1, 16, 256};
  std::string search = "nprobe=16", folder;
  int64_t vectors = 1'000'000, dim = 384, clusters = 2000;
  double seconds = 2.0;
};

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Unit vectors around random centres, as embeddings of documents lie: the spread is that of the
// centres.
std::vector<float> clustered(int64_t n, int64_t dim, int64_t clusters, const char* name) {
  Stream middle(1, "bench index centres"), draws(1, name);
  std::vector<float> centres(static_cast<size_t>(clusters * dim)),
      out(static_cast<size_t>(n * dim));
  for (float& x : centres) x = static_cast<float>(middle.uniform() - 0.5);
  for (int64_t row = 0; row < n; ++row) {
    const float* centre =
        centres.data() +
        std::min(clusters - 1,
                 static_cast<int64_t>(draws.uniform() * static_cast<double>(clusters))) *
            dim;
    float* x = out.data() + row * dim;
    double squared = 0;
    for (int64_t i = 0; i < dim; ++i) {
      x[i] = centre[i] + static_cast<float>(draws.uniform() - 0.5);
      squared += static_cast<double>(x[i]) * x[i];
    }
    const auto scale = static_cast<float>(1 / std::sqrt(squared));
    for (int64_t i = 0; i < dim; ++i) x[i] *= scale;
  }
  return out;
}

void write_npy(const std::filesystem::path& path, const std::vector<float>& numbers, int64_t dim) {
  NpyWriter writer(path, DType::F32, static_cast<int64_t>(numbers.size()) / dim, dim);
  writer.write(numbers);
  writer.commit();
}

double peer_overlap(const std::filesystem::path& path,
                    const std::vector<retriever::Ranking>& exact) {
  const std::string bytes = read_file(path);
  std::vector<retriever::Ranking> rows(exact.size());
  for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
    float row;
    std::memcpy(&row, bytes.data() + i * sizeof(float), sizeof(float));
    rows.at(i / kFound).push_back({static_cast<int64_t>(row), 0.0});
  }
  return retriever::overlap(rows, exact);
}

// Milliseconds of the fastest search for each number of queries.
Json time_batches(const Options& options, const retriever::Index& index,
                  const std::vector<float>& queries) {
  const auto count = static_cast<int64_t>(queries.size()) / options.dim;
  Json ms = Json::object();
  for (const int64_t batch : options.batches) {
    double best = 1e30;
    int64_t at = 0;
    for (const auto start = std::chrono::steady_clock::now(); since(start) < options.seconds;) {
      const auto one = std::chrono::steady_clock::now();
      index.search(std::span(queries).subspan(static_cast<size_t>(at * options.dim),
                                              static_cast<size_t>(batch * options.dim)),
                   kFound);
      best = std::min(best, since(one));
      at = (at + batch) % std::max<int64_t>(1, count - batch + 1);
    }
    ms[std::to_string(batch)] = 1e3 * best;
  }
  return ms;
}

Json run(const Options& options, const std::string& factory, const std::vector<float>& vectors,
         const std::vector<float>& queries, const std::vector<retriever::Ranking>& exact,
         const std::filesystem::path& folder) {
  retriever::IndexOptions kind;
  kind.factory = factory;
  kind.metric = retriever::Metric::kInnerProduct;
  const bool lists = factory.find("IVF") != std::string::npos;
  if (lists) kind.search = options.search;
  Json out{{"factory", factory}, {"search", kind.search}};
  const auto file = folder / "index.faiss";
  {
    std::vector<std::string> ids;
    for (int64_t row = 0; row < options.vectors; ++row) ids.push_back(std::to_string(row));
    auto begin = std::chrono::steady_clock::now();
    const auto built = retriever::Index::build(kind, options.dim, std::move(ids), vectors);
    out["build_s"] = since(begin);
    begin = std::chrono::steady_clock::now();
    built.save(file);
    out["save_s"] = since(begin);
    out["recall"] = retriever::overlap(built.search(queries, kFound), exact);
    out["ms"] = time_batches(options, built, queries);
  }
  {
    const auto begin = std::chrono::steady_clock::now();
    const auto mapped = retriever::Index::load(file, /*mapped=*/true);
    out["mapped_load_s"] = since(begin);
    out["mapped_recall"] = retriever::overlap(mapped.search(queries, kFound), exact);
    out["mapped_ms"] = time_batches(options, mapped, queries);
  }
  if (!options.peers.scripts.empty()) {
    std::string batches;
    for (const int64_t batch : options.batches)
      batches += (batches.empty() ? "" : ",") + std::to_string(batch);
    const Json peer = run_peer(
        options.peers,
        format("faiss_index_peer.py {} --batches {} {} --found {} --threads {} --seconds {}",
               folder.string(), batches, lists ? "--search " + options.search : "", kFound,
               options.peers.threads, options.seconds));
    out["faiss_cpu"] = peer;
    out["faiss_cpu"]["recall"] = peer_overlap(folder / "rows.f32", exact);
    for (const auto& [batch, ms] : peer["ms"].items())
      out["ratio"][batch] = ms.get<double>() / out["ms"][batch].get<double>();
  }
  return out;
}

void print(const Json& result) {
  std::cout << format("{} {}: built in {:.1f} s, mapped in {:.2f} s, recall {:.4f}",
                      result["factory"].get<std::string>(), result["search"].get<std::string>(),
                      result["build_s"].get<double>(), result["mapped_load_s"].get<double>(),
                      result["recall"].get<double>());
  if (result.contains("faiss_cpu"))
    std::cout << format(" (faiss-cpu {:.4f})", result["faiss_cpu"]["recall"].get<double>());
  std::cout << "\n";
  for (const auto& [batch, ms] : result["ms"].items()) {
    std::cout << format("  {} queries: {:.3f} ms, mapped {:.3f} ms", batch, ms.get<double>(),
                        result["mapped_ms"][batch].get<double>());
    if (result.contains("ratio")) {
      std::cout << format("   faiss-cpu {:.3f} ms, contexture is {:.2f} times as fast",
                          result["faiss_cpu"]["ms"][batch].get<double>(),
                          result["ratio"][batch].get<double>());
    }
    std::cout << "\n";
  }
  std::cout << std::flush;
}

}  // namespace

Command bench_index_command(CLI::App& group) {
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(
      "index", "Building, mapping and searching indexes of many clustered vectors");
  app->add_option("--factory", options->factories, "FAISS factory string; may be repeated")
      ->allow_extra_args(false)
      ->capture_default_str();
  app->add_option("--search", options->search, "search parameters of factories with lists")
      ->capture_default_str();
  app->add_option("--vectors", options->vectors, "vectors")->capture_default_str();
  app->add_option("--dim", options->dim, "their width")->capture_default_str();
  app->add_option("--clusters", options->clusters, "centres that they lie around")
      ->capture_default_str();
  app->add_option("--batch", options->batches, "queries searched together, or a list")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--seconds", options->seconds,
                  "how long to repeat each search; the fastest counts")
      ->capture_default_str();
  app->add_option("--folder", options->folder,
                  "where the index files go; default: a temporary folder");
  options->peers.add_to(*app);
  return {app, [options] {
            CONTEXTURE_USAGE_REQUIRE(
                options->vectors >= 1 && options->dim >= 1 && options->clusters >= 1 &&
                    !options->batches.empty() &&
                    *std::min_element(options->batches.begin(), options->batches.end()) >= 1,
                "--vectors, --dim, --clusters and --batch must be at least 1.");
            CONTEXTURE_USAGE_REQUIRE(options->vectors < (1 << 24), "--vectors ", options->vectors,
                                     " must be below ", 1 << 24, ".");
            at::set_num_threads(static_cast<int>(options->peers.threads));
            const TempDir temporary;
            const std::filesystem::path folder =
                options->folder.empty() ? temporary.path() : std::filesystem::path(options->folder);
            make_folders(folder);
            const std::vector<float> vectors =
                clustered(options->vectors, options->dim, options->clusters, "bench index vectors");
            const int64_t count = std::max<int64_t>(
                256, *std::max_element(options->batches.begin(), options->batches.end()));
            const std::vector<float> queries =
                clustered(count, options->dim, options->clusters, "bench index queries");
            write_npy(folder / "queries.npy", queries, options->dim);
            const auto exact = retriever::exact_search(retriever::Metric::kInnerProduct,
                                                       options->dim, vectors, queries, kFound);
            Json runs = Json::array();
            for (const std::string& factory : options->factories) {
              runs.push_back(run(*options, factory, vectors, queries, exact, folder));
              if (!options->peers.json) print(runs.back());
            }
            if (options->peers.json)
              print_json({{"vectors", options->vectors},
                          {"dim", options->dim},
                          {"threads", options->peers.threads},
                          {"runs", runs}});
            return 0;
          }};
}

}  // namespace contexture::cli
