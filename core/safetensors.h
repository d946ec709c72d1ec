// Reading and writing safetensors files (docs/formats/safetensors.md).
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace contexture {

struct TensorView {
  DType dtype = DType::F32;
  std::vector<int64_t> shape;  // [] for a scalar
  std::span<const std::byte>
      bytes;  // row-major, little-endian; may be unaligned in a file not written by us
};

// Maps a file and checks all of its header before the constructor returns: length, JSON, entries,
// product overflow, size against range, contiguity, coverage; in that order. DataError names file
// and tensor. Tensor bytes are not touched until read. Thread-safe once built; views live as long
// as the reader.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);
  // Reads `bytes`, which must outlive the reader; `source` is for messages.
  SafetensorsReader(std::span<const std::byte> bytes, std::string source);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;

  const std::vector<std::string>& names() const { return names_; }  // in file order
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  const TensorView& get(
      const std::string& name) const;  // DataError with the nearest name if absent
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& source() const { return source_; }

 private:
  void parse(std::span<const std::byte> file);

  struct Mapping;
  std::unique_ptr<Mapping> mapping_;
  std::string source_;
  std::vector<std::string> names_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct WrittenFile {
  uint64_t num_bytes = 0;
  uint32_t crc32c = 0;
};

// Collects views, then writes them in the reference writer's order (wide types first, then by name;
// header padded with spaces to a multiple of 8), so that equal content gives equal bytes.
class SafetensorsWriter {
 public:
  explicit SafetensorsWriter(std::map<std::string, std::string> metadata = {});

  // `bytes` must live until write(). UserError on a repeated or reserved name; Bug when sizes
  // disagree.
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape,
           std::span<const std::byte> bytes);

  // Atomic replacement of `path`; may be called again for another path.
  WrittenFile write(const std::filesystem::path& path) const;

 private:
  std::map<std::string, std::string> metadata_;
  std::map<std::string, TensorView> tensors_;
};

// Bytes of a tensor. False on a negative dimension, on overflow, or when sub-byte elements don't
// fill whole bytes.
bool tensor_num_bytes(DType dtype, std::span<const int64_t> shape, uint64_t* num_bytes);

}  // namespace contexture
