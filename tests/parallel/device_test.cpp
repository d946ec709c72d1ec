// Which device a rank takes, and that all ranks of a world refuse alike.
#include "parallel/device.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/error.h"
#include "parallel/communicator.h"
#include "parallel/gather.h"
#include "parallel/launch_env.h"

namespace contexture::parallel {
namespace {

std::string refusal(const std::string& name) {
  try {
    return choose_device(name, LaunchEnv()).str();
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(ChooseDevice, TakesTheCpuWhereThereIsNoGpu) {
  EXPECT_EQ(refusal("cpu"), "cpu");
  EXPECT_NE(refusal("tpu").find("run.device=tpu is not known. Use auto, cpu or cuda."),
            std::string::npos);
  if (at::hasCUDA()) GTEST_SKIP() << "there is a GPU here";
  EXPECT_EQ(refusal("auto"), "cpu");
  EXPECT_EQ(refusal("cuda").find("run.device=cuda, but rank 0 has no such device: "), 0u)
      << refusal("cuda");
}

TEST(AgreeOnDevice, AllRanksRefuseWhatOneOfThemHasNot) {
  const auto communicators = make_thread_communicators(3);
  std::vector<std::string> said(3);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      LaunchEnv env;
      env.rendezvous.rank = static_cast<int>(r);
      try {
        agree_on_device(r == 1 ? "tpu" : "cpu", env, communicators[r].get());
      } catch (const AgreedError& error) {
        said[r] = concat(error.speaks(), " ", error.what());
      }
      EXPECT_EQ(agree_on_device("cpu", env, communicators[r].get()), at::Device(at::kCPU));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t r = 0; r < 3; ++r)
    EXPECT_EQ(said[r], concat(r == 0, " run.device=tpu is not known. Use auto, cpu or cuda."));
}

TEST(GatherTexts, GivesEveryRankAllTexts) {
  const auto communicators = make_thread_communicators(3);
  const std::vector<std::string> texts{"", "a", "longer"};
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 3; ++r) {
    threads.emplace_back(
        [&, r] { EXPECT_EQ(gather_texts(communicators[r].get(), texts[r]), texts); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace contexture::parallel
