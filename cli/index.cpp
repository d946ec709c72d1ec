#include "cli/index.h"

#include <iostream>

#include "core/error.h"
#include "core/format.h"
#include "core/hash.h"
#include "train/session.h"

namespace contexture::cli {

namespace fs = std::filesystem;

std::string run_encoder_hash(const std::string& run, int64_t step) {
  const fs::path folder = fs::path(run) / "checkpoints";
  const std::vector<int64_t> steps = parallel::list_checkpoints(folder);
  CONTEXTURE_DATA_REQUIRE(!steps.empty(), run, " has no complete checkpoint yet.");
  const Json manifest =
      parallel::read_manifest(parallel::checkpoint_path(folder, step < 0 ? steps.back() : step));
  std::vector<std::string> hashes;  // a run of many ranks has as many files
  for (const auto& [name, about] : manifest["files"].items()) {
    if (parallel::file_group(fs::path(name).stem().string()) == "model")
      hashes.push_back(about["sha256"]);
  }
  CONTEXTURE_DATA_REQUIRE(!hashes.empty(), run, ": its checkpoint has no model.safetensors.");
  if (hashes.size() == 1) return hashes[0];
  std::string all;
  for (const std::string& hash : hashes) all += hash;
  return sha256_hex(all);
}

Json describe(const retriever::ShardedIndex& index) {
  const retriever::IndexOptions& options = index.options();
  return {
      {"documents", index.size()},
      {"dim", index.dim()},
      {"metric", retriever::metric_name(options.metric)},
      {"factory", options.factory},
      {"built_factory", index.shards().front().built_factory()},
      {"search", options.search},
      {"normalised", std::all_of(index.shards().begin(), index.shards().end(),
                                 [](const retriever::Index& shard) { return shard.normalised(); })},
      {"shards", index.shards().size()},
      {"encoder", options.encoder_hash}};
}

void print_result(const Json& result, bool json) {
  if (json) return print_json(result);
  for (const auto& [key, value] : result.items()) {
    std::cout << format("{:<22} {}\n", key,
                        value.is_string() ? value.get<std::string>() : value.dump());
  }
}

Command index_info_command(CLI::App& group) {
  struct Options {
    std::string index;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app =
      group.add_subcommand("info", "What an index holds and how it was made; checks all of it");
  app->add_option("index", options->index, "index file, or list of shards")->required();
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            print_result(describe(retriever::ShardedIndex::load(options->index)), options->json);
            return 0;
          }};
}

Command index_merge_command(CLI::App& group) {
  struct Options {
    std::vector<std::string> sources;
    std::string output, factory;
    int64_t shards = 1;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(
      "merge", "Join indexes or shards into one index, or cut them into other shards");
  app->add_option("sources", options->sources,
                  "index files or lists of shards, in the order that rows will have")
      ->required();
  app->add_option("--output", options->output,
                  "index file; with --shards, the list of shards: NAME.shards.json")
      ->required();
  app->add_option("--shards", options->shards, "shards to cut into")->capture_default_str();
  app->add_option("--factory", options->factory,
                  "FAISS factory string; default: the first source's");
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            std::vector<retriever::ShardedIndex> loaded;
            for (const std::string& source : options->sources)
              loaded.push_back(retriever::ShardedIndex::load(source, /*mapped=*/true));
            std::vector<const retriever::ShardedIndex*> sources;
            for (const auto& index : loaded) sources.push_back(&index);
            retriever::write_merged(sources, options->factory, options->shards, options->output);
            Json result = describe(retriever::ShardedIndex::load(options->output, /*mapped=*/true));
            result["index"] = options->output;
            print_result(result, options->json);
            return 0;
          }};
}

Command index_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("index", "Index a corpus or vectors, and search them");
  return command_group(
      app, {index_build_command(*app), index_add_command(*app), index_merge_command(*app),
            index_search_command(*app), index_info_command(*app), index_bench_command(*app)});
}

}  // namespace contexture::cli
