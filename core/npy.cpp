#include "core/npy.h"

#include <bit>
#include <charconv>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace contexture {
namespace {

static_assert(std::endian::native == std::endian::little, ".npy files are read as they lie");

constexpr std::string_view kMagic = "\x93NUMPY";

// The header's text: a Python dictionary of three known keys, as NumPy writes it.
class Literal {
 public:
  Literal(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  void parse(NpyHeader& header) {
    bool descr = false, order = false, shape = false;
    expect('{');
    while (next() != '}') {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !descr) {
        descr = true;
        const std::string type = next() == '\'' || next() == '"' ? quoted() : "a structure";
        require(type == "<f4" || type == "<f2", "holds ", type,
                ", not float32 ('<f4') or float16 ('<f2'). Convert it: a.astype('<f4')");
        header.dtype = type == "<f4" ? DType::F32 : DType::F16;
      } else if (key == "fortran_order" && !order) {
        order = true;
        const bool fortran = word() == "True";
        require(!fortran, "is in Fortran order. Save numpy.ascontiguousarray(a)");
      } else if (key == "shape" && !shape) {
        shape = true;
        const std::vector<int64_t> sizes = tuple();
        require(sizes.size() == 2, "has ", sizes.size(),
                " dimensions. Vectors are rows of a two-dimensional array");
        header.rows = sizes[0], header.dim = sizes[1];
      } else {
        require(false, "has a header with the key '", key, "' where it should not be");
      }
      if (next() != ',') break;
      ++at_;
    }
    expect('}');
    require(descr && order && shape, "has a header without descr, fortran_order and shape");
  }

 private:
  template <typename... Words>
  void require(bool condition, const Words&... words) const {
    CONTEXTURE_DATA_REQUIRE(condition, source_, " ", words..., ".");
  }
  char next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void expect(char c) {
    require(next() == c, "has a header that is no dictionary ('", c, "' expected at character ",
            at_, ")");
    ++at_;
  }
  std::string quoted() {
    const char quote = next();
    const size_t end =
        quote == '\'' || quote == '"' ? text_.find(quote, at_ + 1) : std::string_view::npos;
    require(end != std::string_view::npos,
            "has a header that is no dictionary (a string expected at character ", at_, ")");
    const std::string text(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return text;
  }
  std::string word() {
    next();
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= 'A' && text_[at_] <= 'z') ++at_;
    const std::string text(text_.substr(begin, at_ - begin));
    require(text == "True" || text == "False", "has a header whose fortran_order is '", text, "'");
    return text;
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> sizes;
    expect('(');
    while (next() != ')') {
      int64_t size = 0;
      const auto [end, error] =
          std::from_chars(text_.data() + at_, text_.data() + text_.size(), size);
      require(error == std::errc() && size >= 0 && sizes.size() < 32,
              "has a shape that is no list of sizes");
      at_ = static_cast<size_t>(end - text_.data());
      sizes.push_back(size);
      if (next() != ',') break;
      ++at_;
    }
    expect(')');
    return sizes;
  }

  std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
};

int64_t element_bytes(DType dtype) { return dtype == DType::F16 ? 2 : 4; }

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

NpyHeader parse_npy_header(std::string_view bytes, uint64_t file_bytes, const std::string& source) {
  CONTEXTURE_DATA_REQUIRE(
      !bytes.starts_with("version https://git-lfs"), source,
      " is a Git LFS pointer, not the array itself. Run 'git lfs pull' where it came from.");
  CONTEXTURE_DATA_REQUIRE(bytes.starts_with(kMagic) && bytes.size() >= 10, source,
                          " does not begin as a .npy file does. Save vectors with numpy.save.");
  const int version = static_cast<unsigned char>(bytes[6]);
  CONTEXTURE_DATA_REQUIRE(version >= 1 && version <= 3, source, ": .npy version ", version,
                          " is not read; 1 to 3 are.");
  const size_t begin = version == 1 ? 10 : 12;
  uint32_t length = 0;
  CONTEXTURE_DATA_REQUIRE(bytes.size() >= begin, source, " is cut short in its header.");
  std::memcpy(&length, bytes.data() + 8, version == 1 ? 2 : 4);
  CONTEXTURE_DATA_REQUIRE(length <= bytes.size() - begin && length <= (1u << 20), source,
                          " is cut short: its header is said to have ", length, " bytes.");
  NpyHeader header;
  Literal(bytes.substr(begin, length), source).parse(header);
  header.data_offset = begin + length;
  uint64_t expected = 0;
  const bool fits = !__builtin_mul_overflow(static_cast<uint64_t>(header.rows),
                                            static_cast<uint64_t>(header.dim), &expected) &&
                    !__builtin_mul_overflow(
                        expected, static_cast<uint64_t>(element_bytes(header.dtype)), &expected);
  CONTEXTURE_DATA_REQUIRE(header.dim >= 1 && fits && file_bytes - header.data_offset == expected,
                          source, ": ", header.rows, " vectors of ", header.dim,
                          " numbers do not fit the ", file_bytes - header.data_offset,
                          " bytes of data that the file has. It is cut short or damaged.");
  return header;
}

NpyMatrix::NpyMatrix(const std::filesystem::path& path) : file_(path) {
  header_ = parse_npy_header(text_of(file_), file_.bytes().size(), path.string());
}

void NpyMatrix::read(int64_t first, std::span<float> out) const {
  const int64_t n = static_cast<int64_t>(out.size()) / header_.dim;
  CONTEXTURE_INVARIANT(first >= 0 && first <= rows() && n <= rows() - first &&
                       n * header_.dim == static_cast<int64_t>(out.size()));
  if (out.empty()) return;
  const std::byte* from = file_.bytes().data() + header_.data_offset +
                          first * header_.dim * element_bytes(header_.dtype);
  if (header_.dtype == DType::F32) {
    std::memcpy(out.data(), from, out.size_bytes());
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, from + 2 * i, sizeof(half));
    out[i] = half_to_float(half);
  }
}

std::span<const float> NpyMatrix::floats() const {
  const std::byte* data = file_.bytes().data() + header_.data_offset;
  if (header_.dtype != DType::F32 || reinterpret_cast<uintptr_t>(data) % alignof(float) != 0)
    return {};
  return {reinterpret_cast<const float*>(data), static_cast<size_t>(rows() * dim())};
}

NpyWriter::NpyWriter(const std::filesystem::path& path, DType dtype, int64_t rows, int64_t dim)
    : file_(path), dtype_(dtype), left_(rows * dim) {
  CONTEXTURE_INVARIANT((dtype == DType::F32 || dtype == DType::F16) && rows >= 0 && dim >= 1);
  std::string text = concat("{'descr': '", dtype == DType::F16 ? "<f2" : "<f4",
                            "', 'fortran_order': False, 'shape': (", rows, ", ", dim, "), }");
  constexpr size_t kAlignment = 64, kPrefix = 10;
  text.append(kAlignment - (kPrefix + text.size() + 1) % kAlignment, ' ');
  text += '\n';
  const uint16_t length = static_cast<uint16_t>(text.size());
  std::string head(kMagic);
  head += '\x01';
  head += '\0';
  head.append(reinterpret_cast<const char*>(&length), sizeof(length));
  file_.write(head + text);
}

void NpyWriter::write(std::span<const float> rows) {
  CONTEXTURE_INVARIANT(static_cast<int64_t>(rows.size()) <= left_);
  left_ -= static_cast<int64_t>(rows.size());
  if (dtype_ == DType::F32) return file_.write(std::as_bytes(rows));
  std::vector<uint16_t> halves(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    halves[i] = float_to_half(rows[i]);
    CONTEXTURE_REQUIRE((halves[i] & 0x7fff) < 0x7c00, "The number ", rows[i],
                       " does not fit float16. Save the vectors as float32.");
  }
  file_.write(std::as_bytes(std::span(halves)));
}

void NpyWriter::commit() {
  CONTEXTURE_INVARIANT(left_ == 0, left_, " numbers were not written");
  file_.commit();
}

float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude < 0x400u) {  // zero and subnormal: a whole number of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t bits = magnitude >= 0x7c00u ? 0x7f800000u | (magnitude & 0x3ffu) << 13
                                             : (magnitude << 13) + 0x38000000u;
  return std::bit_cast<float>(sign | bits);
}

uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN
  if (magnitude >= 0x47800000u) return sign | 0x7c00u;  // 65536 and up
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to a whole number of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace contexture
