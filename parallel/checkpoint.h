// Checkpoints: a folder step-NNNNNNNN holding safetensors files of logical tensors, and a manifest with the size and
// checksum of every file, written last. A folder without a whole manifest does not exist for loading
// (docs/formats/checkpoint.md).
#pragma once
#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"

namespace contexture::parallel {

using NamedTensors = std::map<std::string, at::Tensor>;

struct Checkpoint {
  int64_t step = 0;
  std::map<std::string, NamedTensors> files;  // "model", "optimizer", ...: one safetensors file each
  Json state = Json::object();                // everything small: configuration, cursor, figures
};

// Writes folder/step-NNNNNNNN. A half-written folder of that step (from a kill) is replaced. Throws UserError naming the
// file when the disk fails; earlier checkpoints are untouched.
void save_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint);

// Complete checkpoints of a folder by step, ascending: manifest present, files of the right size.
std::vector<int64_t> list_checkpoints(const std::filesystem::path& folder);

// Reads a checkpoint folder, checking every checksum first. Throws DataError naming what is missing or damaged.
// only: files to read; empty: all.
Checkpoint load_checkpoint(const std::filesystem::path& checkpoint, const std::vector<std::string>& only = {});

// The manifest of a checkpoint, checked in form: {"step", "files": {name: {"bytes", "sha256"}}}. Throws DataError.
Json read_manifest(const std::filesystem::path& checkpoint);

// Reads every byte of a checkpoint and lists what is wrong with it, one line a file; empty: it is whole. Throws DataError
// only when the manifest itself is missing or damaged.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& checkpoint);

// The path of a step's checkpoint, whether it exists or not.
std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step);

// Deletes all but the newest keep_last and `keep` (the best). keep_last 0 keeps all.
void prune_checkpoints(const std::filesystem::path& folder, int64_t keep_last, std::optional<int64_t> keep);

// One safetensors file from or to CPU tensors; any dtype LibTorch and safetensors share.
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {});
NamedTensors read_tensors(const std::filesystem::path& path);

}  // namespace contexture::parallel
