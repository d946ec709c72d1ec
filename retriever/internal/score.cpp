#include "retriever/internal/score.h"

#include <bit>
#include <cmath>

#include "core/error.h"

namespace contexture::retriever::internal {
namespace {

constexpr int kLanes = 8;
constexpr double kMaxLength = 1e18;

double sum_lanes(const double (&lanes)[kLanes]) {
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

bool is_finite(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7f800000u) != 0x7f800000u;
}

}  // namespace

double inner_product(const float* a, const float* b, int64_t dim) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      lanes[l] += static_cast<double>(a[i + l]) * static_cast<double>(b[i + l]);
    }
  }
  for (int l = 0; i < dim; ++i, ++l) {
    lanes[l] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum_lanes(lanes);
}

double squared_distance(const float* a, const float* b, int64_t dim) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const double difference = static_cast<double>(a[i + l]) - static_cast<double>(b[i + l]);
      lanes[l] += difference * difference;
    }
  }
  for (int l = 0; i < dim; ++i, ++l) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    lanes[l] += difference * difference;
  }
  return sum_lanes(lanes);
}

double pair_score(Metric metric, const float* query, const float* x, int64_t dim) {
  return metric == Metric::kL2 ? -squared_distance(query, x, dim) : inner_product(query, x, dim);
}

void check_vectors(std::span<const float> vectors, int64_t dim, Metric metric,
                   const std::function<std::string(int64_t)>& name_of) {
  const int64_t n = static_cast<int64_t>(vectors.size()) / dim;
  for (int64_t row = 0; row < n; ++row) {
    const float* x = vectors.data() + row * dim;
    bool finite = true;
    for (int64_t i = 0; i < dim; ++i) finite &= is_finite(x[i]);
    if (!finite) {
      int64_t i = 0;
      while (is_finite(x[i])) ++i;
      throw DataError(concat(
          name_of(row), " holds ", std::isnan(x[i]) ? "NaN" : "an infinity", " at element ", i,
          " of ", dim, ". Find what the encoder did with it; nothing was indexed or searched."));
    }
    const double length = std::sqrt(squared_length(x, dim));
    CONTEXTURE_DATA_REQUIRE(length <= kMaxLength, name_of(row), " has length ", length,
                            ", beyond 1e18: its square would overflow. Scale the vectors down.");
    CONTEXTURE_DATA_REQUIRE(length > 0 || metric != Metric::kCosine, name_of(row),
                            " is all zeros, which has no direction: cosine needs a length. Drop "
                            "it, or use inner_product.");
  }
}

void normalise_rows(std::span<float> vectors, int64_t dim) {
  const int64_t n = static_cast<int64_t>(vectors.size()) / dim;
  for (int64_t row = 0; row < n; ++row) {
    float* x = vectors.data() + row * dim;
    const double length = std::sqrt(squared_length(x, dim));
    for (int64_t i = 0; i < dim; ++i) x[i] = static_cast<float>(static_cast<double>(x[i]) / length);
  }
}

bool all_unit_length(std::span<const float> vectors, int64_t dim) {
  const int64_t n = static_cast<int64_t>(vectors.size()) / dim;
  for (int64_t row = 0; row < n; ++row) {
    const double length = std::sqrt(squared_length(vectors.data() + row * dim, dim));
    if (!(std::abs(length - 1.0) <= 1e-4)) return false;
  }
  return true;
}

}  // namespace contexture::retriever::internal
