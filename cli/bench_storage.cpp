#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iostream>

#include "cli/bench.h"
#include "core/error.h"
#include "core/files.h"
#include "core/format.h"
#include "core/rng.h"
#include "core/timing.h"

namespace contexture::cli {
namespace {
namespace fs = std::filesystem;

struct Options {
  std::string dir;
  int64_t megabytes = 256, files = 1000, file_kb = 64;
  bool json = false;
};

constexpr int64_t kChunk = 1 << 20;

// A folder of its own below the one that is measured; removed at the end.
class Folder {
 public:
  explicit Folder(const fs::path& parent) : path_(parent / concat(".contexture-bench-", getpid())) {
    std::error_code error;
    fs::create_directory(path_, error);
    CONTEXTURE_REQUIRE(!error, "cannot make a folder in ", parent.string(), ": ", error.message(),
                       ". Give --dir a folder that exists and may be written.");
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

class File {
 public:
  File(const fs::path& path, int flags)
      : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {
    check(fd_ >= 0, "open");
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  void write(const std::vector<char>& bytes, size_t count) {
    check(::write(fd_, bytes.data(), count) == static_cast<ssize_t>(count), "write");
  }
  int64_t read(std::vector<char>& bytes) {
    const ssize_t n = ::read(fd_, bytes.data(), bytes.size());
    check(n >= 0, "read");
    return n;
  }
  void sync() { check(::fsync(fd_) == 0, "sync"); }
  void forget() {
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  }  // so that reading comes from storage, as far as the system heeds it

 private:
  void check(bool ok, const char* what) const {
    CONTEXTURE_REQUIRE(ok, "cannot ", what, " ", path_.string(), ": ", errno_text(errno));
  }
  fs::path path_;
  int fd_;
};

// Neither compressible nor equal from chunk to chunk.
void fill(std::vector<char>& bytes, uint64_t index) {
  Stream draws(index, "bench storage");
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    const uint32_t word = draws.next_u32();
    std::copy_n(reinterpret_cast<const char*>(&word), 4, bytes.data() + i);
  }
}

int run(const Options& options) {
  CONTEXTURE_USAGE_REQUIRE(options.megabytes >= 1 && options.files >= 1 && options.file_kb >= 1,
                           "--megabytes ", options.megabytes, ", --files ", options.files,
                           " and --file-kb ", options.file_kb, " must be at least 1.");
  const Folder folder(options.dir);
  std::vector<char> chunk(kChunk);
  const fs::path large = folder.path() / "large";
  double write_s = 0.0, read_s = 0.0;
  {
    File file(large, O_WRONLY | O_CREAT | O_TRUNC);
    for (int64_t i = 0; i < options.megabytes; ++i) {
      fill(chunk, static_cast<uint64_t>(i));
      const double start = now_s();
      file.write(chunk, chunk.size());
      write_s += now_s() - start;
    }
    const double start = now_s();
    file.sync();
    write_s += now_s() - start;
    file.forget();
  }
  {
    const double start = now_s();
    File file(large, O_RDONLY);
    int64_t bytes = 0;
    while (const int64_t n = file.read(chunk)) bytes += n;
    read_s = now_s() - start;
    CONTEXTURE_REQUIRE(bytes == options.megabytes * kChunk, large.string(), " has ", bytes,
                       " bytes after ", options.megabytes * kChunk, " were written");
  }
  const auto small = [&](int64_t i) { return folder.path() / format("small-{}", i); };
  std::vector<char> picture(static_cast<size_t>(options.file_kb) * 1024);
  for (int64_t i = 0; i < options.files; ++i) {
    fill(picture, static_cast<uint64_t>(i));
    File file(small(i), O_WRONLY | O_CREAT | O_TRUNC);
    file.write(picture, picture.size());
    file.sync();
    file.forget();
  }
  const double start = now_s();
  for (int64_t i = 0; i < options.files; ++i) {
    File file(small(i), O_RDONLY);
    CONTEXTURE_REQUIRE(file.read(picture) == options.file_kb * 1024, small(i).string(),
                       " is short");
  }
  const double files_s = now_s() - start,
               megabytes = static_cast<double>(options.megabytes * kChunk) / 1e6;
  const Json out{{"write_mb_per_s", megabytes / write_s},
                 {"read_mb_per_s", megabytes / read_s},
                 {"files_per_s", static_cast<double>(options.files) / files_s},
                 {"file_kb", options.file_kb},
                 {"storage",
                  {{"mb_per_s", megabytes / std::max(write_s, read_s)},
                   {"files_per_s", static_cast<double>(options.files) / files_s}}}};
  if (options.json) {
    print_json(out);
    return 0;
  }
  std::cout << format(
      "one file of {} MB: written and synced at {:.0f} MB/s, read at {:.0f} MB/s\n{} files of {} "
      "KB: {:.0f} opened and read a second\nfor a cluster file: \"storage\": {}\n",
      options.megabytes, out["write_mb_per_s"].get<double>(), out["read_mb_per_s"].get<double>(),
      options.files, options.file_kb, out["files_per_s"].get<double>(), out["storage"].dump());
  return 0;
}

}  // namespace

Command bench_storage_command(CLI::App& group) {
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(
      "storage", "What a folder's storage does: MB a second of a large file, small files a second");
  app->add_option("--dir", options->dir,
                  "folder on the storage; a temporary one is made in it and removed")
      ->required();
  app->add_option("--megabytes", options->megabytes, "size of the large file")
      ->capture_default_str();
  app->add_option("--files", options->files, "number of small files")->capture_default_str();
  app->add_option("--file-kb", options->file_kb, "size of a small file")->capture_default_str();
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] { return run(*options); }};
}

}  // namespace contexture::cli
