#include "parallel/decoding.h"

#include <algorithm>

namespace contexture::parallel {

void Decoding::place(at::Tensor rows_N, int64_t capacity) {
  rows_N_ = std::move(rows_N);
  capacity_ = capacity;
}

const at::Tensor& Decoding::extend(const std::string& key, const at::Tensor& rows) {
  at::Tensor& all = rows_[key];
  const int64_t have = all.defined() ? all.size(0) : 0;
  if (have < capacity_) {
    std::vector<int64_t> sizes = rows.sizes().vec();
    sizes[0] = std::max(capacity_, have + have / 2);
    const at::Tensor larger = at::zeros(sizes, rows.options());
    if (have > 0) larger.narrow(0, 0, have).copy_(all);
    all = larger;
  }
  return all.index_copy_(0, rows_N_, rows);
}

const Tensors& Decoding::keep(const std::string& key, const std::function<Tensors()>& compute) {
  const auto known = kept_.find(key);
  return known != kept_.end() ? known->second : kept_.emplace(key, compute()).first->second;
}

}  // namespace contexture::parallel
