// N rows, B blocks of four columns.
#include "model/internal/dropout_mask.h"

#include <ATen/Parallel.h>

namespace contexture::model::internal {
namespace {

uint32_t threshold_of(double p) { return static_cast<uint32_t>(p * 4294967296.0); }
float scale_of(double p) { return static_cast<float>(1.0 / (1.0 - p)); }

at::Tensor on_cpu(const at::Tensor& key_N, int64_t width, double p, const StreamKey& stream) {
  const at::Tensor mask = at::empty({key_N.size(0), width}, at::kFloat);
  const int64_t* key = key_N.data_ptr<int64_t>();
  float* out = mask.data_ptr<float>();
  const uint32_t threshold = threshold_of(p);
  const float scale = scale_of(p);
  at::parallel_for(0, key_N.size(0), 64, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const auto owner = static_cast<uint64_t>(key[n]);
      for (int64_t d = 0; d < width; d += 4) {
        const auto word =
            philox(stream.key, {static_cast<uint32_t>(owner), static_cast<uint32_t>(owner >> 32),
                                stream.high[0] ^ static_cast<uint32_t>(d / 4), stream.high[1]});
        for (int64_t i = 0; i < 4 && d + i < width; ++i)
          out[n * width + d + i] = word[i] < threshold ? 0.0f : scale;
      }
    }
  });
  return mask;
}

constexpr int64_t kLow = 0xFFFFFFFF;

// philox() on whole tensors: words are int64 between 0 and 2^32. The product's lower 64 bits are
// right although it overflows; a shift to the right brings ones down from the sign, which are
// masked away.
at::Tensor on_device(const at::Tensor& key_N, int64_t width, double p, const StreamKey& stream) {
  const int64_t N = key_N.size(0), B = (width + 3) / 4;
  const at::Tensor block_B =
      at::arange(B, key_N.options()).bitwise_xor(static_cast<int64_t>(stream.high[0]));
  std::array<at::Tensor, 4> counter{
      key_N.bitwise_and(kLow).view({N, 1}).expand({N, B}),
      at::bitwise_right_shift(key_N, 32).bitwise_and(kLow).view({N, 1}).expand({N, B}),
      block_B.expand({N, B}),
      at::full({N, B}, static_cast<int64_t>(stream.high[1]), key_N.options())};
  std::array<uint32_t, 2> key = stream.key;
  for (int round = 0; round < 10; ++round) {
    const at::Tensor product0 = counter[0] * int64_t{0xD2511F53},
                     product1 = counter[2] * int64_t{0xCD9E8D57};
    const auto high = [](const at::Tensor& product) {
      return at::bitwise_right_shift(product, 32).bitwise_and(kLow);
    };
    counter = {high(product1).bitwise_xor(counter[1]).bitwise_xor(static_cast<int64_t>(key[0])),
               product1.bitwise_and(kLow),
               high(product0).bitwise_xor(counter[3]).bitwise_xor(static_cast<int64_t>(key[1])),
               product0.bitwise_and(kLow)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const at::Tensor words = at::stack({counter[0], counter[1], counter[2], counter[3]}, 2)
                               .view({N, 4 * B})
                               .narrow(1, 0, width);
  return words.ge(static_cast<int64_t>(threshold_of(p))).to(at::kFloat) * scale_of(p);
}

}  // namespace

at::Tensor dropout_mask(const at::Tensor& key_N, int64_t width, double p, const StreamKey& stream) {
  return key_N.device().is_cpu() ? on_cpu(key_N.contiguous(), width, p, stream)
                                 : on_device(key_N, width, p, stream);
}

}  // namespace contexture::model::internal
