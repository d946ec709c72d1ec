#include "parallel/slice.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "parallel/parameters.h"

namespace contexture::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Kept = SliceMemory::Kept;

Kept& kept_of(AutogradContext* ctx) {
  return *reinterpret_cast<Kept*>(ctx->saved_data["kept"].toInt());
}

// The same memory without a version counter: rows beyond it are written later, which changes
// nothing that autograd saved.
at::Tensor unversioned(const at::Tensor& value) { return value.variable_data(); }

struct Extend : Function<Extend> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, int64_t kept_address,
                            int64_t index, int64_t begin, int64_t total) {
    ctx->saved_data["kept"] = kept_address;
    ctx->saved_data["index"] = index;
    ctx->saved_data["begin"] = begin;
    Kept& kept = kept_of(ctx);
    if (kept.values.empty()) {
      std::vector<int64_t> sizes = rows.sizes().vec();
      sizes[0] = total;
      kept.values.push_back(at::empty(sizes, rows.options()));
    }
    kept.values[0].narrow(0, begin, rows.size(0)).copy_(rows);
    return unversioned(kept.values[0]).narrow(0, 0, begin + rows.size(0));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Kept& kept = kept_of(ctx);
    const int64_t begin = ctx->saved_data["begin"].toInt(), end = grads[0].size(0);
    const at::ScalarType type = grads[0].scalar_type();
    if (kept.gradients.empty()) {  // the last slice: it sees all rows
      kept.gradients.push_back(
          at::empty(grads[0].sizes(), grads[0].options().dtype(wide_dtype(type))).copy_(grads[0]));
    } else {
      kept.gradients[0].narrow(0, 0, end).add_(grads[0]);
    }
    const at::Tensor mine = kept.gradients[0].narrow(0, begin, end - begin).to(type);
    if (ctx->saved_data["index"].toInt() == 0) kept = {};
    return {mine, {}, {}, {}, {}};
  }
};

// The first slice's own reading of shared values.
struct ShareFirst : Function<ShareFirst> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& value, int64_t kept_address,
                            int64_t index) {
    ctx->saved_data["kept"] = kept_address;
    ctx->saved_data["index"] = index;
    return value.view_as(value);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto index = static_cast<size_t>(ctx->saved_data["index"].toInt());
    const at::Tensor later = std::exchange(kept_of(ctx).gradients.at(index), at::Tensor());
    kept_of(ctx).values.at(index) = at::Tensor();
    return {later.defined() ? (later + grads[0]).to(grads[0].scalar_type()) : grads[0], {}, {}};
  }
};

// A later slice's: its gradient waits for the first slice. leaf: anything that has the backward
// visited.
struct ShareLater : Function<ShareLater> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& /*leaf*/, int64_t kept_address,
                            int64_t index) {
    ctx->saved_data["kept"] = kept_address;
    ctx->saved_data["index"] = index;
    return unversioned(kept_of(ctx).values.at(index));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::Tensor& sum = kept_of(ctx).gradients.at(ctx->saved_data["index"].toInt());
    sum = sum.defined() ? sum.add_(grads[0])
                        : at::empty(grads[0].sizes(),
                                    grads[0].options().dtype(wide_dtype(grads[0].scalar_type())))
                              .copy_(grads[0]);
    return {at::Tensor(), {}, {}};
  }
};

}  // namespace

at::Tensor Slice::extend(const std::string& key, const at::Tensor& rows) const {
  CONTEXTURE_INVARIANT(rows.size(0) == end - begin, key, ": ", rows.size(0),
                       " rows for the slice [", begin, ", ", end, ")");
  if (whole) return rows;
  return Extend::apply(rows, reinterpret_cast<int64_t>(&(*memory)[key]), index, begin, total);
}

std::vector<at::Tensor> Slice::share(
    const std::string& key, const std::vector<at::Tensor>& depends_on,
    const std::function<std::vector<at::Tensor>()>& compute) const {
  Kept& kept = (*memory)[key];
  const auto address = reinterpret_cast<int64_t>(&kept);
  if (index == 0) {
    std::vector<at::Tensor> values = compute();
    kept.values.clear();
    for (const at::Tensor& value : values) kept.values.push_back(value.detach());
    kept.gradients.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = ShareFirst::apply(values[i], address, static_cast<int64_t>(i));
    return values;
  }
  const auto leaf = std::find_if(depends_on.begin(), depends_on.end(),
                                 [](const at::Tensor& t) { return t.requires_grad(); });
  std::vector<at::Tensor> values;
  for (size_t i = 0; i < kept.values.size(); ++i) {
    values.push_back(leaf != depends_on.end()
                         ? ShareLater::apply(*leaf, address, static_cast<int64_t>(i))
                         : unversioned(kept.values[i]));
  }
  return values;
}

}  // namespace contexture::parallel
