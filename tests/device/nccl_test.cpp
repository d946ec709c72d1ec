// NCCL in a world of one rank, through connect(): every collective of tensors of a GPU, beside one
// of the CPU's. Needs a GPU.
#include <gtest/gtest.h>

#include "parallel/communicator.h"
#include "parallel/device.h"

namespace contexture::parallel {
namespace {

TEST(Nccl, AWorldOfOneMovesTensorsOfItsGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here, or a build without CONTEXTURE_CUDA";
  const RendezvousServer server;
  Rendezvous at;
  at.port = server.port();
  at.store_is_served = true;
  const auto world = connect(at, "nccl", 60);
  const at::Device device = choose_device("cuda");
  EXPECT_FALSE(world->has_tags(device));
  EXPECT_TRUE(world->has_tags(at::kCPU));
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt}) {
    SCOPED_TRACE(at::toString(type));
    const at::Tensor x = at::arange(1000, at::TensorOptions().dtype(type).device(device));
    const at::Tensor sum = x.clone(), gathered = at::zeros_like(x), part = at::zeros_like(x),
                     swapped = at::zeros_like(x);
    world->all_reduce(sum).wait();
    world->all_gather(gathered, x).wait();
    world->reduce_scatter(part, x).wait();
    world->all_to_all(swapped, x).wait();
    world->broadcast(sum, 0).wait();
    for (const at::Tensor& y : {sum, gathered, part, swapped})
      EXPECT_TRUE(at::equal(y.cpu(), x.cpu()));
  }
  const at::Tensor host = at::ones({3});
  world->all_reduce(host).wait();
  EXPECT_TRUE(at::equal(host, at::ones({3})));
  world->barrier();
  const auto group = world->subgroup({0}, "alone");
  const at::Tensor y = at::ones({5}, at::TensorOptions().device(device));
  group->all_reduce(y).wait();
  EXPECT_EQ(y.sum().item<float>(), 5.0f);
}

}  // namespace
}  // namespace contexture::parallel
