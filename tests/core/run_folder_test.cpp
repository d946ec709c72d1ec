#include "core/run_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "expect_error.h"

namespace contexture {
namespace {

void write_text(const std::filesystem::path& path, std::string_view text) {
  write_file_atomic(path, text);
}

TEST(MetricsLog, WritesOneObjectPerLineInFullPrecision) {
  const TempDir folder;
  const auto path = folder.path() / "metrics.jsonl";
  MetricsLog metrics(path, std::nullopt);
  metrics.append({{"step", 1}, {"loss", 0.1 + 0.2}});
  EXPECT_EQ(read_file(path),
            "{\"loss\":0.30000000000000004,\"step\":1}\n");  // at once, not at the end
  metrics.append({{"step", 2}, {"loss", std::nan("")}, {"text", "\xff"}});
  metrics.sync();
  EXPECT_EQ(read_file(path).substr(38), "{\"loss\":null,\"step\":2,\"text\":\"\xef\xbf\xbd\"}\n");
  EXPECT_THROW(metrics.append(Json::array()), Bug);
}

TEST(MetricsLog, ResumeDropsLaterRecordsAndAnUnfinishedLine) {
  const TempDir folder;
  const auto path = folder.path() / "metrics.jsonl";
  write_text(path,
             "{\"step\":1,\"loss\":0.1}\n{\"note\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":2,"
             "\"em\":5}\n{\"ste");
  testing::internal::CaptureStderr();
  MetricsLog metrics(path, 2);
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "metrics.jsonl:6: dropped an unfinished last line"),
            std::string::npos);
  metrics.append({{"step", 3}, {"again", true}});
  EXPECT_EQ(read_file(path),
            "{\"step\":1,\"loss\":0.1}\n{\"note\":1}\n{\"step\":2}\n{\"step\":2,\"em\":5}\n{"
            "\"again\":true,\"step\":3}\n");
}

TEST(MetricsLog, ResumeRefusesABadLineByName) {
  const TempDir folder;
  const auto path = folder.path() / "metrics.jsonl";
  write_text(path, "{\"step\":1}\n{\"step\":\n{\"step\":2}\n");
  const std::string message = message_of<DataError>([&] { MetricsLog(path, 2); });
  EXPECT_NE(message.find("metrics.jsonl:2:"), std::string::npos) << message;
  EXPECT_EQ(read_file(path).size(), 31u);
}

TEST(MetricsLog, ResumeOfAFreshFolderStartsEmpty) {
  const TempDir folder;
  MetricsLog metrics(folder.path() / "metrics.jsonl", 0);
  metrics.append({{"step", 1}});
  EXPECT_EQ(read_file(folder.path() / "metrics.jsonl"), "{\"step\":1}\n");
}

TEST(MetricsLog, RefusesToMixTwoRuns) {
  const TempDir folder;
  write_text(folder.path() / "metrics.jsonl", "{\"step\":1}\n");
  EXPECT_THROW(MetricsLog(folder.path() / "metrics.jsonl", std::nullopt), UserError);
}

TEST(MetricsLog, SaysWhenTheDiskIsFull) {
  MetricsLog metrics("/dev/full", std::nullopt);
  EXPECT_EQ(message_of<UserError>([&] {
              metrics.append({{"step", 1}});
            }),
            "cannot write /dev/full: No space left on device");
}

TEST(RunFolder, MakesTheFolderAndWritesTheConfig) {
  const TempDir folder;
  const RunFolder run(folder.path() / "a" / "b", /*resume=*/false);
  run.write_config({{"train", {{"steps", 5}}}});
  EXPECT_EQ(read_json_file((run.path() / "config.resolved.json").string()),
            Json({{"train", {{"steps", 5}}}}));
}

TEST(RunFolder, RefusesAFolderThatHoldsARunUnlessResumed) {
  const TempDir folder;
  write_text(folder.path() / "metrics.jsonl", "{\"step\":1}\n");
  EXPECT_NE(message_of<UserError>([&] { RunFolder(folder.path(), false); }).find("--resume"),
            std::string::npos);
  EXPECT_NO_THROW(RunFolder(folder.path(), true));
  const TempDir other;
  make_folders(other.path() / "checkpoints" / "step-5");
  EXPECT_THROW(RunFolder(other.path(), false), UserError);
}

TEST(RunFolder, AFailedOpenReleasesTheLock) {
  const TempDir folder;
  write_text(folder.path() / "metrics.jsonl", "{\"step\":1}\n");
  EXPECT_THROW(RunFolder(folder.path(), false), UserError);
  EXPECT_NO_THROW(RunFolder(folder.path(), true));
}

TEST(RunFolder, KeepsASecondWriterOutUntilTheFirstIsGone) {
  const TempDir folder;
  {
    const RunFolder first(folder.path(), false);
    const std::string message = message_of<UserError>([&] { RunFolder(folder.path(), true); });
    EXPECT_NE(message.find("in use by another process (pid " + std::to_string(::getpid()) + ")"),
              std::string::npos)
        << message;
  }
  EXPECT_NO_THROW(RunFolder(folder.path(), true));
}

TEST(RunFolder, TheLockOfAKilledProcessIsGone) {
  const TempDir folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const RunFolder run(folder.path(), false);
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THROW(RunFolder(folder.path(), false), UserError);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(RunFolder(folder.path(), false));
}

}  // namespace
}  // namespace contexture
