// Files: whole reads, read-only maps, and replacement that is all or nothing.
// Failures throw UserError with the path, the system's reason and what to do. No partial file is
// ever seen under a final name: content goes to a temporary name beside it, is synced, its size
// checked, then renamed, then the folder is synced.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace contexture {

// The whole file. Refuses folders and files over max_bytes.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes = uint64_t{1} << 34);

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Replaces `path` with `bytes`, or throws and leaves what was there.
void write_file_atomic(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file_atomic(const std::filesystem::path& path, std::string_view text);

// The same, streamed. Without commit() the destructor removes the temporary file. One thread.
class AtomicFile {
 public:
  // Refuses a target that exists and is not a regular file. A symbolic link is followed.
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(as_bytes(text)); }
  void commit();

  uint64_t num_bytes() const { return num_bytes_; }  // written so far
  uint32_t crc32c() const { return crc_; }           // of the bytes written so far

 private:
  [[noreturn]] void fail(const char* action, int error_number);

  std::filesystem::path path_;  // final name
  std::filesystem::path temporary_;
  int fd_ = -1;
  uint64_t num_bytes_ = 0;
  uint32_t crc_ = 0;
};

// A read-only map of a whole regular file; an empty file gives an empty span. Bytes stay valid
// while the object lives. Another process that truncates the file meanwhile makes reads of the lost
// part raise SIGBUS.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Makes renames and removals inside the folder survive a power cut.
void sync_folder(const std::filesystem::path& folder);

// As std::filesystem::create_directories, with a UserError that names the path.
void make_folders(const std::filesystem::path& folder);

// A fresh folder under the system's temporary folder, removed with all its content by the
// destructor.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace contexture
