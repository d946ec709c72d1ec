// Attention for devices that want few, large products: sequences of like lengths are padded to one
// length and attended together by LibTorch's scaled_dot_product_attention, which is fused on GPUs.
// S sequences of a group, Q and M rows and keys of its longest, H query heads, G key-value heads, K
// head width.
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <vector>

#include "model/internal/op_checks.h"
#include "model/ops.h"
#include "parallel/device.h"

namespace contexture::model::ops::padded {
namespace {

using internal::SegmentsView;

// Sequences that are padded to the same lengths.
struct Group {
  std::vector<int64_t> sequences;
  int64_t Q = 0, M = 0;
  bool equal = true;        // all have these lengths
  int64_t least_shift = 0;  // of keys - queries
  bool shifted = false;     // some sequence has more keys than queries, or fewer
};

int64_t num_keys(const SegmentsView& view, int64_t s) {
  int64_t n = 0;
  for (int64_t p = view.segment_begin[s]; p < view.segment_begin[s + 1]; ++p)
    n += view.key_end[p] - view.key_begin[p];
  return n;
}

// By lengths rounded up to powers of two: padding then at most doubles each.
std::vector<Group> groups_of(const SegmentsView& view) {
  std::map<std::pair<uint64_t, uint64_t>, Group> groups;
  for (int64_t s = 0; s < view.num_sequences; ++s) {
    const int64_t queries = view.query_begin[s + 1] - view.query_begin[s], keys = num_keys(view, s);
    if (queries == 0 || keys == 0) continue;
    Group& group = groups[{std::bit_ceil(static_cast<uint64_t>(queries)),
                           std::bit_ceil(static_cast<uint64_t>(keys))}];
    group.equal = group.sequences.empty() || (group.equal && group.Q == queries && group.M == keys);
    group.least_shift =
        group.sequences.empty() ? keys - queries : std::min(group.least_shift, keys - queries);
    group.shifted = group.shifted || keys != queries;
    group.Q = std::max(group.Q, queries);
    group.M = std::max(group.M, keys);
    group.sequences.push_back(s);
  }
  std::vector<Group> out;
  for (auto& [lengths, group] : groups) out.push_back(std::move(group));
  return out;
}

// What a group gathers, on the device: padding reads row and segment 0, which nobody sees.
struct Places {
  at::Tensor query, key, segment;  // [S * Q], [S * M], [S * M]
  at::Tensor keys, shift;          // [S]: number of keys, and how many more than queries
};

// place: of each query row in the groups' outputs, one below another from `base` on.
Places places_of(const Group& group, const SegmentsView& view, at::Device device, int64_t base,
                 std::vector<int64_t>& place) {
  const auto S = static_cast<int64_t>(group.sequences.size());
  const int64_t Q = group.Q, M = group.M;
  std::vector<int64_t> all(static_cast<size_t>(S * (Q + 2 * M + 2)), 0);
  int64_t *query = all.data(), *key = query + S * Q, *segment = key + S * M,
          *keys = segment + S * M, *shift = keys + S;
  for (int64_t i = 0; i < S; ++i) {
    const int64_t s = group.sequences[static_cast<size_t>(i)], begin = view.query_begin[s],
                  rows = view.query_begin[s + 1] - begin;
    for (int64_t r = 0; r < rows; ++r) {
      query[i * Q + r] = begin + r;
      place[static_cast<size_t>(begin + r)] = base + i * Q + r;
    }
    int64_t m = 0;
    for (int64_t p = view.segment_begin[s]; p < view.segment_begin[s + 1]; ++p) {
      for (int64_t row = view.key_begin[p]; row < view.key_end[p]; ++row, ++m) {
        key[i * M + m] = row;
        segment[i * M + m] = p;
      }
    }
    keys[i] = m;
    shift[i] = m - rows;
  }
  const at::Tensor there =
      parallel::to_device(at::tensor(at::ArrayRef<int64_t>(all), at::kLong), device);
  const std::vector<at::Tensor> parts = there.split_with_sizes({S * Q, S * M, S * M, S, S});
  return {parts[0], parts[1], parts[2], parts[3], parts[4]};
}

// Which keys a query sees, [S, 1, Q or 1, M]; undefined where the kernel's own causal rule, or
// none, says it all.
at::Tensor visible(const Group& group, const Places& places, bool causal) {
  if (causal ? !group.shifted : group.equal)
    return {};  // plain causal rows never come upon the padding behind them
  const auto options = places.keys.options();
  const at::Tensor j_M = at::arange(group.M, options), keys_S111 = places.keys.view({-1, 1, 1, 1});
  const at::Tensor real = j_M.lt(keys_S111);
  if (!causal) return real;
  const at::Tensor last_SQ =
      at::arange(group.Q, options).view({1, 1, -1, 1}) + places.shift.view({-1, 1, 1, 1});
  return real.logical_and(j_M.le(last_SQ));
}

// The bias as further key features, which a query feature of one multiplies: a mask that needs a
// gradient has no fused kernel. In 16 bits a second one carries what the first rounds away. Zeros
// fill up to the multiple of 8 that fused kernels want.
struct Features {
  at::Tensor query, key;  // [8], [S, M, 8]
};

Features bias_features(const at::Tensor& bias_SM, at::ScalarType type, double scale) {
  const at::Tensor wide = bias_SM / scale;
  const at::Tensor high = wide.to(type);
  std::vector<at::Tensor> columns(8, at::zeros_like(high));
  const int64_t used = c10::elementSize(type) < 4 ? 2 : 1;
  columns[0] = high;
  if (used == 2) columns[1] = (wide - high.to(wide.scalar_type())).detach().to(type);
  const at::Tensor query = at::arange(8, bias_SM.options().dtype(at::kLong)).lt(used).to(type);
  return {query, at::stack(columns, 2)};
}

// Rows of x at places [S * L], as [S, heads, L, K]; the gradient of rows that are read several
// times is summed in fp32 or wider.
at::Tensor gather(const at::Tensor& x_NGK, const at::Tensor& place, int64_t S, int64_t heads,
                  at::ScalarType sum_type) {
  const int64_t G = x_NGK.size(1), K = x_NGK.size(2);
  at::Tensor rows =
      x_NGK.to(sum_type).index_select(0, place).to(x_NGK.scalar_type()).view({S, -1, G, 1, K});
  if (heads != G) rows = rows.expand({S, rows.size(1), G, heads / G, K});
  return rows.reshape({S, -1, heads, K}).transpose(1, 2);
}

}  // namespace

at::Tensor attention(const at::Tensor& q_NHK, const at::Tensor& k_MGK, const at::Tensor& v_MGK,
                     const Segments& segments, const at::Tensor& bias_P) {
  const SegmentsView view(segments, q_NHK.size(0), k_MGK.size(0));
  const int64_t N = q_NHK.size(0), H = q_NHK.size(1), K = q_NHK.size(2);
  const at::ScalarType type = q_NHK.scalar_type();
  const double scale = 1.0 / std::sqrt(static_cast<double>(K));
  const std::vector<Group> groups = groups_of(view);
  int64_t rows_read = 0;
  for (int64_t p = 0; p < view.num_segments; ++p) rows_read += view.key_end[p] - view.key_begin[p];
  const at::ScalarType sum_type =
      rows_read > k_MGK.size(0) && c10::elementSize(type) < 4 ? at::kFloat : type;
  std::vector<int64_t> place(static_cast<size_t>(N), -1);
  std::vector<at::Tensor> parts;
  int64_t written = 0;
  for (const Group& group : groups) {
    const auto S = static_cast<int64_t>(group.sequences.size());
    const Places places = places_of(group, view, q_NHK.device(), written, place);
    at::Tensor q = gather(q_NHK, places.query, S, H, type),
               k = gather(k_MGK, places.key, S, H, sum_type);
    const at::Tensor v = gather(v_MGK, places.key, S, H, sum_type);
    if (bias_P.defined()) {
      const Features features =
          bias_features(bias_P.index_select(0, places.segment).view({S, -1}), type, scale);
      q = at::cat({q, features.query.expand({S, H, group.Q, 8})}, 3);
      k = at::cat({k, features.key.unsqueeze(1).expand({S, H, group.M, 8})}, 3);
    }
    at::Tensor mask = visible(group, places, segments.causal), any;
    if (segments.causal &&
        group.least_shift <
            0) {  // some query sees no key: it then sees all, and its result is left out
      any = mask.any(3, /*keepdim=*/true);
      mask = mask.logical_or(any.logical_not());
    }
    at::Tensor out = at::scaled_dot_product_attention(
        q, k, v, mask.defined() ? std::optional(mask) : std::nullopt, /*dropout_p=*/0.0,
        /*is_causal=*/segments.causal && !mask.defined(), scale);
    if (any.defined()) out = out.masked_fill(any.logical_not(), 0.0);
    parts.push_back(out.transpose(1, 2).reshape({S * group.Q, H, K}));
    written += S * group.Q;
  }
  const bool all_owned = std::find(place.begin(), place.end(), -1) == place.end();
  if (!all_owned) {
    std::replace(place.begin(), place.end(), int64_t{-1}, written);
    parts.push_back(at::zeros({1, H, K}, q_NHK.options().requires_grad(false)));
  }
  if (parts.empty()) return at::zeros_like(q_NHK, at::MemoryFormat::Contiguous);  // no query at all
  return at::cat(parts).index_select(
      0, parallel::to_device(at::tensor(at::ArrayRef<int64_t>(place), at::kLong), q_NHK.device()));
}

}  // namespace contexture::model::ops::padded
