#include "retriever/embedding_job.h"

#include <algorithm>

#include "core/error.h"
#include "core/files.h"
#include "core/format.h"
#include "core/json.h"
#include "core/npy.h"

namespace contexture::retriever {
namespace {

namespace fs = std::filesystem;

fs::path manifest_path(const EmbeddingJob& job) { return job.folder / "job.json"; }
fs::path chunk_path(const EmbeddingJob& job, int64_t chunk) {
  return job.folder / format("chunk-{:06}.npy", chunk);
}
int64_t num_chunks(const EmbeddingJob& job) { return (job.count + job.chunk - 1) / job.chunk; }

Json manifest(const EmbeddingJob& job) {
  return {{"format", "contexture-embedding-job"},
          {"version", 1},
          {"encoder_hash", job.encoder_hash},
          {"corpus_hash", job.corpus_hash},
          {"count", job.count},
          {"dim", job.dim},
          {"precision", job.precision},
          {"chunk", job.chunk}};
}

// Makes the folder this job's, or checks that it is.
void claim(const EmbeddingJob& job) {
  make_folders(job.folder);
  const Json ours = manifest(job);
  if (!fs::exists(manifest_path(job))) {
    CONTEXTURE_REQUIRE(fs::is_empty(job.folder), job.folder.string(),
                       " has files but no job.json: it is not what an interrupted build leaves. "
                       "Name another --output, or remove it.");
    write_file_atomic(manifest_path(job), std::string_view(ours.dump(2) + "\n"));
    return;
  }
  const Json theirs = read_json_file(manifest_path(job).string());
  for (const auto& [key, value] : ours.items()) {
    const Json found = theirs.is_object() ? theirs.value(key, Json()) : Json();
    CONTEXTURE_REQUIRE(found == value, manifest_path(job).string(), ": was begun with ", key, " ",
                       json_excerpt(found), ", and now it is ", json_excerpt(value),
                       ". Repeat the command as it was, or remove the folder to begin anew.");
  }
}

}  // namespace

std::optional<std::vector<float>> run_embedding_job(
    const EmbeddingJob& job,
    const std::function<std::vector<float>(int64_t first, int64_t n)>& embed,
    const std::function<void(const EmbeddingProgress&)>& report,
    const std::function<bool()>& should_stop) {
  CONTEXTURE_INVARIANT(job.count >= 0 && job.dim >= 1 && job.chunk >= 1);
  claim(job);
  std::vector<float> vectors(static_cast<size_t>(job.count * job.dim));
  EmbeddingProgress progress;
  for (int64_t chunk = 0; chunk < num_chunks(job); ++chunk) {
    const int64_t first = chunk * job.chunk, n = std::min(job.chunk, job.count - first);
    const std::span<float> room(vectors.data() + first * job.dim, static_cast<size_t>(n * job.dim));
    const fs::path path = chunk_path(job, chunk);
    if (fs::exists(path)) {
      const NpyMatrix done(path);
      CONTEXTURE_DATA_REQUIRE(done.rows() == n && done.dim() == job.dim, path.string(), " holds ",
                              done.rows(), " vectors of ", done.dim(), ", where the job needs ", n,
                              " of ", job.dim, ". Remove it.");
      done.read(0, room);
      progress.resumed += n;
    } else {
      if (should_stop()) return std::nullopt;
      const std::vector<float> fresh = embed(first, n);
      CONTEXTURE_INVARIANT(fresh.size() == room.size());
      NpyWriter writer(path, DType::F32, n, job.dim);
      writer.write(fresh);
      writer.commit();
      std::copy(fresh.begin(), fresh.end(), room.begin());
    }
    progress.done += n;
    report(progress);
  }
  return vectors;
}

void remove_embedding_job(const EmbeddingJob& job) {
  for (int64_t chunk = 0; chunk < num_chunks(job); ++chunk) fs::remove(chunk_path(job, chunk));
  fs::remove(manifest_path(job));
  std::error_code not_empty;
  fs::remove(job.folder, not_empty);
}

}  // namespace contexture::retriever
