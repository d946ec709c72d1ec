// Shape checks shared by the kernels' wrappers and the reference.
#include "model/internal/op_checks.h"

#include "core/error.h"

namespace contexture::model::ops::internal {
namespace {

const int64_t* offsets(const at::Tensor& t, const char* name) {
  CONTEXTURE_REQUIRE(t.defined() && t.dim() == 1 && t.scalar_type() == at::kLong &&
                         t.device().is_cpu() && t.is_contiguous(),
                     "attention segments: ", name, " must be a contiguous int64 CPU vector.");
  return t.data_ptr<int64_t>();
}

void check_bias(const char* op, const at::Tensor& bias_P, const Segments& segments) {
  if (!bias_P.defined()) return;
  CONTEXTURE_REQUIRE(bias_P.dim() == 1 && bias_P.size(0) == segments.num_segments(), op,
                     ": bias must hold one value per segment (", segments.num_segments(),
                     "), but has shape ", bias_P.sizes(), ".");
  CONTEXTURE_REQUIRE(bias_P.scalar_type() == at::kFloat || bias_P.scalar_type() == at::kDouble, op,
                     ": bias must be fp32 or fp64, not ", bias_P.scalar_type(), ".");
}

}  // namespace

SegmentsView::SegmentsView(const Segments& segments, int64_t num_queries, int64_t num_keys)
    : query_begin(offsets(segments.query_begin, "query_begin")),
      segment_begin(offsets(segments.segment_begin, "segment_begin")),
      key_begin(offsets(segments.key_begin, "key_begin")),
      key_end(offsets(segments.key_end, "key_end")),
      num_sequences(segments.num_sequences()),
      num_segments(segments.num_segments()),
      causal(segments.causal) {
  CONTEXTURE_REQUIRE(num_sequences >= 0 && segments.segment_begin.numel() == num_sequences + 1 &&
                         segments.key_end.numel() == num_segments,
                     "attention segments: query_begin and segment_begin must hold one offset per "
                     "sequence plus one, key_begin and key_end one per segment; got ",
                     segments.query_begin.numel(), ", ", segments.segment_begin.numel(), ", ",
                     num_segments, ", ", segments.key_end.numel(), ".");
  CONTEXTURE_REQUIRE(query_begin[0] >= 0 && query_begin[num_sequences] <= num_queries &&
                         segment_begin[0] >= 0 && segment_begin[num_sequences] <= num_segments,
                     "attention segments: sequences span the query rows [", query_begin[0], ", ",
                     query_begin[num_sequences], ") of ", num_queries, " and the segments [",
                     segment_begin[0], ", ", segment_begin[num_sequences], ") of ", num_segments,
                     ".");
  for (int64_t s = 0; s < num_sequences; ++s) {
    CONTEXTURE_REQUIRE(
        query_begin[s] <= query_begin[s + 1] && segment_begin[s] <= segment_begin[s + 1],
        "attention segments: the offsets of sequence ", s, " decrease.");
  }
  for (int64_t p = 0; p < num_segments; ++p) {
    CONTEXTURE_REQUIRE(0 <= key_begin[p] && key_begin[p] <= key_end[p] && key_end[p] <= num_keys,
                       "attention segments: segment ", p, " is the run [", key_begin[p], ", ",
                       key_end[p], ") of ", num_keys, " key rows.");
  }
}

void check_attention(const at::Tensor& q_NHK, const at::Tensor& k_MGK, const at::Tensor& v_MGK,
                     const Segments& segments, const at::Tensor& bias_P) {
  CONTEXTURE_REQUIRE(
      q_NHK.dim() == 3 && k_MGK.dim() == 3 && v_MGK.dim() == 3 && k_MGK.sizes() == v_MGK.sizes() &&
          q_NHK.size(2) == k_MGK.size(2),
      "attention: q must be [rows, heads, width], k and v [rows, kv heads, width]; got ",
      q_NHK.sizes(), ", ", k_MGK.sizes(), ", ", v_MGK.sizes(), ".");
  CONTEXTURE_REQUIRE(k_MGK.size(1) > 0 && q_NHK.size(2) > 0 && q_NHK.size(1) % k_MGK.size(1) == 0,
                     "attention: the number of query heads (", q_NHK.size(1),
                     ") must be a multiple of the number of key-value heads (", k_MGK.size(1),
                     ").");
  CONTEXTURE_REQUIRE(
      q_NHK.scalar_type() == k_MGK.scalar_type() && q_NHK.scalar_type() == v_MGK.scalar_type() &&
          q_NHK.device() == k_MGK.device() && q_NHK.device() == v_MGK.device(),
      "attention: q, k and v must share one type and device; got ", q_NHK.scalar_type(), ", ",
      k_MGK.scalar_type(), ", ", v_MGK.scalar_type(), ".");
  check_bias("attention", bias_P, segments);
}

void check_rotary(const at::Tensor& x_NL, const at::Tensor& position_N, int64_t rotated_heads,
                  int64_t head_width) {
  CONTEXTURE_REQUIRE(x_NL.dim() == 2 && head_width > 0 && head_width % 2 == 0 &&
                         rotated_heads >= 0 && rotated_heads * head_width <= x_NL.size(1),
                     "rotary: x must be [rows, heads * width] with an even width; got ",
                     x_NL.sizes(), " with ", rotated_heads, " heads of width ", head_width,
                     " to rotate.");
  CONTEXTURE_REQUIRE(position_N.dim() == 1 && position_N.size(0) == x_NL.size(0) &&
                         position_N.scalar_type() == at::kLong,
                     "rotary: position must hold one int64 per row (", x_NL.size(0), "); got ",
                     position_N.sizes(), ".");
}

}  // namespace contexture::model::ops::internal
