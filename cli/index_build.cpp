#include <ATen/Parallel.h>

#include <chrono>
#include <iostream>

#include "cli/index.h"
#include "core/error.h"
#include "core/log.h"
#include "retriever/choose_index.h"
#include "train/session.h"

namespace contexture::cli {
namespace {

struct BuildOptions {
  VectorSource source;
  std::string run, output, metric, memory, save_vectors, save_dtype = "float32";
  std::vector<std::string> sets;
  retriever::IndexOptions index{"", retriever::Metric::kCosine, 1, "", ""};
  double recall = 0.95;
  int64_t step = -1, shards = 1, threads = 0;
  bool json = false, chooses = false;
};

std::string job_folder(const BuildOptions& options) { return options.output + ".parts"; }

// A run's corpus by the run's encoder.
Vectors embed_run(BuildOptions& options) {
  Vectors out;
  out.encoder_hash = run_encoder_hash(options.run, options.step);
  data::BadRecords bad(data::BadRecords::Policy::kSkip);
  const auto session = train::open_run(train::settings_of(options.run, options.sets), bad,
                                       options.step, /*with_index=*/false);
  if (bad.count > 0) log::warn("{}", bad.summary());
  if (options.index.factory.empty()) options.index.factory = session->config().retriever.factory;
  const at::Tensor vectors_UE =
      session->model().embed("doc", session->documents().all()).to(at::kFloat).contiguous();
  out.ids = session->corpus().ids();
  out.dim = vectors_UE.size(1);
  out.owned.assign(vectors_UE.data_ptr<float>(), vectors_UE.data_ptr<float>() + vectors_UE.numel());
  out.numbers = out.owned;
  out.bad_records = bad.count;
  return out;
}

void save_vectors(const BuildOptions& options, const Vectors& vectors) {
  if (options.save_vectors.empty()) return;
  CONTEXTURE_USAGE_REQUIRE(options.save_dtype == "float32" || options.save_dtype == "float16",
                           "--vectors-type ", options.save_dtype,
                           " is not known. Use float32 or float16.");
  NpyWriter writer(options.save_vectors, options.save_dtype == "float16" ? DType::F16 : DType::F32,
                   static_cast<int64_t>(vectors.ids.size()), vectors.dim);
  writer.write(vectors.numbers);
  writer.commit();
}

void require_dim(const std::string& source, int64_t dim, const retriever::Index& index) {
  CONTEXTURE_REQUIRE(dim == index.dim(), source, " gives vectors of ", dim,
                     " numbers, the index holds vectors of ", index.dim(),
                     ". They come from different encoders.");
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int build(BuildOptions& options) {
  options.source.check();
  CONTEXTURE_USAGE_REQUIRE(
      options.source.given() != !options.run.empty(),
      "say what to index: a run, --encoder with --corpus, or --vectors; one of them.");
  CONTEXTURE_USAGE_REQUIRE(!options.chooses || options.index.factory.empty(),
                           "--memory and --recall choose the factory; give them, or --factory.");
  CONTEXTURE_USAGE_REQUIRE(options.shards == 1 || retriever::is_shard_list(options.output),
                           "--shards ", options.shards,
                           " writes a list of shards: --output must end in .shards.json.");
  CONTEXTURE_USAGE_REQUIRE(options.shards == 1 || !options.chooses,
                           "--memory and --recall tune one index; give --factory with --shards.");
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  // A run's scores are inner products by training; a published encoder's vectors are compared by
  // angle.
  if (options.metric.empty()) options.metric = options.run.empty() ? "cosine" : "inner_product";
  options.index.metric = retriever::parse_metric(options.metric);

  std::optional<Vectors> vectors;
  if (!options.run.empty()) {
    vectors = embed_run(options);
  } else if (!options.source.vectors.empty()) {
    vectors = read_vectors(options.source);
  } else {
    vectors = embed_corpus(options.source, options.source.encoder.load(), job_folder(options));
    if (!vectors) return 75;
  }
  options.index.encoder_hash = vectors->encoder_hash;
  save_vectors(options, *vectors);

  Json result;
  const auto begin = std::chrono::steady_clock::now();
  if (options.chooses) {
    const auto choice = retriever::choose_index(
        static_cast<int64_t>(vectors->ids.size()), vectors->dim,
        options.memory.empty() ? ~uint64_t{0} : retriever::parse_bytes(options.memory),
        options.recall);
    log::info("{}", choice.explained);
    options.index.factory = choice.factory;
    result["choice"] = choice.explained;
  }
  if (options.index.factory.empty()) options.index.factory = "Flat";
  // Flat is the exact answer (ties apart, which a comparison would count against it): nothing to
  // measure.
  std::optional<retriever::RecallProbe> probe;
  if (options.index.factory != "Flat")
    probe.emplace(options.index.metric, vectors->dim, vectors->numbers);
  if (options.shards == 1) {
    auto index =
        retriever::Index::build(options.index, vectors->dim, vectors->ids, vectors->numbers);
    const double built_s = seconds_since(begin);
    const double recall = !probe            ? 1.0
                          : options.chooses ? retriever::tune_search(index, *probe, options.recall)
                                            : probe->measure(index);
    if (options.chooses && recall < options.recall) {
      log::warn(
          "recall {:.4f} is the most that {} gives, below --recall {:.4g}. More --memory would "
          "keep more of the vectors.",
          recall, index.built_factory(), options.recall);
    }
    index.save(options.output);
    std::vector<retriever::Index> one;
    one.push_back(std::move(index));
    result.update(describe(retriever::ShardedIndex(std::move(one))));
    result["overlap_with_exact"] = recall;
    result["build_s"] = built_s;
  } else {
    retriever::build_shards(options.index, vectors->dim, vectors->ids, vectors->numbers,
                            options.shards, options.output);
    result["build_s"] = seconds_since(begin);
    const auto index = retriever::ShardedIndex::load(options.output, /*mapped=*/true);
    result.update(describe(index));
    result["overlap_with_exact"] = probe ? probe->measure(index) : 1.0;
  }
  if (!vectors->timing.empty()) {
    remove_embedding_chunks(*vectors, job_folder(options));
    result["embedding"] = vectors->timing;
  }
  result["index"] = options.output;
  result["bad_records"] = vectors->bad_records;
  print_result(result, options.json);
  return 0;
}

}  // namespace

Command index_build_command(CLI::App& group) {
  auto options = std::make_shared<BuildOptions>();
  CLI::App* app = group.add_subcommand(
      "build", "Index a run's corpus, a corpus by a published encoder, or vectors");
  app->add_option("run", options->run, "run folder: its corpus by its encoder");
  options->source.add_to(*app);
  app->add_option("--output", options->output,
                  "index file; its ids and card come beside it. With --shards: NAME.shards.json")
      ->required();
  app->add_option("--factory", options->index.factory,
                  "FAISS factory string; default: the run's retriever.factory, or Flat");
  app->add_option("--search", options->index.search, "FAISS search parameters, such as nprobe=16");
  CLI::Option* memory = app->add_option("--memory", options->memory,
                                        "choose the factory for this much memory, as in 16G");
  CLI::Option* recall = app->add_option("--recall", options->recall,
                                        "choose the factory for this share of the exact first ten")
                            ->capture_default_str();
  app->add_option("--metric", options->metric,
                  "inner_product, cosine or l2; default: cosine, for a run inner_product");
  app->add_option("--seed", options->index.seed, "of the clustering")->capture_default_str();
  app->add_option("--shards", options->shards, "cut the index into so many")->capture_default_str();
  app->add_option("--save-vectors", options->save_vectors,
                  "also write the vectors to this .npy file");
  app->add_option("--vectors-type", options->save_dtype, "of --save-vectors: float32 or float16")
      ->capture_default_str();
  app->add_option("--threads", options->threads, "threads; default: as many as there are");
  app->add_option("--step", options->step,
                  "checkpoint of the run to embed with; default: the newest");
  app->add_option("--set", options->sets,
                  "one setting of the run, a.b=c, on top of its own; may be repeated")
      ->allow_extra_args(false);
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options, memory, recall] {
            options->chooses = memory->count() + recall->count() > 0;
            return build(*options);
          }};
}

Command index_add_command(CLI::App& group) {
  struct Options {
    VectorSource source;
    std::string index, output, metric;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand("add", "Add documents or vectors to an index");
  app->add_option("index", options->index, "index file")->required();
  options->source.add_to(*app);
  app->add_option("--output", options->output, "write the longer index here; default: in place");
  app->add_option("--metric", options->metric, "refuse an index of another metric than this");
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            options->source.check();
            CONTEXTURE_USAGE_REQUIRE(options->source.given(),
                                     "say what to add: --encoder with --corpus, or --vectors.");
            CONTEXTURE_USAGE_REQUIRE(!retriever::is_shard_list(options->index), options->index,
                                     " is a list of shards. Add to one of them, or build the new "
                                     "part and 'index merge' both.");
            auto index = retriever::Index::load(options->index);
            const std::string own = retriever::metric_name(index.options().metric);
            CONTEXTURE_REQUIRE(
                options->metric.empty() ||
                    retriever::parse_metric(options->metric) == index.options().metric,
                options->index, " compares by ", own, ", not by ", options->metric,
                ". Build another index for that.");
            const std::string output = options->output.empty() ? options->index : options->output;
            std::optional<Vectors> vectors;
            if (options->source.vectors.empty()) {
              const auto encoder = options->source.encoder.load();
              index.require_encoder(encoder.hash());
              require_dim(options->source.encoder.folder, encoder.dim(), index);
              vectors = embed_corpus(options->source, encoder, output + ".parts");
              if (!vectors) return 75;
            } else {
              vectors = read_vectors(options->source);
              require_dim(options->source.vectors, vectors->dim, index);
            }
            const int64_t added = static_cast<int64_t>(vectors->ids.size());
            index.add(vectors->ids, vectors->numbers);
            index.save(output);
            if (!vectors->timing.empty()) remove_embedding_chunks(*vectors, output + ".parts");
            std::vector<retriever::Index> one;
            one.push_back(std::move(index));
            Json result = describe(retriever::ShardedIndex(std::move(one)));
            result["index"] = output;
            result["added"] = added;
            print_result(result, options->json);
            return 0;
          }};
}

}  // namespace contexture::cli
