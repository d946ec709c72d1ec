#include "core/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/hash.h"

namespace contexture {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_on(const fs::path& path, const char* action, int error_number) {
  std::string message =
      concat("cannot ", action, " ", path.string(), ": ", errno_text(error_number));
  if (error_number == ENOSPC || error_number == EDQUOT)
    message += ". Free some space and run again.";
  throw UserError(message);
}

// Opens a regular file for reading and gives its size.
int open_regular(const fs::path& path, uint64_t* size) {
  // O_NONBLOCK: opening a pipe without a writer must not hang; it is refused just below.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail_on(path, "open", errno);
  struct stat status {};
  const int stat_result = ::fstat(fd, &status);
  const int error_number = errno;
  if (stat_result == 0 && S_ISREG(status.st_mode)) {
    *size = static_cast<uint64_t>(status.st_size);
    return fd;
  }
  ::close(fd);
  if (stat_result != 0) fail_on(path, "inspect", error_number);
  throw UserError(concat("cannot read ", path.string(), ": it is ",
                         S_ISDIR(status.st_mode) ? "a folder" : "not a regular file"));
}

}  // namespace

std::string read_file(const fs::path& path, uint64_t max_bytes) {
  uint64_t size = 0;
  const int fd = open_regular(path, &size);
  std::string text;
  try {
    CONTEXTURE_REQUIRE(size <= max_bytes, path.string(), " has ", size, " bytes; at most ",
                       max_bytes, " are read here");
    text.resize(size);
    size_t done = 0;
    while (done < size) {
      const ssize_t n = ::read(fd, text.data() + done, size - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_on(path, "read", errno);
      CONTEXTURE_REQUIRE(n > 0, path.string(), " became shorter while it was read");
      done += static_cast<size_t>(n);
    }
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
  return text;
}

void write_file_atomic(const fs::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_file_atomic(const fs::path& path, std::string_view text) {
  write_file_atomic(path, as_bytes(text));
}

AtomicFile::AtomicFile(const fs::path& path) : path_(path) {
  std::error_code ignored;
  for (int links = 0; fs::is_symlink(path_, ignored); ++links) {
    CONTEXTURE_REQUIRE(links < 40, "cannot write ", path.string(),
                       ": its symbolic links form a loop");
    const fs::path target = fs::read_symlink(path_, ignored);
    path_ = target.is_absolute() ? target : path_.parent_path() / target;
  }
  const fs::file_status status = fs::status(path_, ignored);
  CONTEXTURE_REQUIRE(!fs::exists(status) || fs::is_regular_file(status), "cannot write ",
                     path.string(), ": it exists and is ",
                     fs::is_directory(status) ? "a folder" : "not a regular file");
  CONTEXTURE_REQUIRE(path_.has_filename(), "cannot write '", path.string(), "': no file name");

  // Process id and a count keep two writers apart; the leading dot keeps it out of globs.
  static std::atomic<uint64_t> count{0};
  temporary_ = path_.parent_path() /
               concat(".", path_.filename().string(), ".tmp-", ::getpid(), "-", count.fetch_add(1));
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("create", errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::fail(const char* action, int error_number) {
  fail_on(path_, action, error_number);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  CONTEXTURE_INVARIANT(fd_ >= 0, "write after commit: ", path_.string());
  crc_ = ::contexture::crc32c(bytes, crc_);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", errno);
    done += static_cast<size_t>(n);
  }
  num_bytes_ += bytes.size();
}

void AtomicFile::commit() {
  CONTEXTURE_INVARIANT(fd_ >= 0, "commit twice: ", path_.string());
  if (::fsync(fd_) != 0) fail("write (sync)", errno);
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail("inspect", errno);
  CONTEXTURE_REQUIRE(static_cast<uint64_t>(status.st_size) == num_bytes_, "cannot write ",
                     path_.string(), ": the system kept ", status.st_size, " of ", num_bytes_,
                     " bytes");
  // Network file systems report a failed write only here. The descriptor is gone either way.
  const int close_result = ::close(std::exchange(fd_, -1));
  const int close_error = errno;
  if (close_result != 0 && close_error != EINTR) {
    ::unlink(temporary_.c_str());
    fail("write (close)", close_error);
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error_number = errno;
    ::unlink(temporary_.c_str());
    fail("rename to", error_number);
  }
  sync_folder(path_.parent_path());
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  uint64_t size = 0;
  const int fd = open_regular(path, &size);
  void* address = nullptr;
  int error_number = 0;
  if (size > 0) {
    address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    error_number = errno;
  }
  ::close(fd);
  if (address == MAP_FAILED) fail_on(path, "map", error_number);
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void sync_folder(const fs::path& folder) {
  const fs::path named = folder.empty() ? fs::path(".") : folder;
  const int fd = ::open(named.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_on(named, "open folder", errno);
  const int result = ::fsync(fd);
  const int error_number = errno;
  ::close(fd);
  // Some file systems can't sync a folder and say so with EINVAL; there is nothing more to do on
  // them.
  if (result != 0 && error_number != EINVAL) fail_on(named, "sync folder", error_number);
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  CONTEXTURE_REQUIRE(!error && fs::is_directory(folder), "cannot make the folder ", folder.string(),
                     ": ", error ? error.message() : "a file of that name exists");
}

TempDir::TempDir() {
  std::string pattern = (fs::temp_directory_path() / "contexture-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) fail_on(pattern, "make the folder", errno);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace contexture
