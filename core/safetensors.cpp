#include "core/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "core/did_you_mean.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"

namespace contexture {

static_assert(std::endian::native == std::endian::little,
              "tensor bytes are mapped as they stand in the file, which is little-endian");

namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the reference reader's limit

struct Entry {
  std::string name;
  TensorView view;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// One member of the header. `file` is for messages.
Entry parse_entry(const std::string& file, const std::string& name, const Json& json) {
  const std::string where = concat(file, ": tensor ", Json(name).dump());
  CONTEXTURE_DATA_REQUIRE(json.is_object(), where, ": its header entry is no object");
  Entry entry;
  entry.name = name;

  const auto dtype_text = json_get<std::string>(json, "dtype", where);
  const auto dtype = dtype_from_name(dtype_text);
  CONTEXTURE_DATA_REQUIRE(dtype.has_value(), where, ": unknown dtype '", dtype_text, "'");
  entry.view.dtype = *dtype;

  entry.view.shape = json_get<std::vector<int64_t>>(json, "shape", where);
  for (const int64_t extent : entry.view.shape) {
    CONTEXTURE_DATA_REQUIRE(extent >= 0, where, ": negative extent ", extent, " in its shape");
  }

  const auto offsets = json_get<std::vector<uint64_t>>(json, "data_offsets", where);
  CONTEXTURE_DATA_REQUIRE(offsets.size() == 2, where, ": data_offsets must be [begin, end]");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  return entry;
}

// Product overflow, then size against range.
void check_size(const std::string& file, const Entry& entry) {
  uint64_t num_bytes = 0;
  CONTEXTURE_DATA_REQUIRE(tensor_num_bytes(entry.view.dtype, entry.view.shape, &num_bytes), file,
                          ": tensor ", Json(entry.name).dump(), ": shape ",
                          Json(entry.view.shape).dump(), " of ", dtype_name(entry.view.dtype),
                          " overflows, or does not fill whole bytes");
  CONTEXTURE_DATA_REQUIRE(entry.begin <= entry.end && entry.end - entry.begin == num_bytes, file,
                          ": tensor ", Json(entry.name).dump(), ": shape ",
                          Json(entry.view.shape).dump(), " of ", dtype_name(entry.view.dtype),
                          " takes ", num_bytes, " bytes but data_offsets are [", entry.begin, ", ",
                          entry.end, "]");
}

std::map<std::string, std::string> parse_metadata(const std::string& file, const Json& json) {
  CONTEXTURE_DATA_REQUIRE(json.is_object(), file, ": __metadata__ must be an object of strings");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : json.items()) {
    CONTEXTURE_DATA_REQUIRE(value.is_string(), file, ": __metadata__ ", Json(key).dump(),
                            " must be a string, found ", value.type_name());
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

}  // namespace

bool tensor_num_bytes(DType dtype, std::span<const int64_t> shape, uint64_t* num_bytes) {
  uint64_t bits = static_cast<uint64_t>(dtype_bits(dtype));
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bits, static_cast<uint64_t>(extent), &bits))
      return false;
  }
  *num_bytes = bits / 8;
  return bits % 8 == 0;
}

struct SafetensorsReader::Mapping {
  MappedFile file;
};

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path)
    : mapping_(std::make_unique<Mapping>(Mapping{MappedFile(path)})), source_(path.string()) {
  parse(mapping_->file.bytes());
}

SafetensorsReader::SafetensorsReader(std::span<const std::byte> bytes, std::string source)
    : source_(std::move(source)) {
  parse(bytes);
}

SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;

void SafetensorsReader::parse(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  CONTEXTURE_DATA_REQUIRE(!text.starts_with("version https://git-lfs.github.com/spec/"), source_,
                          " is a Git LFS pointer, not the tensors. Fetch the file: git lfs pull");
  CONTEXTURE_DATA_REQUIRE(file.size() >= 8, source_, ": ", file.size(),
                          " bytes are no safetensors file (its header length takes 8)");
  uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), 8);
  CONTEXTURE_DATA_REQUIRE(header_size <= kMaxHeader, source_, ": header length ", header_size,
                          " is over the limit of ", kMaxHeader,
                          "; no safetensors file, or damaged");
  CONTEXTURE_DATA_REQUIRE(header_size <= file.size() - 8, source_, ": cut short: the header takes ",
                          header_size, " bytes, ", file.size() - 8, " follow its length");

  const std::string_view header_text = text.substr(8, header_size);
  CONTEXTURE_DATA_REQUIRE(header_text.starts_with('{'), source_,
                          ": the header must be a JSON object starting with '{'");
  const Json header = parse_json(header_text, source_ + " (header)");

  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") {
      metadata_ = parse_metadata(source_, json);
    } else {
      entries.push_back(parse_entry(source_, name, json));
    }
  }
  for (const Entry& entry : entries) check_size(source_, entry);

  // Zero-size tensors share their begin with a neighbour: the end decides, then the name.
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  const auto data = file.subspan(8 + header_size);
  uint64_t expected_begin = 0;
  for (const Entry& entry : entries) {
    CONTEXTURE_DATA_REQUIRE(entry.begin == expected_begin, source_, ": tensor ",
                            Json(entry.name).dump(), " begins at ", entry.begin,
                            entry.begin < expected_begin ? ", inside the one before, which ends at "
                                                         : ", leaving a hole after ",
                            expected_begin);
    expected_begin = entry.end;
  }
  CONTEXTURE_DATA_REQUIRE(
      expected_begin == data.size(), source_, ": the tensors take ", expected_begin,
      " bytes but the file has ", data.size(), " after its header; ",
      expected_begin > data.size() ? "it is cut short" : "it has extra bytes at its end");

  for (Entry& entry : entries) {
    entry.view.bytes = data.subspan(entry.begin, entry.end - entry.begin);
    names_.push_back(entry.name);
    tensors_.emplace(std::move(entry.name), std::move(entry.view));
  }
}

const TensorView& SafetensorsReader::get(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw DataError(concat(source_, " has no tensor '", name, "' (it has ", names_.size(), ").",
                           did_you_mean_hint(name, names_)));
  }
  return found->second;
}

}  // namespace contexture
