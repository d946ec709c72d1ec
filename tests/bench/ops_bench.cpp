// Times the fused operators against ATen: scaled_dot_product_attention on padded sequences and
// eager compositions. Every answer is checked before it is timed. Forward and backward together,
// fp32 unless named. Usage: ops_bench [threads]. With one thread the clock is that thread's
// processor time, which other programs on the machine do not disturb.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <time.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "model/ops.h"

namespace contexture::model::ops {
namespace {

using Operator = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

double now_s() {
  timespec t{};
  clock_gettime(at::get_num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// The best of several rounds, in milliseconds.
double time_ms(const std::function<void()>& run) {
  constexpr int kRounds = 15;
  run();
  double best = 1e9;
  for (int i = 0; i < kRounds; ++i) {
    const double start = now_s();
    run();
    best = std::min(best, now_s() - start);
  }
  return 1e3 * best;
}

std::vector<at::Tensor> forward_backward(const Operator& op, const std::vector<at::Tensor>& inputs,
                                         const at::Tensor& cotangent) {
  std::vector<at::Tensor> results{op(inputs)};
  for (const auto& g : torch::autograd::grad({results[0]}, inputs, {cotangent}))
    results.push_back(g);
  return results;
}

void compare(const char* name, std::vector<at::Tensor> inputs, const Operator& fused,
             const Operator& aten, double tolerance = 1e-4) {
  for (auto& x : inputs) x = x.detach().set_requires_grad(true);
  const auto cotangent = at::randn_like(fused(inputs));
  const auto got = forward_backward(fused, inputs, cotangent);
  const auto want = forward_backward(aten, inputs, cotangent);
  double error = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto a = got[i].to(at::kDouble), b = want[i].to(at::kDouble);
    error = std::max(error, ((a - b).norm() / (b.norm() + 1e-3)).item<double>());
  }
  if (!(error < tolerance)) {
    std::printf("%-44s WRONG: relative error %.3g\n", name, error);
    std::exit(1);
  }
  const auto time_forward = [&](const Operator& op) {
    return time_ms([&] {
      const at::NoGradGuard no_grad;
      op(inputs);
    });
  };
  const auto time_both = [&](const Operator& op) {
    return time_ms([&] { forward_backward(op, inputs, cotangent); });
  };
  const double f = time_forward(fused), fa = time_forward(aten), b = time_both(fused),
               ba = time_both(aten);
  std::printf(
      "%-44s forward %8.3f ms, ATen %8.3f (x%5.2f)   with backward %8.3f ms, ATen %8.3f (x%5.2f)\n",
      name, f, fa, fa / f, b, ba, ba / b);
  std::fflush(stdout);
}

at::Tensor longs(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

// Row indices [S, longest] of packed sequences, padded with `pad`, and the mask of real ones.
struct Padding {
  at::Tensor index, real;
};
Padding pad(const std::vector<std::vector<int64_t>>& rows) {
  size_t longest = 0;
  for (const auto& r : rows) longest = std::max(longest, r.size());
  auto index = at::zeros({int64_t(rows.size()), int64_t(longest)}, at::kLong);
  auto real = at::zeros_like(index, at::kBool);
  for (size_t s = 0; s < rows.size(); ++s) {
    const auto n = int64_t(rows[s].size());
    index[int64_t(s)].slice(0, 0, n).copy_(longs(rows[s]));
    real[int64_t(s)].slice(0, 0, n).fill_(true);
  }
  return {index, real};
}

void bench_attention(const char* name, const Segments& segments, int64_t H, int64_t G, int64_t K,
                     int64_t num_keys) {
  const auto* q_begin = segments.query_begin.data_ptr<int64_t>();
  const auto* s_begin = segments.segment_begin.data_ptr<int64_t>();
  const auto* k_begin = segments.key_begin.data_ptr<int64_t>();
  const auto* k_end = segments.key_end.data_ptr<int64_t>();
  std::vector<std::vector<int64_t>> query_rows, key_rows;
  for (int64_t s = 0; s < segments.num_sequences(); ++s) {
    auto& q = query_rows.emplace_back();
    auto& k = key_rows.emplace_back();
    for (int64_t i = q_begin[s]; i < q_begin[s + 1]; ++i) q.push_back(i);
    for (int64_t p = s_begin[s]; p < s_begin[s + 1]; ++p) {
      for (int64_t m = k_begin[p]; m < k_end[p]; ++m) k.push_back(m);
    }
  }
  const Padding queries = pad(query_rows), keys = pad(key_rows);
  const auto packed = queries.real.flatten().nonzero().squeeze(1);
  const bool dense = keys.real.all().item<bool>();
  const auto mask = keys.real.unsqueeze(1).unsqueeze(1).expand({-1, 1, queries.index.size(1), -1});
  const auto aten = [&](const std::vector<at::Tensor>& x) {
    const auto padded = [&](const at::Tensor& rows, const Padding& p, int64_t repeats) {
      const auto y = rows.index_select(0, p.index.flatten())
                         .view({p.index.size(0), p.index.size(1), rows.size(1), rows.size(2)})
                         .transpose(1, 2);
      return repeats == 1 ? y : y.repeat_interleave(repeats, 1);
    };
    const auto y = at::scaled_dot_product_attention(
        padded(x[0], queries, 1), padded(x[1], keys, H / G), padded(x[2], keys, H / G),
        segments.causal || dense ? std::optional<at::Tensor>() : std::optional(mask), 0.0,
        segments.causal);
    return y.transpose(1, 2).flatten(0, 1).index_select(0, packed);
  };
  const int64_t N = q_begin[segments.num_sequences()];
  compare(
      name, {at::randn({N, H, K}), at::randn({num_keys, G, K}), at::randn({num_keys, G, K})},
      [&](const auto& x) { return attention(x[0], x[1], x[2], segments); }, aten);
}

std::vector<int64_t> offsets(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> begin{0};
  for (const int64_t n : lengths) begin.push_back(begin.back() + n);
  return begin;
}

// Sequences of about 28 tokens, each reading 3 of the documents of about 100 rows that a group of 4
// shares.
Segments shared_documents(int64_t num_sequences, int64_t* num_keys) {
  std::mt19937 random(1);
  const int64_t num_documents = num_sequences;
  std::vector<int64_t> query_lengths, key_lengths, key_begin, key_end, segment_begin{0};
  for (int64_t s = 0; s < num_sequences; ++s) query_lengths.push_back(25 + int64_t(random() % 6));
  for (int64_t d = 0; d < num_documents; ++d) key_lengths.push_back(80 + int64_t(random() % 41));
  const auto rows = offsets(key_lengths);
  for (int64_t s = 0; s < num_sequences; ++s) {
    for (int64_t i = 0; i < 3; ++i) {
      const auto d = size_t(s / 4 * 4 + (s + i) % 4);
      key_begin.push_back(rows[d]);
      key_end.push_back(rows[d + 1]);
    }
    segment_begin.push_back(int64_t(key_begin.size()));
  }
  *num_keys = rows.back();
  return {longs(offsets(query_lengths)), longs(segment_begin), longs(key_begin), longs(key_end),
          false};
}

void bench_width(int64_t D, int64_t H, int64_t G, int64_t K, int64_t F) {
  const int64_t N = 32 * 110;
  std::printf("width %ld, %ld rows\n", long(D), long(N));
  const auto linear_in = [](const auto& x) { return ops::linear(x[0], x[1]); };
  const auto aten_linear = [](const auto& x) { return at::linear(x[0], x[1]); };
  compare("linear to qkv", {at::randn({N, D}), at::randn({(H + 2 * G) * K, D})}, linear_in,
          aten_linear);
  compare("linear to 2F", {at::randn({N, D}), at::randn({2 * F, D})}, linear_in, aten_linear);
  compare("linear from F", {at::randn({N, F}), at::randn({D, F})}, linear_in, aten_linear);
  compare("linear to 2F, bf16",
          {at::randn({N, D}).to(at::kBFloat16), at::randn({2 * F, D}).to(at::kBFloat16)}, linear_in,
          aten_linear, 2e-2);
  compare(
      "rms_norm", {at::randn({N, D}), at::randn({D})},
      [](const auto& x) { return rms_norm(x[0], x[1], 1e-6); },
      [](const auto& x) { return reference::rms_norm(x[0], x[1], 1e-6); });
  compare(
      "swiglu", {at::randn({N, 2 * F})}, [](const auto& x) { return swiglu(x[0]); },
      [](const auto& x) { return reference::swiglu(x[0]); });
  const auto position = at::arange(110, at::kLong).repeat({32});
  compare(
      "rotary of q and k in qkv", {at::randn({N, (H + 2 * G) * K})},
      [&](const auto& x) { return rotary(x[0], position, H + G, K, 1e4); },
      [&](const auto& x) { return reference::rotary(x[0], position, H + G, K, 1e4); });
  bench_attention("attention, 32 sequences of 110",
                  self_segments(longs(offsets(std::vector<int64_t>(32, 110))), false), H, G, K, N);
  std::vector<int64_t> lengths;
  for (int64_t s = 0; s < 32; ++s) lengths.push_back(60 + s * 100 / 31);
  bench_attention("attention, 32 sequences of 60 to 160",
                  self_segments(longs(offsets(lengths)), false), H, G, K, offsets(lengths).back());
  bench_attention("causal attention, 64 sequences of 28",
                  self_segments(longs(offsets(std::vector<int64_t>(64, 28))), true), H, G, K,
                  64 * 28);
  int64_t num_keys = 0;
  const Segments crossing = shared_documents(32, &num_keys);
  bench_attention("attention, 32 x 28 queries, 300 shared keys", crossing, H, G, K, num_keys);
}

}  // namespace
}  // namespace contexture::model::ops

int main(int argc, char** argv) {
  if (argc > 1) at::set_num_threads(std::atoi(argv[1]));
  at::manual_seed(1);
  std::printf("%d threads\n", at::get_num_threads());
  contexture::model::ops::bench_width(128, 4, 2, 32, 344);
  contexture::model::ops::bench_width(512, 8, 4, 64, 1376);
}
