// Checkpoints: a folder step-NNNNNNNN holding safetensors files of logical tensors, and a manifest
// with the size and checksum of every file, written last. A folder without a whole manifest does
// not exist for loading (docs/formats/checkpoint.md).
#pragma once
#include <ATen/ATen.h>

#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/json.h"
#include "parallel/communicator.h"

namespace contexture::parallel {

using NamedTensors = std::map<std::string, at::Tensor>;

struct Checkpoint {
  int64_t step = 0;
  std::map<std::string, NamedTensors>
      files;                    // "model", "optimizer", ...: one safetensors file each
  Json state = Json::object();  // everything small: configuration, cursor, figures
};

// Writes folder/step-NNNNNNNN. A half-written folder of that step (from a kill) is replaced. Throws
// UserError naming the file when the disk fails; earlier checkpoints are untouched. world: every
// rank writes the tensors that it has, in files of its own (model-00002-of-00004.safetensors), at
// the same time, on a file system that all see; rank 0's state counts, and its manifest comes last.
void save_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint,
                     Communicator* world = nullptr);

// The same in two steps, so that training can go on in between. The tensors must then be copies
// that nobody writes to.
class CheckpointSave {
 public:
  // Makes the folder, and starts a thread that writes and sums up this rank's files. Collective.
  CheckpointSave(const std::filesystem::path& folder, Checkpoint checkpoint,
                 Communicator* world = nullptr);
  CheckpointSave(const CheckpointSave&) = delete;  // the thread knows its address
  CheckpointSave& operator=(const CheckpointSave&) = delete;
  bool written() const;  // whether this rank's files are, or have failed: finish() then does not
                         // wait for its own disk
  // Waits for the files and puts the manifest in their place. Throws what writing them threw.
  // Collective.
  void finish();

 private:
  std::filesystem::path folder_;
  Checkpoint checkpoint_;
  Communicator* world_;
  std::future<Json> files_;  // this rank's part of the manifest
};

// Complete checkpoints of a folder by step, ascending: manifest present, files of the right size.
std::vector<int64_t> list_checkpoints(const std::filesystem::path& folder);

// Reads a checkpoint folder, checking every checksum first. Throws DataError naming what is missing
// or damaged. only: files to read; empty: all. Files of several ranks come as one. Tensors are maps
// of the files: only what is used is read into memory.
Checkpoint load_checkpoint(const std::filesystem::path& checkpoint,
                           const std::vector<std::string>& only = {});

// The manifest of a checkpoint, checked in form: {"step", "files": {name: {"bytes", "sha256"}}}.
// Throws DataError.
Json read_manifest(const std::filesystem::path& checkpoint);

// Reads every byte of a checkpoint and lists what is wrong with it, one line a file; empty: it is
// whole. Throws DataError only when the manifest itself is missing or damaged.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& checkpoint);

// What a file of a checkpoint belongs to, by its name without extension: "model-00002-of-00004" to
// "model".
std::string file_group(const std::string& stem);

// The path of a step's checkpoint, whether it exists or not.
std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step);

// Deletes all but the newest keep_last and `keep` (the best). keep_last 0 keeps all.
void prune_checkpoints(const std::filesystem::path& folder, int64_t keep_last,
                       std::optional<int64_t> keep);

// As safetensors calls it. Bug for one that they lack.
DType stored_dtype(at::ScalarType type);

// One safetensors file from or to CPU tensors; any dtype LibTorch and safetensors share.
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {});
NamedTensors read_tensors(const std::filesystem::path& path);

}  // namespace contexture::parallel
