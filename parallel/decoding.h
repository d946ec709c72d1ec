// What blocks keep from pass to pass when a sequence grows row by row: each pass (Pass::decoding)
// is about new rows alone, and what it reads of earlier ones lies here, on the rank that runs the
// block. No gradient. One thread.
#pragma once
#include <functional>

#include "parallel/block.h"

namespace contexture::parallel {

class Decoding {
 public:
  // Before each pass. rows_N: int64, where among the rows kept those of the pass go, on the device
  // of the wires; capacity: more than any of them.
  void place(at::Tensor rows_N, int64_t capacity);

  // Puts the pass's rows [N, ...] where they go, and returns all, [capacity or more, ...]. Rows
  // never written are zero. A key is a caller's own.
  const at::Tensor& extend(const std::string& key, const at::Tensor& rows);
  // What the first pass computes, in all passes.
  const Tensors& keep(const std::string& key, const std::function<Tensors()>& compute);

  // Figures on the side, by block, where the caller asks for them; a pass replaces those of the one
  // before.
  bool noting = false;
  std::map<std::string, at::Tensor> notes;

 private:
  at::Tensor rows_N_;
  int64_t capacity_ = 0;
  std::map<std::string, at::Tensor> rows_;
  std::map<std::string, Tensors> kept_;
};

}  // namespace contexture::parallel
