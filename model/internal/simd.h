// Vector building blocks of the CPU kernels: one element type per kernel input (double, float,
// Bf16) and one type to compute in (Wide). Written with the compilers' vector extension, so every
// lane order, and with it every rounding, is fixed by the source and the width of the processor's
// registers. Only the kernels, which are compiled for this processor, may use Vec and what depends
// on its width. Needs no torch header.
#pragma once
#include <cstdint>
#include <cstring>

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors never cross a call: everything here is inlined
#define CONTEXTURE_INLINE inline __attribute__((always_inline))

namespace contexture::model::ops::internal {

struct Bf16 {
  uint16_t bits;
};

template <typename In>
struct WideOf {
  using type = In;
};
template <>
struct WideOf<Bf16> {
  using type = float;
};
template <typename In>
using Wide = typename WideOf<In>::type;

#ifdef __AVX512F__
inline constexpr int kVectorBytes = 64;
#else
inline constexpr int kVectorBytes = 32;
#endif

template <typename T>
struct Simd;
template <>
struct Simd<float> {
  static constexpr int kLanes = kVectorBytes / 4, kMantissa = 23;
  typedef float Vec __attribute__((vector_size(kVectorBytes)));
  typedef uint32_t Bits __attribute__((vector_size(kVectorBytes)));
  typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
};
template <>
struct Simd<double> {
  static constexpr int kLanes = kVectorBytes / 8, kMantissa = 52;
  typedef double Vec __attribute__((vector_size(kVectorBytes)));
  typedef uint64_t Bits __attribute__((vector_size(kVectorBytes)));
};
template <typename T>
using Vec = typename Simd<T>::Vec;
template <typename T>
inline constexpr int kLanes = Simd<T>::kLanes;

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

template <typename T>
CONTEXTURE_INLINE Vec<T> load(const T* p) {
  Vec<T> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <typename T>
CONTEXTURE_INLINE void store(T* p, Vec<T> v) {
  std::memcpy(p, &v, sizeof(v));
}
template <typename T>
CONTEXTURE_INLINE Vec<T> splat(T x) {
  return Vec<T>{} + x;
}
template <typename T>
CONTEXTURE_INLINE T sum_lanes(Vec<T> v) {
  T total = v[0];
  for (int i = 1; i < kLanes<T>; ++i) total += v[i];
  return total;
}

CONTEXTURE_INLINE double to_wide(double x) { return x; }
CONTEXTURE_INLINE float to_wide(float x) { return x; }
CONTEXTURE_INLINE float to_wide(Bf16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, sizeof(y));
  return y;
}
CONTEXTURE_INLINE void from_wide(double x, double* y) { *y = x; }
CONTEXTURE_INLINE void from_wide(float x, float* y) { *y = x; }
CONTEXTURE_INLINE void from_wide(float x, Bf16* y) {  // to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  y->bits = uint16_t(x == x ? rounded : 0x7fc0u);
}

// A whole vector of any input type.
CONTEXTURE_INLINE Vec<double> load_wide(const double* p) { return load(p); }
CONTEXTURE_INLINE Vec<float> load_wide(const float* p) { return load(p); }
CONTEXTURE_INLINE Vec<float> load_wide(const Bf16* p) {
  Simd<float>::Halves halves;
  std::memcpy(&halves, p, sizeof(halves));
  return Vec<float>(__builtin_convertvector(halves, Simd<float>::Bits) << 16);
}
CONTEXTURE_INLINE void store_wide(double* p, Vec<double> v) { store(p, v); }
CONTEXTURE_INLINE void store_wide(float* p, Vec<float> v) { store(p, v); }
CONTEXTURE_INLINE void store_wide(Bf16* p, Vec<float> v) {
  using Bits = Simd<float>::Bits;
  const Bits bits = Bits(v);
  Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  rounded = v == v ? rounded : Bits{} + 0x7fc0u;
  const auto halves = __builtin_convertvector(rounded, Simd<float>::Halves);
  std::memcpy(p, &halves, sizeof(halves));
}
// The first n lanes only; the others read as zero and are not written.
template <typename In>
CONTEXTURE_INLINE Vec<Wide<In>> load_some(const In* p, int64_t n) {
  Vec<Wide<In>> v{};
  for (int i = 0; i < kLanes<Wide<In>>; ++i) v[i] = i < n ? to_wide(p[i]) : Wide<In>(0);
  return v;
}
template <typename In>
CONTEXTURE_INLINE void store_some(In* p, Vec<Wide<In>> v, int64_t n) {
  for (int i = 0; i < kLanes<Wide<In>>; ++i) {
    if (i < n) from_wide(v[i], p + i);
  }
}

// exp(x) within 2 ulp. Arguments below -86 (fp64: -700) count as that, above 88 (700) likewise.
CONTEXTURE_INLINE Vec<float> exp_wide(Vec<float> x) {
  constexpr float kMagic =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  x = x < -86.0f ? splat(-86.0f) : x;
  x = x > 88.0f ? splat(88.0f) : x;
  const Vec<float> shifted = x * 1.44269504088896341f + kMagic;
  const Vec<float> n = shifted - kMagic;
  Vec<float> r = x - n * 0.693359375f;  // ln 2 in two parts, the first with few bits
  r = r + n * 2.12194440e-4f;
  // Minimax polynomial of Cephes' expf.
  Vec<float> p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  using Bits = Simd<float>::Bits;
  return Vec<float>(Bits(p) + (Bits(shifted) << 23));
}
CONTEXTURE_INLINE Vec<double> exp_wide(Vec<double> x) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  x = x < -700.0 ? splat(-700.0) : x;
  x = x > 700.0 ? splat(700.0) : x;
  const Vec<double> shifted = x * 1.4426950408889634074 + kMagic;
  const Vec<double> n = shifted - kMagic;
  Vec<double> r = x - n * 6.93145751953125e-1;
  r = r - n * 1.42860682030941723212e-6;
  // Taylor: |r| <= ln(2)/2, so the first term left out is below 4e-18.
  Vec<double> p = splat(1.0 / 6227020800.0);
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * (r * r) + r + 1.0;
  using Bits = Simd<double>::Bits;
  return Vec<double>(Bits(p) + (Bits(shifted) << 52));
}

}  // namespace contexture::model::ops::internal
