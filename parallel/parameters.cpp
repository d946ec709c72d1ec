#include "parallel/parameters.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/rng.h"
#include "parallel/communicator.h"

namespace contexture::parallel {

int64_t Parameter::numel() const {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return n;
}

std::pair<int64_t, int64_t> part_of(int64_t count, Part part) {
  return {count * part.rank / part.size, count * (part.rank + 1) / part.size};
}

namespace {

// The runs of a split as index ranges: [begin, end) of each run's part, in the logical tensor.
std::vector<std::pair<int64_t, int64_t>> ranges_of(const Split& split, Part part) {
  std::vector<std::pair<int64_t, int64_t>> out;
  int64_t offset = 0;
  for (const int64_t run : split.runs) {
    const auto [begin, end] = part_of(run / split.unit, part);
    out.emplace_back(offset + begin * split.unit, offset + end * split.unit);
    offset += run;
  }
  return out;
}

}  // namespace

std::vector<int64_t> Parameter::local_shape(Part of) const {
  std::vector<int64_t> out = shape;
  if (split.dim < 0) return out;
  out[split.dim] = 0;
  for (const auto& [begin, end] : ranges_of(split, of)) out[split.dim] += end - begin;
  return out;
}

at::Tensor Parameter::local(const at::Tensor& logical) const {
  if (!is_split()) return logical;
  std::vector<at::Tensor> pieces;
  for (const auto& [begin, end] : ranges_of(split, part))
    pieces.push_back(logical.narrow(split.dim, begin, end - begin));
  return at::cat(pieces, split.dim);
}

at::Tensor Parameter::logical(const std::vector<at::Tensor>& parts) const {
  if (!is_split()) return parts.front();
  at::Tensor out = at::empty(shape, parts.front().options());
  for (int r = 0; r < static_cast<int>(parts.size()); ++r) {
    int64_t at = 0;
    for (const auto& [begin, end] : ranges_of(split, {r, static_cast<int>(parts.size())})) {
      out.narrow(split.dim, begin, end - begin).copy_(parts[r].narrow(split.dim, at, end - begin));
      at += end - begin;
    }
  }
  return out;
}

at::ScalarType wide_dtype(at::ScalarType compute) {
  return compute == at::kDouble ? at::kDouble : at::kFloat;
}

ParameterStore::ParameterStore(std::shared_ptr<Communicator> tp, bool shares_rows)
    : tp_(std::move(tp)) {
  if (tp_ && tp_->size() == 1) tp_.reset();
  shares_rows_ = shares_rows && tp_;
  if (tp_) part_ = {tp_->rank(), tp_->size()};
}

Parameter& ParameterStore::declare(const std::string& name, std::vector<int64_t> shape, Init init,
                                   Split split) {
  if (Parameter* known = find(name)) {
    CONTEXTURE_INVARIANT(known->shape == shape && known->split.dim == split.dim, "parameter '",
                         name, "' is declared twice with different shapes");
    return *known;
  }
  auto parameter = std::make_unique<Parameter>();
  parameter->name = name;
  parameter->init = init;
  parameter->split = std::move(split);
  parameter->part = part_;
  parameter->shape = std::move(shape);
  parameter->value =
      at::empty(parameter->local_shape(), at::TensorOptions().device(at::kMeta).dtype(at::kFloat));
  by_name_[name] = parameter.get();
  parameters_.push_back(std::move(parameter));
  return *parameters_.back();
}

Parameter* ParameterStore::find(const std::string& name) {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

Parameter& ParameterStore::at(const std::string& name) {
  Parameter* parameter = find(name);
  CONTEXTURE_INVARIANT(parameter != nullptr, "no parameter is called '", name, "'");
  return *parameter;
}

at::Tensor draw_initial(const std::string& name, const std::vector<int64_t>& shape,
                        const Init& init, uint64_t seed) {
  if (init.kind == Init::Kind::kConstant) return at::full(shape, init.value, at::kDouble);
  at::Tensor drawn = at::empty(shape, at::kDouble);
  double* out = drawn.data_ptr<double>();
  const int64_t n = drawn.numel();
  const StreamKey stream = stream_key(seed, name);
  // Two Philox words make one uniform; two uniforms make two normals (Box-Muller), so a counter
  // serves two elements.
  at::parallel_for(0, (n + 1) / 2, 4096, [&](int64_t begin, int64_t end) {
    constexpr double kUnit = 1.0 / 9007199254740992.0;  // 2^-53
    for (int64_t i = begin; i < end; ++i) {
      const auto low = static_cast<uint32_t>(i), high = static_cast<uint32_t>(i >> 32);
      const auto word = philox(stream.key, {low, high, stream.high[0], stream.high[1]});
      const uint64_t a = (static_cast<uint64_t>(word[0]) << 32) | word[1];
      const uint64_t b = (static_cast<uint64_t>(word[2]) << 32) | word[3];
      const double u = (static_cast<double>(a >> 11) + 0.5) * kUnit;
      const double v = static_cast<double>(b >> 11) * kUnit;
      const double radius = init.value * std::sqrt(-2.0 * std::log(u));
      const double angle = 2.0 * std::numbers::pi * v;
      out[2 * i] = radius * std::cos(angle);
      if (2 * i + 1 < n) out[2 * i + 1] = radius * std::sin(angle);
    }
  });
  return drawn;
}

void ParameterStore::materialise(at::ScalarType dtype, at::Device device, uint64_t seed,
                                 const std::function<bool(const Parameter&)>& owned) {
  for (const auto& p : parameters_) {
    if (owned && !owned(*p)) {
      p->value = at::empty(p->local_shape(), at::TensorOptions().device(at::kMeta).dtype(dtype));
    } else {
      p->value = p->local(draw_initial(p->name, p->shape, p->init, seed)).to(dtype).to(device);
    }
    p->value.set_requires_grad(p->trainable);
    p->grad = at::Tensor();
  }
}

void ParameterStore::zero_grad() {
  for (const auto& p : parameters_) p->grad = at::Tensor();
}

void ParameterStore::copy_values_from(const ParameterStore& other) {
  const at::NoGradGuard no_grad;
  for (const auto& p : other.parameters_) at(p->name).value.copy_(p->value);
}

int64_t ParameterStore::num_elements() const {
  int64_t n = 0;
  for (const auto& p : parameters_) n += p->numel();
  return n;
}

}  // namespace contexture::parallel
