#include "parallel/block.h"

#include <algorithm>

#include "core/error.h"

namespace contexture::parallel {

const at::Tensor& Pass::feed(const std::string& name) const {
  const auto it = feeds_->find(name);
  CONTEXTURE_INVARIANT(it != feeds_->end(), "the microbatch has no feed called '", name, "'");
  return it->second;
}

const Parameter& Block::use(ParameterStore& store, const std::string& name,
                            std::vector<int64_t> shape, Init init, Split split) {
  Parameter& parameter = store.declare(name, std::move(shape), init, std::move(split));
  if (std::find(parameters_.begin(), parameters_.end(), &parameter) == parameters_.end()) {
    parameters_.push_back(&parameter);
  }
  return parameter;
}

double Block::forward_flops(const Pass& pass) const {
  const WireShape first = shapes(pass).front();
  const double rows = first.sizes.empty() ? 1.0 : static_cast<double>(first.sizes[0]);
  double matrices = 0.0;
  for (const Parameter* p : parameters_)
    matrices += p->shape.size() == 2 ? static_cast<double>(p->numel()) : 0.0;
  return 2.0 * rows * matrices;
}

std::vector<Wire> wires_of(const BlockList& blocks) {
  std::vector<Wire> wires;
  std::map<std::string, size_t> index;
  for (int b = 0; b < static_cast<int>(blocks.size()); ++b) {
    for (const std::string& name : blocks[b]->inputs()) {
      const auto it = index.find(name);
      CONTEXTURE_INVARIANT(it != index.end(), "block '", blocks[b]->name(), "' reads wire '", name,
                           "' that no earlier block writes");
      auto& readers = wires[it->second].readers;
      if (readers.empty() || readers.back() != b) readers.push_back(b);
    }
    for (const std::string& name : blocks[b]->outputs()) {
      CONTEXTURE_INVARIANT(index.emplace(name, wires.size()).second, "wire '", name,
                           "' is written twice");
      wires.push_back({name, b, {}});
    }
  }
  return wires;
}

}  // namespace contexture::parallel
