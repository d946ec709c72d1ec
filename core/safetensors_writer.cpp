#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/safetensors.h"

namespace contexture {
namespace {

// Written by hand: nlohmann's objects either sort their members or search them for every new one.
std::string header_text(const std::map<std::string, std::string>& metadata,
                        const std::vector<std::pair<std::string, TensorView>>& ordered) {
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + Json(metadata).dump();
  uint64_t offset = 0;
  for (const auto& [name, view] : ordered) {
    if (text.size() > 1) text += ',';
    const uint64_t end = offset + view.bytes.size();
    text += concat(Json(name).dump(), ":{\"dtype\":\"", dtype_name(view.dtype),
                   "\",\"shape\":", Json(view.shape).dump(), ",\"data_offsets\":[", offset, ",",
                   end, "]}");
    offset = end;
  }
  return text + "}";
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::map<std::string, std::string> metadata)
    : metadata_(std::move(metadata)) {}

void SafetensorsWriter::add(const std::string& name, DType dtype, std::vector<int64_t> shape,
                            std::span<const std::byte> bytes) {
  CONTEXTURE_REQUIRE(name != "__metadata__", "a tensor can't be named '__metadata__'");
  CONTEXTURE_REQUIRE(!tensors_.contains(name), "two tensors are named '", name, "'");
  uint64_t num_bytes = 0;
  CONTEXTURE_INVARIANT(tensor_num_bytes(dtype, shape, &num_bytes) && num_bytes == bytes.size(),
                       "tensor '", name, "' has ", bytes.size(), " bytes; its shape needs ",
                       num_bytes);
  tensors_.emplace(name, TensorView{dtype, std::move(shape), bytes});
}

WrittenFile SafetensorsWriter::write(const std::filesystem::path& path) const {
  std::vector<std::pair<std::string, TensorView>> ordered(tensors_.begin(), tensors_.end());
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return a.second.dtype > b.second.dtype;  // the map has sorted the names already
  });

  std::string text;
  try {
    text = header_text(metadata_, ordered);
  } catch (const Json::exception&) {
    throw UserError(concat(path.string(), ": a tensor name or metadata string is not valid UTF-8"));
  }
  text.append((8 - text.size() % 8) % 8, ' ');

  AtomicFile file(path);
  const uint64_t header_size = text.size();
  char length[8];
  std::memcpy(length, &header_size, 8);
  file.write(std::string_view(length, 8));
  file.write(text);
  for (const auto& [name, view] : ordered) file.write(view.bytes);
  file.commit();
  return {file.num_bytes(), file.crc32c()};
}

}  // namespace contexture
