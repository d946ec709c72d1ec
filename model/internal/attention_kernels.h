// CPU attention over packed rows, in plain pointers. In is double, float or Bf16; sums run in
// Wide<In>. M key rows; other letters as in ops.h.
#pragma once
#include <cstdint>

#include "model/internal/simd.h"

namespace contexture::model::ops::internal {

// Offsets as in ops.h Segments, already checked. `bias` (one per segment) may be null.
template <typename T>
struct SegmentTable {
  int64_t num_sequences, num_segments;
  const int64_t *query_begin, *segment_begin, *key_begin, *key_end;
  const T* bias;
  bool causal;

  int64_t queries(int64_t s) const { return query_begin[s + 1] - query_begin[s]; }
  int64_t keys(int64_t s) const {
    int64_t n = 0;
    for (int64_t p = segment_begin[s]; p < segment_begin[s + 1]; ++p)
      n += key_end[p] - key_begin[p];
    return n;
  }
};

template <typename In>
struct AttentionInputs {
  SegmentTable<Wide<In>> table;
  int64_t M, H, G, K;
  const In *q, *k, *v;                   // heads of one row are K apart
  int64_t q_stride, k_stride, v_stride;  // from row to row
  Wide<In> scale;
};

// out [N, H, K] and lse [N, H]; zero where a row sees no key, not written where no sequence owns
// the row.
template <typename In>
void attention_forward(const AttentionInputs<In>& in, In* out, Wide<In>* lse);

// What the backward pass reads and writes. dk, dv and dbias are zero on entry.
template <typename In>
struct AttentionGradients {
  const In *out, *dout;  // [N, H, K]
  const Wide<In>* lse;   // [N, H]
  In* dq;                // [N, H, K]
  Wide<In>*dk, *dv;      // [M, G, padded_width<Wide<In>>(K)]
  double* dbias;         // [G, P], or null
};
template <typename In>
void attention_backward(const AttentionInputs<In>& in, const AttentionGradients<In>& grad);

// K rounded up to whole panels, which depend on the processor the kernels are compiled for.
template <typename T>
int64_t padded_width(int64_t K);

}  // namespace contexture::model::ops::internal
