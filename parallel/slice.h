// Token slices in the runtime (TeraPipe, arXiv:2102.07988): the rows of a causal sequence go
// through their blocks in consecutive runs, and back in reverse, so that pipeline stages work on
// different runs at once. A block that looks back at earlier rows keeps here what the later slices
// of the same microbatch need of them, and gets their gradients back.
#pragma once
#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace contexture::parallel {

// What the slices of one microbatch keep for each other on one rank. One thread.
class SliceMemory {
 public:
  struct Kept {
    std::vector<at::Tensor> values;  // without graph
    std::vector<at::Tensor>
        gradients;  // what later slices have returned so far, fp32 or wider; undefined: nothing yet
  };
  Kept& operator[](const std::string& key) { return kept_[key]; }  // addresses stay valid

 private:
  std::map<std::string, Kept> kept_;
};

// The rows [begin, end) of a microbatch's `total`; index counts its slices. Or a whole microbatch
// among several that read the same documents: index counts these. Its functions are
// differentiable, and the backward of a slice must run after that of all later ones; the first
// slice's frees what was kept. Keys are the caller's, unique within a microbatch.
struct Slice {
  std::shared_ptr<SliceMemory> memory;
  int64_t index = 0, begin = 0, end = 0, total = 0;
  bool whole = false;

  // rows [end - begin, ...] of this slice (keys, say) to those of all slices up to this one, [end,
  // ...]. The gradient of these rows is summed over this and all later slices.
  at::Tensor extend(const std::string& key, const at::Tensor& rows) const;

  // Values that the first slice computes and all slices read. depends_on: the leaves that their
  // gradient may reach; the first slice's backward gets the sum of all slices' gradients.
  std::vector<at::Tensor> share(const std::string& key, const std::vector<at::Tensor>& depends_on,
                                const std::function<std::vector<at::Tensor>()>& compute) const;
};

}  // namespace contexture::parallel
