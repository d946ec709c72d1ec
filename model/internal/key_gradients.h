// Sums of key-row gradients when several sequences may read the same rows. Each segment then sums
// into private rows; these are added up in the order of the segments, whatever the number of
// threads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/internal/key_panels.h"

namespace contexture::model::ops::internal {

template <typename T>
class KeyGradients {
 public:
  // sums: rows of `stride` elements, zero on entry, which finish() leaves complete; second_sums
  // likewise (or null).
  KeyGradients(const SegmentTable<T>& table, int64_t stride, T* sums, T* second_sums)
      : table_(table),
        stride_(stride),
        sums_{sums, second_sums},
        offset_(size_t(table.num_segments)) {
    if (!rows_are_shared()) {
      std::copy_n(table.key_begin, table.num_segments, offset_.begin());
      return;
    }
    int64_t rows = 0;
    for (int64_t p = 0; p < table.num_segments; ++p) {
      offset_[size_t(p)] = rows;
      rows += table.key_end[p] - table.key_begin[p];
    }
    for (int i = 0; i < 2 && sums_[i]; ++i) own_[i].assign(size_t(rows * stride), T(0));
    shared_ = true;
  }

  int64_t stride() const { return stride_; }
  // Where a chunk's first row is summed.
  T* at(const Chunk& c) { return at(0, c); }
  T* second_at(const Chunk& c) { return at(1, c); }

  void finish(int64_t num_keys) {
    if (!shared_) return;
    const int64_t blocks = (num_keys + kCopyRows - 1) / kCopyRows;
    parallel_tasks(blocks, num_keys * stride_, [&](int64_t block) {
      const int64_t begin = block * kCopyRows, end = std::min(num_keys, begin + kCopyRows);
      for (int64_t p = 0; p < table_.num_segments; ++p) {
        const int64_t first = std::max(begin, table_.key_begin[p]);
        const int64_t last = std::min(end, table_.key_end[p]);
        const int64_t source = (offset_[size_t(p)] + first - table_.key_begin[p]) * stride_;
        for (int k = 0; k < 2 && sums_[k] && first < last; ++k) {
          const T* from = own_[k].data() + source;
          T* to = sums_[k] + first * stride_;
          for (int64_t i = 0; i < (last - first) * stride_; ++i) to[i] += from[i];
        }
      }
    });
  }

 private:
  T* at(int which, const Chunk& c) {
    const int64_t row = offset_[size_t(c.segment)] + c.row - table_.key_begin[c.segment];
    return (shared_ ? own_[which].data() : sums_[which]) + row * stride_;
  }
  bool rows_are_shared() const {
    std::vector<int64_t> order;
    for (int64_t p = 0; p < table_.num_segments; ++p) {
      if (table_.key_begin[p] < table_.key_end[p]) order.push_back(p);
    }
    std::sort(order.begin(), order.end(),
              [&](int64_t a, int64_t b) { return table_.key_begin[a] < table_.key_begin[b]; });
    for (size_t i = 1; i < order.size(); ++i) {
      if (table_.key_end[order[i - 1]] > table_.key_begin[order[i]]) return true;
    }
    return false;
  }

  const SegmentTable<T>& table_;
  int64_t stride_;
  T* sums_[2];
  std::vector<int64_t> offset_;  // [P] row at which segment p begins
  std::vector<T> own_[2];
  bool shared_ = false;
};

}  // namespace contexture::model::ops::internal
