#include "parallel/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <regex>

#include "core/error.h"
#include "core/fault_point.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/safetensors.h"
#include "parallel/gather.h"

namespace contexture::parallel {
namespace fs = std::filesystem;
namespace {

constexpr int kFormatVersion = 1;
const std::vector<std::pair<at::ScalarType, DType>> kDTypes{
    {at::kBool, DType::Bool}, {at::kByte, DType::U8},       {at::kChar, DType::I8},
    {at::kShort, DType::I16}, {at::kInt, DType::I32},       {at::kLong, DType::I64},
    {at::kHalf, DType::F16},  {at::kBFloat16, DType::BF16}, {at::kFloat, DType::F32},
    {at::kDouble, DType::F64}};

std::string file_checksum(const fs::path& path) {
  const MappedFile file(path);
  return sha256_hex(file.bytes());
}

// "" when the file is as the manifest says, else what is wrong with it.
std::string problem_with(const fs::path& checkpoint, const std::string& name, const Json& about) {
  std::error_code error;
  const auto bytes = fs::file_size(checkpoint / name, error);
  if (error) return name + " is missing";
  if (bytes != about.at("bytes").get<uint64_t>()) {
    return concat(name, " has ", bytes, " bytes, not ", about.at("bytes").get<uint64_t>());
  }
  if (file_checksum(checkpoint / name) == about.at("sha256").get<std::string>()) return "";
  return name + " is damaged: its checksum differs from the manifest's";
}

}  // namespace

DType stored_dtype(at::ScalarType type) {
  const auto known = std::find_if(kDTypes.begin(), kDTypes.end(),
                                  [type](const auto& d) { return d.first == type; });
  CONTEXTURE_INVARIANT(known != kDTypes.end(), "safetensors has no ", at::toString(type));
  return known->second;
}

Json read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "manifest.json";
  const std::string where = path.string();
  CONTEXTURE_DATA_REQUIRE(fs::exists(path), checkpoint.string(),
                          " is no complete checkpoint: manifest.json is missing. ",
                          "Use an earlier step-* folder.");
  Json manifest = read_json_file(where);
  CONTEXTURE_DATA_REQUIRE(manifest.is_object() && manifest.contains("format") &&
                              manifest["format"] == "contexture-checkpoint",
                          where, " is not a checkpoint's manifest");
  CONTEXTURE_DATA_REQUIRE(json_get<int>(manifest, "version", where) <= kFormatVersion, where,
                          " has version ", manifest["version"].dump(),
                          ", newer than this program's ", kFormatVersion, ". Update the program.");
  json_get<int64_t>(manifest, "step", where);
  CONTEXTURE_DATA_REQUIRE(manifest.contains("files") && manifest["files"].is_object(), where,
                          " lists no files");
  for (const auto& [name, about] : manifest["files"].items()) {
    CONTEXTURE_DATA_REQUIRE(fs::path(name).filename() == name && name != "." && name != "..", where,
                            " lists '", name, "', which is no plain file name");
    json_get<uint64_t>(about, "bytes", where + ": " + name);
    json_get<std::string>(about, "sha256", where + ": " + name);
  }
  return manifest;
}

std::vector<std::string> verify_checkpoint(const fs::path& checkpoint) {
  const Json manifest = read_manifest(checkpoint);
  std::vector<std::string> problems;
  for (const auto& [name, about] : manifest["files"].items()) {
    std::string problem = problem_with(checkpoint, name, about);
    if (problem.empty() && fs::path(name).extension() == ".safetensors") {
      try {
        const SafetensorsReader reader(checkpoint / name);
      } catch (const DataError& error) {
        problem = error.what();
      }
    }
    if (!problem.empty()) problems.push_back(problem);
  }
  return problems;
}

void write_tensors(const fs::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer(metadata);
  std::vector<at::Tensor> kept;  // the writer holds views
  for (const auto& [name, tensor] : tensors) {
    kept.push_back(tensor.detach().cpu().contiguous());
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(kept.back().data_ptr()),
                                           kept.back().nbytes());
    writer.add(name, stored_dtype(tensor.scalar_type()), kept.back().sizes().vec(), bytes);
  }
  writer.write(path);
}

NamedTensors read_tensors(const fs::path& path) {
  const auto reader = std::make_shared<const SafetensorsReader>(path);
  NamedTensors out;
  for (const std::string& name : reader->names()) {
    const TensorView& view = reader->get(name);
    const auto dtype = std::find_if(kDTypes.begin(), kDTypes.end(),
                                    [&](const auto& d) { return d.second == view.dtype; });
    CONTEXTURE_DATA_REQUIRE(dtype != kDTypes.end(), path.string(), ": tensor '", name,
                            "' has a dtype that this program does not compute with");
    const size_t width = c10::elementSize(dtype->first);
    if (reinterpret_cast<uintptr_t>(view.bytes.data()) % width == 0 && !view.bytes.empty()) {
      // A view of the map, which lives as long as any of its tensors. Nobody writes to it: the map
      // is read-only.
      out[name] = at::from_blob(
          const_cast<std::byte*>(view.bytes.data()), view.shape, [reader](void*) {}, dtype->first);
    } else {
      out[name] = at::empty(view.shape, dtype->first);
      if (!view.bytes.empty())
        std::memcpy(out[name].data_ptr(), view.bytes.data(), view.bytes.size());
    }
  }
  return out;
}

fs::path checkpoint_path(const fs::path& folder, int64_t step) {
  std::string digits = std::to_string(step);
  digits.insert(0, digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return folder / ("step-" + digits);
}

std::string file_group(const std::string& stem) {
  static const std::regex part("(.+)-[0-9]{5}-of-[0-9]{5}");
  std::smatch match;
  return std::regex_match(stem, match, part) ? match[1].str() : stem;
}

namespace {

void begin_folder(const fs::path& path, Communicator* world) {
  if (world == nullptr || world->rank() == 0) {
    fs::remove_all(path);
    make_folders(path);
  }
  if (world != nullptr) world->barrier();
}

void record(const fs::path& path, const std::string& name, Json& files) {
  files[name] = {{"bytes", fs::file_size(path / name)}, {"sha256", file_checksum(path / name)}};
}

// This rank's files, and what the manifest says of them. No collective.
Json write_files(const fs::path& path, const Checkpoint& checkpoint, Communicator* world) {
  Json files = Json::object();
  char part[32] = "";
  if (world != nullptr)
    std::snprintf(part, sizeof part, "-%05d-of-%05d", world->rank() + 1, world->size());
  for (const auto& [name, tensors] : checkpoint.files) {
    if (tensors.empty()) continue;
    write_tensors(path / (name + part + ".safetensors"), tensors, {{"format", "pt"}});
    record(path, name + part + ".safetensors", files);
  }
  fault_point("save");
  return files;
}

void write_manifest(const fs::path& path, const Checkpoint& checkpoint, const Json& mine,
                    Communicator* world) {
  const std::vector<std::string> written = gather_texts(world, mine.dump());
  if (world == nullptr || world->rank() == 0) {
    Json files = Json::object();
    for (const std::string& text : written) files.update(Json::parse(text));
    write_file_atomic(path / "state.json", checkpoint.state.dump(1));
    record(path, "state.json", files);
    write_file_atomic(path / "manifest.json", Json{{"format", "contexture-checkpoint"},
                                                   {"version", kFormatVersion},
                                                   {"step", checkpoint.step},
                                                   {"files", files}}
                                                  .dump(1));
    sync_folder(path.parent_path());
  }
  if (world != nullptr) world->barrier();  // nobody goes on before it is complete
}

}  // namespace

void save_checkpoint(const fs::path& folder, const Checkpoint& checkpoint, Communicator* world) {
  const fs::path path = checkpoint_path(folder, checkpoint.step);
  begin_folder(path, world);
  write_manifest(path, checkpoint, write_files(path, checkpoint, world), world);
}

CheckpointSave::CheckpointSave(const fs::path& folder, Checkpoint checkpoint, Communicator* world)
    : folder_(checkpoint_path(folder, checkpoint.step)),
      checkpoint_(std::move(checkpoint)),
      world_(world) {
  begin_folder(folder_, world_);
  files_ =
      std::async(std::launch::async, [this] { return write_files(folder_, checkpoint_, world_); });
}

bool CheckpointSave::written() const {
  return files_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void CheckpointSave::finish() { write_manifest(folder_, checkpoint_, files_.get(), world_); }

std::vector<int64_t> list_checkpoints(const fs::path& folder) {
  std::vector<int64_t> steps;
  if (!fs::is_directory(folder)) return steps;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("step-", 0) != 0 || name.size() < 6 || name.size() > 20) continue;
    if (name.find_first_not_of("0123456789", 5) != std::string::npos ||
        !fs::exists(entry.path() / "manifest.json"))
      continue;
    bool whole = true;
    const Json manifest = read_manifest(entry.path());
    for (const auto& [file, about] : manifest["files"].items()) {
      std::error_code error;
      const auto size = fs::file_size(entry.path() / file, error);
      whole = whole && !error && size == about.at("bytes").get<uint64_t>();
    }
    if (whole) steps.push_back(std::stoll(name.substr(5)));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Checkpoint load_checkpoint(const fs::path& path, const std::vector<std::string>& only) {
  const Json manifest = read_manifest(path);
  Checkpoint checkpoint;
  checkpoint.step = manifest["step"].get<int64_t>();
  for (const auto& [name, about] : manifest["files"].items()) {
    const std::string stem = file_group(fs::path(name).stem().string());
    if (!only.empty() && name != "state.json" &&
        std::find(only.begin(), only.end(), stem) == only.end())
      continue;
    const std::string problem = problem_with(path, name, about);
    CONTEXTURE_DATA_REQUIRE(problem.empty(), path.string(), ": ", problem,
                            ". Use an earlier step-* folder.");
    if (name == "state.json") {
      checkpoint.state = read_json_file((path / name).string());
    } else {
      checkpoint.files[stem].merge(read_tensors(path / name));
    }
  }
  return checkpoint;
}

void prune_checkpoints(const fs::path& folder, int64_t keep_last, std::optional<int64_t> keep) {
  if (keep_last <= 0) return;
  const std::vector<int64_t> steps = list_checkpoints(folder);
  for (size_t i = 0; i + keep_last < steps.size(); ++i) {
    if (keep && steps[i] == *keep) continue;
    // The manifest goes first, so that a half-deleted folder does not count.
    fs::remove(checkpoint_path(folder, steps[i]) / "manifest.json");
    fs::remove_all(checkpoint_path(folder, steps[i]));
  }
}

}  // namespace contexture::parallel
