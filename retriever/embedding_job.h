// Embedding a corpus so that an interruption loses one chunk at most: finished chunks lie in a
// folder as .npy files beside a manifest that says what they were made from
// (docs/formats/index.md).
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace contexture::retriever {

struct EmbeddingJob {
  std::filesystem::path folder;  // made when there is none
  std::string encoder_hash;
  std::string corpus_hash;  // of the ids and texts, in order
  std::string precision;
  int64_t count = 0, dim = 0;
  int64_t chunk = 4096;  // documents
};

struct EmbeddingProgress {
  int64_t done = 0;     // documents whose vectors are in the folder
  int64_t resumed = 0;  // of them, those that an earlier call left there
};

// Embeds what the folder lacks. embed(first, n) gives [n, dim] for documents first..first + n - 1;
// `report` is called after each chunk. Returns all vectors [count, dim], or nothing when
// should_stop() said so between two chunks; a later call with an equal job goes on. Throws
// UserError when the folder holds another job's chunks, naming what differs.
std::optional<std::vector<float>> run_embedding_job(
    const EmbeddingJob& job,
    const std::function<std::vector<float>(int64_t first, int64_t n)>& embed,
    const std::function<void(const EmbeddingProgress&)>& report,
    const std::function<bool()>& should_stop);

// Removes the folder, if it holds nothing but a job's files.
void remove_embedding_job(const EmbeddingJob& job);

}  // namespace contexture::retriever
