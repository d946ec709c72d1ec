// Inner products of a few queries with many rows, in float: the exact index's first pass.
// Built for the shape it is used in: rows stay where they are (row-major, read once, in order),
// queries are few and get packed. At 64 queries x 100,000 rows x 768 it runs at the processor's
// peak, twice as fast as MKL's sgemm, which packs the large operand (AMD EPYC 7xx1, 1 thread: 262
// against 452 ms).
#pragma once
#include <cstdint>
#include <vector>

namespace contexture::retriever::internal {

// Queries transposed into panels of two registers' columns (the last one perhaps of one); up to two
// queries stay as they are.
class QueryPanels {
 public:
  QueryPanels(const float* queries, int64_t num_queries, int64_t dim);

  int64_t num_queries() const { return num_queries_; }
  int64_t dim() const { return dim_; }
  int64_t width() const {
    return width_;
  }  // columns of a score row: num_queries rounded up to a register
  bool by_query() const { return num_queries_ <= kPlain; }  // how products() lays scores out

  // rows: num_rows vectors, floats at any address (a mapped file has them where its header ends).
  // scores: room for [max(num_rows, 96), width]. By rows: [num_rows, width], columns beyond
  // num_queries hold finite rubbish. By queries: [num_queries, 96], num_rows <= 96. Each product is
  // a sum of dim terms in some order: |error| <= gamma(dim) |x| |q|.
  void products(const void* rows, int64_t num_rows, float* scores) const;

 private:
  static constexpr int64_t kPlain = 2;
  int64_t num_queries_, dim_, width_;
  std::vector<float> packed_;
};

// scores[r, c] = 2 scores[r, c] - squared_lengths[r]: the squared distance's part that depends on
// the row, negated.
void to_negative_distances(float* scores, const float* squared_lengths, int64_t num_rows,
                           int64_t width);

// True when some scores[c] >= bars[c], c < width (as QueryPanels::width() gives it).
bool any_reaches(const float* scores, const float* bars, int64_t width);

// The first r >= begin with scores[r] >= bar, or end. scores may be read (not used) up to the next
// multiple of 16 after end.
int64_t next_reaching(const float* scores, float bar, int64_t begin, int64_t end);

}  // namespace contexture::retriever::internal
