#include "core/files.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/hash.h"
#include "expect_error.h"

namespace contexture {
namespace {

namespace fs = std::filesystem;

int num_entries(const fs::path& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// Makes writes past `bytes` fail, as a full disk does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(WriteFileAtomic, WritesAndReplaces) {
  const TempDir folder;
  const fs::path path = folder.path() / "f";
  write_file_atomic(path, std::string_view("first"));
  EXPECT_EQ(read_file(path), "first");
  write_file_atomic(path, std::string_view("2"));
  EXPECT_EQ(read_file(path), "2");
  write_file_atomic(path, std::string_view(""));
  EXPECT_EQ(read_file(path), "");
  EXPECT_EQ(num_entries(folder.path()), 1);
}

TEST(WriteFileAtomic, AFailedWriteKeepsTheOldFileAndLeavesNothingElse) {
  const TempDir folder;
  const fs::path path = folder.path() / "f";
  write_file_atomic(path, std::string_view("old"));
  std::string message;
  {
    const FileSizeLimit limit(4096);
    message = message_of<UserError>([&] { write_file_atomic(path, std::string(100'000, 'x')); });
  }
  EXPECT_EQ(message, "cannot write " + path.string() + ": File too large");
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(num_entries(folder.path()), 1);
}

TEST(WriteFileAtomic, RefusesWhatIsNoRegularFile) {
  const TempDir folder;
  EXPECT_NE(message_of<UserError>([&] {
              write_file_atomic(folder.path(), std::string_view("x"));
            }).find("a folder"),
            std::string::npos);
  EXPECT_NE(message_of<UserError>([&] {
              write_file_atomic("/dev/full", std::string_view("x"));
            }).find("not a regular file"),
            std::string::npos);
  EXPECT_NE(message_of<UserError>([&] {
              write_file_atomic(folder.path() / "no" / "f", std::string_view("x"));
            }).find("No such file"),
            std::string::npos);
  EXPECT_THROW(write_file_atomic("", std::string_view("x")), UserError);
}

TEST(WriteFileAtomic, FollowsASymbolicLinkAndKeepsIt) {
  const TempDir folder;
  write_file_atomic(folder.path() / "target", std::string_view("old"));
  fs::create_symlink("target", folder.path() / "link");
  write_file_atomic(folder.path() / "link", std::string_view("new"));
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
  EXPECT_EQ(read_file(folder.path() / "target"), "new");
  fs::create_symlink("loop", folder.path() / "loop");
  EXPECT_THROW(write_file_atomic(folder.path() / "loop", std::string_view("x")), UserError);
}

TEST(AtomicFile, ShowsNothingUnderTheFinalNameBeforeCommit) {
  const TempDir folder;
  const fs::path path = folder.path() / "f";
  {
    AtomicFile file(path);
    file.write("half");
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_EQ(num_entries(folder.path()), 0);
}

TEST(AtomicFile, CountsAndChecksumsWhatItWrote) {
  const TempDir folder;
  AtomicFile file(folder.path() / "f");
  file.write("1234");
  file.write("56789");
  file.commit();
  EXPECT_EQ(file.num_bytes(), 9u);
  EXPECT_EQ(file.crc32c(), crc32c(std::string_view("123456789")));
  EXPECT_THROW(file.commit(), Bug);
  EXPECT_THROW(file.write("x"), Bug);
}

TEST(AtomicFile, NoticesWhenTheSystemKeptFewerBytes) {
  const TempDir folder;
  AtomicFile file(folder.path() / "f");
  file.write("123456789");
  fs::resize_file(fs::directory_iterator(folder.path())->path(), 4);
  EXPECT_NE(message_of<UserError>([&] { file.commit(); }).find("kept 4 of 9 bytes"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(folder.path() / "f"));
}

TEST(AtomicFile, TwoWritersOfOneNameDoNotMix) {
  const TempDir folder;
  AtomicFile a(folder.path() / "f"), b(folder.path() / "f");
  a.write("aaaa");
  b.write("bb");
  a.commit();
  b.commit();
  EXPECT_EQ(read_file(folder.path() / "f"), "bb");
}

TEST(ReadFile, NamesPathAndReason) {
  const TempDir folder;
  const std::string path = (folder.path() / "gone").string();
  EXPECT_EQ(message_of<UserError>([&] { read_file(path); }),
            "cannot open " + path + ": No such file or directory");
  EXPECT_NE(message_of<UserError>([&] { read_file(folder.path()); }).find("a folder"),
            std::string::npos);
  write_file_atomic(path, std::string_view("123"));
  EXPECT_NE(message_of<UserError>([&] { read_file(path, 2); }).find("at most 2"),
            std::string::npos);
}

TEST(ReadFile, RefusesAPipeInsteadOfWaitingForIt) {
  const TempDir folder;
  ASSERT_EQ(::mkfifo((folder.path() / "p").c_str(), 0600), 0);
  EXPECT_THROW(read_file(folder.path() / "p"), UserError);
  EXPECT_THROW(MappedFile(folder.path() / "p"), UserError);
}

TEST(MappedFile, ShowsTheBytesAndMoves) {
  const TempDir folder;
  write_file_atomic(folder.path() / "f", std::string_view("abc"));
  MappedFile file(folder.path() / "f");
  ASSERT_EQ(file.bytes().size(), 3u);
  EXPECT_EQ(static_cast<char>(file.bytes()[2]), 'c');
  MappedFile moved = std::move(file);
  EXPECT_EQ(moved.bytes().size(), 3u);
  EXPECT_EQ(file.bytes().size(), 0u);
  write_file_atomic(folder.path() / "e", std::string_view(""));
  moved = MappedFile(folder.path() / "e");
  EXPECT_TRUE(moved.bytes().empty());
  EXPECT_THROW(MappedFile(folder.path() / "gone"), UserError);
}

TEST(MakeFolders, MakesParentsAndRefusesAFileInTheWay) {
  const TempDir folder;
  make_folders(folder.path() / "a" / "b");
  make_folders(folder.path() / "a" / "b");
  EXPECT_TRUE(fs::is_directory(folder.path() / "a" / "b"));
  write_file_atomic(folder.path() / "f", std::string_view("x"));
  EXPECT_THROW(make_folders(folder.path() / "f"), UserError);
  EXPECT_THROW(make_folders(folder.path() / "f" / "g"), UserError);
}

TEST(TempDir, RemovesItselfWithItsContent) {
  fs::path path;
  {
    const TempDir folder;
    path = folder.path();
    make_folders(path / "x");
    write_file_atomic(path / "x" / "f", std::string_view("x"));
  }
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace contexture
