// Case 24: sentencepiece and LibTorch in one process. Debian's libsentencepiece exports
// FLAGS_minloglevel as a 32-byte object and LibTorch's libc10 exports an int of that name: bound
// together, sentencepiece's start-up wrote over 28 bytes of libc10's data, or libc10 read a pointer
// as its log level. cmake/sentencepiece.cmake keeps them apart.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "core/files.h"
#include "data/tokenizer.h"

namespace contexture::data {
namespace {

TEST(Case24, SentencepieceAndLibTorchWorkInOneProcessInEitherOrder) {
  const TempDir folder;
  std::vector<std::string> lines;
  for (int i = 0; i < 300; ++i)
    lines.push_back("The capital number " + std::to_string(i) + " is Paris.");
  const std::string path = (folder.path() / "t.model").string();
  EXPECT_EQ(at::ones({2, 3}).sum().item<float>(), 6.0F);
  Tokenizer::train(lines, path, {.vocab_size = 320});
  EXPECT_EQ(at::ones({2, 3}).sum().item<float>(), 6.0F);
  const Tokenizer tokenizer(path);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("is Paris")), "is Paris");
}

TEST(Case24, TheLogLevelFlagOfLibTorchIsItsOwn) {
  void* flag = dlsym(RTLD_DEFAULT, "FLAGS_minloglevel");
  ASSERT_NE(flag, nullptr);
  Dl_info info{};
  ASSERT_NE(dladdr(flag, &info), 0);
  EXPECT_NE(std::string(info.dli_fname).find("libc10"), std::string::npos) << info.dli_fname;
  const int level = *static_cast<int*>(flag);
  EXPECT_GE(level, 0);
  EXPECT_LE(level, 4);
}

TEST(Case24, NoFlagOfSentencepieceCanBeSeenFromOutside) {
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "FLAGS_help"), nullptr);
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "FLAGS_version"), nullptr);
}

}  // namespace
}  // namespace contexture::data
