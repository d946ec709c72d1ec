// A matrix in pieces of consecutive rows: as ranks hold it, and as a checkpoint of many ranks keeps
// it, under names that say where each piece begins: "vectors@0", "vectors@120". A matrix in one
// piece has its plain name.
#pragma once
#include <map>
#include <string>

#include "parallel/checkpoint.h"

namespace contexture::parallel {

class RowPieces {
 public:
  RowPieces() = default;
  explicit RowPieces(at::Tensor whole);  // [rows, width]
  RowPieces(int64_t first_row, at::Tensor piece);
  // All pieces called `name`, or the one tensor of that name; empty() where there is neither.
  // Throws DataError where rows are missing between two pieces, or in both.
  static RowPieces find(const NamedTensors& tensors, const std::string& name);

  bool empty() const { return by_first_row_.empty(); }
  int64_t rows() const;  // in all
  // A copy of rows [begin, end). Of views of a file only what is asked for is read.
  at::Tensor slice(int64_t begin, int64_t end) const;
  void put(NamedTensors& tensors,
           const std::string& name) const;  // pieces without rows are left out

 private:
  bool cut_ = false;
  std::map<int64_t, at::Tensor> by_first_row_;
};

// Puts a plainly named matrix in the place of each set of pieces.
void join_pieces(NamedTensors& tensors);

}  // namespace contexture::parallel
