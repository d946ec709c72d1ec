#include "core/log.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/files.h"

namespace contexture {
namespace {

struct Opaque {
  int value;
};
std::ostream& operator<<(std::ostream& out, const Opaque& opaque) {
  return out << "<" << opaque.value << ">";
}

TEST(Format, FollowsFmtForAnyStreamableType) {
  EXPECT_EQ(format("{} {} {:.3f} {:>5} {} {}", 1, uint64_t{2}, 0.5, "ab", true, Opaque{3}),
            "1 2 0.500    ab true <3>");
  EXPECT_EQ(format("{1} {0}", 'a', std::string("b")), "b a");
  EXPECT_EQ(format("{:04} {{}}", -7), "-007 {}");
  EXPECT_THROW(format("{} {}", 1), Bug);
  EXPECT_THROW(format("{:d}", "text"), Bug);
}

TEST(Log, WritesLinesWithLevelAndPrefixToTheFile) {
  const TempDir folder;
  testing::internal::CaptureStderr();
  log::add_file(folder.path() / "log.txt");
  log::set_prefix("[rank0 100%] ");
  log::info("step {} loss {:.2f}", 3, 1.5);
  log::debug("not shown");
  log::warn("braces {} without arguments");
  log::error("bad {} {}", 1);
  log::set_prefix("");
  log::remove_file();
  log::info("only on stderr");
  const std::string on_stderr = testing::internal::GetCapturedStderr();
  const std::string text = read_file(folder.path() / "log.txt");
  EXPECT_NE(text.find(" I [rank0 100%] step 3 loss 1.50\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" W [rank0 100%] braces {} without arguments\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" E [rank0 100%] bad {} {} [arguments do not fit]\n"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("not shown"), std::string::npos);
  EXPECT_EQ(text.find("only on stderr"), std::string::npos);
  EXPECT_NE(on_stderr.find("only on stderr"), std::string::npos);
  EXPECT_EQ(on_stderr.find('\x1b'), std::string::npos) << "colour although stderr is no terminal";
}

TEST(Log, LevelsFilterAndAreNamed) {
  const log::Level level = log::level_from_name("error");
  log::set_level(level);
  EXPECT_FALSE(log::enabled(log::Level::warn));
  EXPECT_TRUE(log::enabled(log::Level::error));
  log::set_level(log::Level::info);
  try {
    log::level_from_name("wran");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("Did you mean 'warn'?"), std::string::npos);
  }
}

TEST(Log, LinesOfSeveralThreadsStayWhole) {
  const TempDir folder;
  testing::internal::CaptureStderr();
  log::add_file(folder.path() / "log.txt");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 100; ++i) log::info("thread {} line {} end", t, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  log::remove_file();
  testing::internal::GetCapturedStderr();
  std::istringstream lines(read_file(folder.path() / "log.txt"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_NE(line.find(" I thread "), std::string::npos);
    EXPECT_TRUE(line.ends_with(" end")) << line;
  }
  EXPECT_EQ(count, 400);
}

TEST(Log, AFileThatCannotBeOpenedIsTheUsersError) {
  EXPECT_THROW(log::add_file("/proc/no/such/log.txt"), UserError);
}

}  // namespace
}  // namespace contexture
