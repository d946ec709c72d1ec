// Checked, plain-pointer view of a Segments table. Holds no reference: the Segments must outlive
// it.
#pragma once
#include <cstdint>

#include "model/ops.h"

namespace contexture::model::ops::internal {

// Throws UserError unless the offsets are int64 CPU tensors that describe runs inside num_queries
// query rows and num_keys key rows. Query rows before, between or after the sequences read nothing.
struct SegmentsView {
  SegmentsView(const Segments& segments, int64_t num_queries, int64_t num_keys);
  const int64_t* query_begin;
  const int64_t* segment_begin;
  const int64_t* key_begin;
  const int64_t* key_end;
  int64_t num_sequences, num_segments;
  bool causal;
};

// Each throws UserError naming the operator on mismatched shapes, types or devices.
void check_attention(const at::Tensor& q_NHK, const at::Tensor& k_MGK, const at::Tensor& v_MGK,
                     const Segments& segments, const at::Tensor& bias_P);
void check_rotary(const at::Tensor& x_NL, const at::Tensor& position_N, int64_t rotated_heads,
                  int64_t head_width);

}  // namespace contexture::model::ops::internal
