#include "core/dtype.h"

#include <array>
#include <cstddef>

#include "core/error.h"

namespace contexture {
namespace {

struct Info {
  std::string_view name;
  int bits;
};

// In the order of DType.
constexpr std::array<Info, 22> kInfos = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

const Info& info(DType dtype) {
  const auto i = static_cast<size_t>(dtype);
  CONTEXTURE_INVARIANT(i < kInfos.size(), "dtype ", i);
  return kInfos[i];
}

}  // namespace

std::string_view dtype_name(DType dtype) { return info(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kInfos.size(); ++i) {
    if (kInfos[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

int dtype_bits(DType dtype) { return info(dtype).bits; }

}  // namespace contexture
