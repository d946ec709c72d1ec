#include "model/internal/product.h"

// oneDNN's product in LibTorch, which at::mm uses for bf16 only: fp32 goes to MKL, whose kernels
// for processors of other makers leave half of their vector width unused. LibTorch exports it
// without a header; a build of LibTorch that does not leaves the weak symbol null.
namespace at::native {
__attribute__((weak)) void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result,
                                         float beta, float alpha);
}

namespace contexture::model::ops::internal {
namespace {

#if defined(__x86_64__)
bool is_intel() { return __builtin_cpu_is("intel"); }
bool has_avx512() { return __builtin_cpu_supports("avx512f"); }
// oneDNN's bf16 products need these instructions to be faster than fp32 ones.
bool has_bf16_products() {
  unsigned a = 7, b = 0, c = 1, d = 0;  // leaf 7, subleaf 1: EAX bit 5 is AVX512_BF16
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return has_avx512() && (a & (1u << 5)) != 0;
}
#else
bool is_intel() { return false; }
bool has_avx512() { return false; }
bool has_bf16_products() { return true; }
#endif

bool onednn_is_faster() {
  static const bool yes = at::native::mkldnn_matmul != nullptr && has_avx512() && !is_intel() &&
                          at::globalContext().userEnabledMkldnn();
  return yes;
}

}  // namespace

at::Tensor product(const at::Tensor& a_MK, const at::Tensor& b_KN) {
  static const bool bf16_is_fast = has_bf16_products();
  if (!a_MK.device().is_cpu() || a_MK.numel() == 0 || b_KN.numel() == 0) return at::mm(a_MK, b_KN);
  if (a_MK.scalar_type() == at::kBFloat16 && !bf16_is_fast) {
    return product(a_MK.to(at::kFloat), b_KN.to(at::kFloat)).to(at::kBFloat16);
  }
  if (a_MK.scalar_type() != at::kFloat || !onednn_is_faster()) return at::mm(a_MK, b_KN);
  at::Tensor out_MN = at::empty({a_MK.size(0), b_KN.size(1)}, a_MK.options());
  at::native::mkldnn_matmul(a_MK, b_KN, out_MN, /*beta=*/0, /*alpha=*/1);
  return out_MN;
}

}  // namespace contexture::model::ops::internal
