// The score of one pair, and the checks that every vector passes first.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "retriever/index.h"

namespace contexture::retriever::internal {

// Sums in double over eight fixed lanes, then the lanes in order: the same bits for the same pair,
// whatever the batch or the thread. A product of two floats is exact in double, so fused
// multiply-add changes nothing in an inner product.
double inner_product(const float* a, const float* b, int64_t dim);
double squared_distance(const float* a, const float* b, int64_t dim);
inline double squared_length(const float* a, int64_t dim) { return inner_product(a, a, dim); }

// Under cosine, a is taken to be normalised already.
double pair_score(Metric metric, const float* query, const float* x, int64_t dim);

// Throws DataError naming the first row of `vectors` [n, dim] that holds a NaN or an infinity, is
// longer than 1e18 (its square would overflow a float inside an index), or is all zeros under
// cosine. `name_of(row)` says what the row is. Looks at bits, so it holds under any compiler flags.
void check_vectors(std::span<const float> vectors, int64_t dim, Metric metric,
                   const std::function<std::string(int64_t)>& name_of);

// Divides each row by its length, rounding once. Checked rows only.
void normalise_rows(std::span<float> vectors, int64_t dim);

// Every row has length 1 to 1e-4. True for no rows.
bool all_unit_length(std::span<const float> vectors, int64_t dim);

}  // namespace contexture::retriever::internal
