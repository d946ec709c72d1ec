// NumPy's .npy files of vectors: two-dimensional, C order, little-endian float32 or float16
// (docs/formats/index.md). Every size is checked against the file, with arithmetic that can't
// overflow, before anything is allocated.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/files.h"

namespace contexture {

struct NpyHeader {
  DType dtype = DType::F32;  // F32 or F16
  int64_t rows = 0, dim = 0;
  size_t data_offset = 0;
};
// Versions 1 to 3. `bytes` is the file's beginning or all of it, file_bytes its length. Throws
// DataError naming `source` and what it found: another type (">f4", "<f8"), Fortran order, another
// number of dimensions, a header that is cut short or no literal, data of another length than the
// shape asks for.
NpyHeader parse_npy_header(std::string_view bytes, uint64_t file_bytes, const std::string& source);

// A mapped file. Reading from several threads is safe.
class NpyMatrix {
 public:
  explicit NpyMatrix(const std::filesystem::path& path);

  int64_t rows() const { return header_.rows; }
  int64_t dim() const { return header_.dim; }
  DType dtype() const { return header_.dtype; }
  const std::filesystem::path& path() const { return file_.path(); }
  // Rows first..first + out.size() / dim as fp32.
  void read(int64_t first, std::span<float> out) const;
  // The numbers where they lie; empty unless they are float32 at an address that floats may have.
  std::span<const float> floats() const;

 private:
  MappedFile file_;
  NpyHeader header_;
};

// Writes rows in order, all or nothing. float16 rounds to nearest, ties to even; a number beyond
// 65504 becomes an infinity, which throws UserError.
class NpyWriter {
 public:
  NpyWriter(const std::filesystem::path& path, DType dtype, int64_t rows, int64_t dim);
  void write(std::span<const float> rows);
  void commit();  // Bug unless all rows were written

 private:
  AtomicFile file_;
  DType dtype_;
  int64_t left_;  // numbers still to come
};

float half_to_float(uint16_t half);
uint16_t float_to_half(float value);

}  // namespace contexture
