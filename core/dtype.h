// Element types as safetensors files name them.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace contexture {

// Never renumber: the order is the reference writer's, which puts larger values first in a file.
enum class DType : uint8_t {
  Bool,
  F4,
  F6_E2M3,
  F6_E3M2,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
};

std::string_view dtype_name(DType dtype);                     // "BF16"
std::optional<DType> dtype_from_name(std::string_view name);  // exact, upper case
int dtype_bits(DType dtype);  // of one element: 4, 6, 8, 16, 32 or 64

}  // namespace contexture
