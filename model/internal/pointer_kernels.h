// CPU kernels of the pointer distribution, in plain pointers. Letters as in ops.h; M key rows.
#pragma once
#include "model/internal/attention_kernels.h"

namespace contexture::model::ops::internal {

template <typename In>
struct PointerInputs {
  SegmentTable<Wide<In>> table;
  int64_t M, C;
  const In *q, *k;
  int64_t q_stride, k_stride;  // from row to row
  Wide<In> scale;
  const int64_t* token;   // [M]
  const int64_t* target;  // [N], or null: then no token matches
};

// Log-sum-exp of all logits and of the matching ones; [N] each, -infinity on entry and where there
// are none.
template <typename In>
void pointer_forward(const PointerInputs<In>& in, Wide<In>* lse_all, Wide<In>* lse_match);

// Adds each key's weight to out[n, token of the key]; out [N, vocab] is zero on entry.
template <typename In>
void pointer_distribution(const PointerInputs<In>& in, const Wide<In>* lse_all, int64_t vocab,
                          Wide<In>* out);

// dk and dbias are zero on entry.
template <typename In>
struct PointerGradients {
  const Wide<In>*lse_all, *lse_match, *dout;  // [N]
  In* dq;                                     // [N, C]
  Wide<In>* dk;                               // [M, C rounded up to kPanel]
  double* dbias;                              // [P], or null
};
template <typename In>
void pointer_backward(const PointerInputs<In>& in, const PointerGradients<In>& grad);

}  // namespace contexture::model::ops::internal
