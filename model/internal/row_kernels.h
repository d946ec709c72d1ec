// CPU kernels that work row by row, in plain pointers. In is double, float or Bf16; sums run in
// Wide<In>. Rows are contiguous.
#pragma once
#include <cstdint>

#include "model/internal/simd.h"

namespace contexture::model::ops::internal {

// y [N, D] and the inverse root mean squares [N].
template <typename In>
void rms_norm_forward(int64_t N, int64_t D, const In* x, const Wide<In>* gain, Wide<In> eps, In* y,
                      Wide<In>* inverse);
// dx [N, D] and dgain [D]; dgain may be null.
template <typename In>
void rms_norm_backward(int64_t N, int64_t D, const In* x, const Wide<In>* gain,
                       const Wide<In>* inverse, const In* dy, In* dx, Wide<In>* dgain);

// ab [N, 2F] -> y [N, F]; dab [N, 2F].
template <typename In>
void swiglu_forward(int64_t N, int64_t F, const In* ab, In* y);
template <typename In>
void swiglu_backward(int64_t N, int64_t F, const In* ab, const In* dy, In* dab);

// cos, sin [table rows, half]; row n of x [N, L] turns by table row table_row[n], backwards if sign
// is -1.
template <typename In>
void rotary(int64_t N, int64_t L, int64_t heads, int64_t half, const In* x,
            const int64_t* table_row, const Wide<In>* cos, const Wide<In>* sin, Wide<In> sign,
            In* y);

}  // namespace contexture::model::ops::internal
