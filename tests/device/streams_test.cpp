// Several ranks in one process on one device, each a thread with a stream of its own, in layouts of
// every kind: they train what one process trains on the CPU. On the shadow device, work of two
// streams that no event orders is an error.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "device/devices.h"
#include "parity/layouts.h"

namespace contexture::train {
namespace {

Outcome train_on_streams(const RunConfig& config, at::Device device, int64_t steps) {
  Outcome out;
  on_threads(config.parallel, [&](const parallel::Groups& groups) {
    const c10::StreamGuard own(
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
    Outcome mine = outcome_of(config, groups, steps);
    if (groups.rank() == 0) out = std::move(mine);
  });
  return out;
}

struct Layout {
  const char* name;
  int64_t dp, pp, tp, microbatches, zero;
  const char* schedule;
  void (*change)(RunConfig&);
};

const Layout kLayouts[] = {
    {"two_stages", 1, 2, 1, 4, 0, "1f1b", [](RunConfig&) {}},
    {"two_stages_slices", 1, 2, 1, 2, 0, "1f1b", [](RunConfig& c) { c.parallel.token_slices = 3; }},
    {"replicas_of_two_stages_zero_1", 2, 2, 1, 2, 1, "zb_h1",
     [](RunConfig& c) { c.model.dropout = 0.1; }},
    {"replicas_zero_3", 2, 1, 1, 2, 3, "1f1b",
     [](RunConfig& c) { c.parallel.recompute = {"doc.layer"}; }},
    {"replicas_zero_2_grouped", 2, 1, 2, 1, 2, "1f1b",
     [](RunConfig& c) { c.data.assembly = "grouped"; }},
    {"interleaved_tensor", 1, 2, 2, 2, 0, "interleaved",
     [](RunConfig& c) {
       c.parallel.chunks = 2;
       c.parallel.sequence = true;
     }},
    {"four_stages_colocated", 1, 4, 1, 3, 0, "list",
     [](RunConfig& c) { c.parallel.shared = "colocate"; }},
    {"prefix", 1, 2, 1, 2, 0, "zb_h1", [](RunConfig& c) { c.model.fusion = "prefix"; }},
    {"published_encoder", 2, 2, 1, 2, 2, "1f1b", [](RunConfig& c) { c = with_tiny_bert(c); }},
};

class Streams : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Streams, TrainWhatOneProcessTrainsOnTheCpu) {
  const auto& [device, number] = GetParam();
  SKIP_WITHOUT(device);
  const Layout& layout = kLayouts[number];
  const TinyWorld world;
  RunConfig config = tiny(world);
  layout.change(config);
  RunConfig alone = config;
  alone.run.device = "cpu";
  alone.parallel = {};
  alone.parallel.dp = 1;
  const Outcome want = outcome_of(alone, {}, 4);
  config.run.device = device;
  lay_out(config, layout);
  config.parallel.microbatches = layout.microbatches;
  const Difference d = compare(want, train_on_streams(config, device_named(device), 4));
  EXPECT_LE(std::max({d.loss, d.gradient, d.step}), 1e-10)
      << d.worst_parameter;  // fp64 sums in another order
}

INSTANTIATE_TEST_SUITE_P(Layouts, Streams,
                         testing::Combine(testing::ValuesIn(kDevices),
                                          testing::Range(0, static_cast<int>(std::size(kLayouts)))),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  kLayouts[std::get<1>(info.param)].name;
                         });

class Collectives : public testing::TestWithParam<std::string> {};

// Each with work on either side that only events order.
TEST_P(Collectives, AreOrderedByEvents) {
  SKIP_WITHOUT(GetParam());
  const at::Device device = device_named(GetParam());
  parallel::ParallelConfig config;
  config.dp = 3;
  on_threads(config, [&](const parallel::Groups& groups) {
    const c10::StreamGuard own(
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
    parallel::Communicator& dp = *groups.dp;
    const auto options = at::TensorOptions().dtype(at::kDouble).device(device);
    const double r = groups.rank();
    for (int round = 0; round < 20; ++round) {
      const at::Tensor sum = at::full({1000}, r, options) + 1.0;
      dp.all_reduce(sum).wait();
      const at::Tensor all = at::empty({3000}, options), part = at::empty({1000}, options),
                       swapped = at::empty({3000}, options);
      dp.all_gather(all, sum * (r + 1.0)).wait();
      dp.reduce_scatter(part, all * 1.0).wait();
      dp.all_to_all(swapped, all + r).wait();
      const at::Tensor told = at::full({1000}, r, options);
      dp.broadcast(told, 2).wait();
      EXPECT_EQ(sum.sum().item<double>(), 6.0 * 1000);
      EXPECT_EQ(all.sum().item<double>(), 6.0 * (1 + 2 + 3) * 1000);
      EXPECT_EQ(part.sum().item<double>(), 3 * 6.0 * (r + 1) * 1000);
      EXPECT_EQ(swapped.sum().item<double>(), (3 * 6.0 * (r + 1) + 0 + 1 + 2) * 1000);
      EXPECT_EQ(told.sum().item<double>(), 2.0 * 1000);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, Collectives, testing::ValuesIn(kDevices),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace contexture::train
