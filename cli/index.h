// What the index commands share: where vectors come from, and how an index is described.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/command.h"
#include "core/json.h"
#include "core/npy.h"
#include "retriever/sharded_index.h"
#include "retriever/text_encoder.h"

namespace contexture::cli {

// A published encoder, as options name it.
struct EncoderOptions {
  std::string folder, precision = "auto";
  int64_t max_tokens = 0;
  void add_to(CLI::App& app);
  retriever::TextEncoder load() const;
  std::string resolved_precision() const;  // "fp32" or "bf16"
};

// Vectors to index with their ids: of a corpus by an encoder, or from a .npy file.
struct VectorSource {
  EncoderOptions encoder;
  std::string corpus, from = "contexture", vectors, ids;
  void add_to(CLI::App& app);
  bool given() const { return !encoder.folder.empty() || !vectors.empty(); }
  void check() const;  // UsageError where options do not go together
};

struct Vectors {
  std::vector<std::string> ids;
  std::vector<float> owned;
  std::optional<NpyMatrix> mapped;  // then `numbers` lie in it, or in owned
  std::span<const float> numbers;   // [ids, dim]
  int64_t dim = 0;
  std::string encoder_hash;  // empty for a .npy file
  int64_t bad_records = 0;
  Json timing = Json::object();
};

// The ids and numbers of a .npy file.
Vectors read_vectors(const VectorSource& source);
// Embeds a corpus. job_folder: keeps finished chunks there, so that an interrupted call goes on.
// Nothing when a signal asked to stop.
std::optional<Vectors> embed_corpus(const VectorSource& source,
                                    const retriever::TextEncoder& encoder,
                                    const std::string& job_folder);
// What embed_corpus leaves in the folder.
void remove_embedding_chunks(const Vectors& vectors, const std::string& job_folder);

// The hash of the checkpoint's weights that a run embeds with. step < 0: the newest.
std::string run_encoder_hash(const std::string& run, int64_t step);

Json describe(const retriever::ShardedIndex& index);
// As one JSON object, or a line for each member.
void print_result(const Json& result, bool json);

Command index_build_command(CLI::App& group);
Command index_add_command(CLI::App& group);
Command index_merge_command(CLI::App& group);
Command index_search_command(CLI::App& group);
Command index_info_command(CLI::App& group);
Command index_bench_command(CLI::App& group);

}  // namespace contexture::cli
