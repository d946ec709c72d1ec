#include "parallel/inference.h"

namespace contexture::parallel {

Inference::Inference(const BlockList& blocks)
    : alone_(std::make_unique<Pipeline>(
          blocks, place(blocks, std::vector<int>(blocks.size(), 0), {0}, 1), "gpipe", nullptr)),
      pipeline_(alone_.get()) {}

Inference::Inference(Engine& engine)
    : pipeline_(&engine.pipeline()),
      groups_(engine.groups()),
      together_(groups_.dp && engine.sharding().zero() == 3) {}

WireValues Inference::run(const Pass& pass, const std::vector<std::string>& everywhere,
                          const WireValues& given, const std::vector<std::string>& here) const {
  return std::move(pipeline_->forward({&pass}, everywhere, given, here).front());
}

void Inference::tell(const std::string& wire, const at::Tensor& tensor) const {
  if (tensor.numel() == 0) return;
  if (groups_.pp) groups_.pp->broadcast(tensor, pipeline_->rank_of(wire)).wait();
  // Its tensor-parallel ranks have computed the same, but perhaps on processors that round
  // differently.
  if (groups_.tp) groups_.tp->broadcast(tensor, 0).wait();
}

void Inference::sum_over_stages(const at::Tensor& tensor) const {
  if (groups_.pp && tensor.numel() > 0) groups_.pp->all_reduce(tensor).wait();
}

int64_t Inference::most(int64_t mine) const {
  if (!together_) return mine;
  const at::Tensor all = at::full({1}, mine, at::kLong);
  groups_.dp->all_reduce(all, ReduceOp::kMax).wait();
  return all.item<int64_t>();
}

}  // namespace contexture::parallel
