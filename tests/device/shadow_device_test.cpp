// The shadow device refuses what a GPU would refuse, and sees races.
#include "shadow_device.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "parallel/device.h"

namespace contexture::shadow {
namespace {

at::Tensor there(const at::Tensor& t) { return t.to(device()); }

TEST(ShadowDevice, ComputesWhatTheCpuComputes) {
  const at::Tensor a = at::arange(12, at::kDouble).view({3, 4}),
                   b = at::arange(12, at::kDouble).view({4, 3}) * 0.5;
  const int64_t before = operations();
  const at::Tensor product = there(a).mm(there(b));
  EXPECT_GT(operations(), before);
  EXPECT_EQ(product.device(), device());
  EXPECT_TRUE(at::equal(product.cpu(), a.mm(b)));
  at::Tensor view = there(a).t().narrow(0, 1, 2);
  view.add_(1.0);
  EXPECT_TRUE(at::equal(view.cpu(), a.t().narrow(0, 1, 2) + 1.0));
  EXPECT_TRUE(at::equal((there(a) * at::scalar_tensor(2.0, at::kDouble)).cpu(), a * 2.0));
}

TEST(ShadowDevice, RefusesTensorsOfTwoDevices) {
  const at::Tensor a = at::ones({3, 3});
  EXPECT_THROW(there(a).mm(a), c10::Error);
  EXPECT_THROW(there(a) + a, c10::Error);
  EXPECT_THROW(there(a).index_select(0, at::zeros({1}, at::kLong)), c10::Error);
}

TEST(ShadowDeviceDeathTest, AHostMayNotReadThroughItsPointers) {
  const at::Tensor a = there(at::ones({3}));
  EXPECT_DEATH({ std::cerr << *a.data_ptr<float>(); }, "");
}

TEST(ShadowDevice, SeesARaceBetweenStreamsAndTheEventThatOrdersThem) {
  const c10::impl::VirtualGuardImpl guard(at::kPrivateUse1);
  at::Tensor made;
  parallel::StreamMark mark;
  {
    const c10::StreamGuard stream(guard.getStreamFromGlobalPool(device()));
    made = there(at::ones({3})) * 2.0;
    mark = parallel::StreamMark(device());
  }
  const c10::StreamGuard stream(guard.getStreamFromGlobalPool(device()));
  EXPECT_THROW(made + 1.0, c10::Error);
  mark.pass();
  EXPECT_TRUE(at::equal((made + 1.0).cpu(), at::full({3}, 3.0)));
}

TEST(ShadowDevice, SeesMemoryThatGoesToAnotherUseTooSoon) {
  const c10::impl::VirtualGuardImpl guard(at::kPrivateUse1);
  const c10::Stream a = guard.getStreamFromGlobalPool(device()),
                    b = guard.getStreamFromGlobalPool(device());
  for (const bool told : {false, true}) {
    const int64_t size = told ? 5000 : 50000;  // blocks of their own
    std::optional<at::Tensor> made;
    parallel::StreamMark mark;
    {
      const c10::StreamGuard stream(a);
      made = there(at::ones({size}));
      mark = parallel::StreamMark(device());
    }
    {
      const c10::StreamGuard stream(b);
      mark.pass();
      (void)(*made + 1.0);
      if (told) parallel::used_here(*made);
    }
    made.reset();
    const c10::StreamGuard stream(a);
    if (told) {
      EXPECT_NO_THROW(there(at::ones({size})));
    } else {
      EXPECT_THROW(there(at::ones({size})), c10::Error);
    }
  }
}

TEST(ShadowDevice, CountsItsMemory) {
  reset_peak();
  const int64_t before = bytes();
  {
    const at::Tensor a = at::empty({1000}, at::TensorOptions().dtype(at::kFloat).device(device()));
    EXPECT_EQ(bytes() - before, 4096);
  }
  EXPECT_EQ(bytes(), before);
  EXPECT_EQ(peak_bytes() - before, 4096);
}

}  // namespace
}  // namespace contexture::shadow
