#include "data/archive.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"

namespace contexture::data {
namespace {

constexpr size_t kMaxNames = 1'000'000;
constexpr size_t kMaxOddNames = 10;
constexpr size_t kReadBlock = size_t{1} << 18;

// The alternatives inside one pair of braces: "a,b" or "000..123".
std::vector<std::string> alternatives(const std::string& inside, const std::string& pattern) {
  const size_t dots = inside.find("..");
  std::vector<std::string> names;
  if (dots == std::string::npos) {
    for (size_t begin = 0; begin <= inside.size();) {
      const size_t end = std::min(inside.find(',', begin), inside.size());
      names.push_back(inside.substr(begin, end - begin));
      begin = end + 1;
    }
    return names;
  }
  const std::string low = inside.substr(0, dots), high = inside.substr(dots + 2);
  const auto digits = [](const std::string& s) {
    return !s.empty() && s.size() <= 12 &&
           std::all_of(s.begin(), s.end(), [](unsigned char c) { return std::isdigit(c); });
  };
  CONTEXTURE_REQUIRE(digits(low) && digits(high), "'{", inside, "}' in '", pattern,
                     "' is no range of numbers.");
  const int64_t first = std::stoll(low), last = std::stoll(high);
  CONTEXTURE_REQUIRE(first <= last && last - first < static_cast<int64_t>(kMaxNames), "'{", inside,
                     "}' in '", pattern, "' runs backwards or names more than ", kMaxNames,
                     " files.");
  for (int64_t i = first; i <= last; ++i) {
    std::string number = std::to_string(i);
    if (number.size() < low.size()) number.insert(0, low.size() - number.size(), '0');
    names.push_back(number);
  }
  return names;
}

std::string base_name(const std::string& name) { return name.substr(name.rfind('/') + 1); }

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// A field such as "0 final.jpg" or "2.txt" means that a dot inside the base name was taken for the
// field's.
bool is_odd(const std::string& field) {
  return field.find(' ') != std::string::npos ||
         (field.find('.') != std::string::npos &&
          std::isdigit(static_cast<unsigned char>(field.front())));
}

}  // namespace

std::vector<std::string> expand_braces(const std::string& pattern) {
  const size_t open = pattern.find('{');
  if (open == std::string::npos) return {pattern};
  const size_t close = pattern.find('}', open);
  CONTEXTURE_REQUIRE(close != std::string::npos, "'", pattern,
                     "' opens a brace that it doesn't close.");
  std::vector<std::string> names;
  const std::vector<std::string> tails = expand_braces(pattern.substr(close + 1));
  const auto middles = alternatives(pattern.substr(open + 1, close - open - 1), pattern);
  CONTEXTURE_REQUIRE(middles.size() <= kMaxNames / tails.size(), "'", pattern, "' names more than ",
                     kMaxNames, " files.");
  for (const std::string& middle : middles) {
    for (const std::string& tail : tails) names.push_back(pattern.substr(0, open) + middle + tail);
  }
  return names;
}

std::pair<std::string, std::string> split_member_name(const std::string& name) {
  const size_t base = name.rfind('/') + 1;  // npos + 1 is 0
  const size_t dot = name.find('.', base);
  if (dot == std::string::npos) return {name, ""};
  return {name.substr(0, dot), lower(name.substr(dot + 1))};
}

struct TarReader::Impl {
  std::string path;
  BadRecords& bad;
  int64_t max_member_bytes;
  struct archive* handle;
  bool ended = false;
  bool compressed = false;
  std::optional<TarSample> pending;
  std::string pending_group;
  std::vector<std::string> odd;

  Impl(const std::string& path, BadRecords& bad, int64_t max_member_bytes)
      : path(path), bad(bad), max_member_bytes(max_member_bytes), handle(archive_read_new()) {
    CONTEXTURE_INVARIANT(handle != nullptr, "libarchive gives no reader");
    archive_read_support_format_tar(handle);
    archive_read_support_format_empty(handle);
    archive_read_support_filter_gzip(handle);
    archive_read_support_filter_bzip2(handle);
    archive_read_support_filter_xz(handle);
    archive_read_support_filter_zstd(handle);
  }
  ~Impl() { archive_read_free(handle); }

  std::string error() const {
    const char* text = archive_error_string(handle);
    return text != nullptr ? text : "unknown reason";
  }
  // A sample that lost a member would be a wrong sample: it goes with the damage.
  void damaged(bool drop_pending) {
    ended = true;
    if (drop_pending) pending.reset();
    bad.add(path, "damaged shard",
            concat(error(), ", at byte ", archive_read_header_position(handle)));
  }
  std::optional<TarSample> finish() {
    std::optional<TarSample> done = std::move(pending);
    pending.reset();
    return done;
  }
  bool read_body(std::vector<std::byte>& bytes) {
    for (size_t size = 0;;) {
      bytes.resize(size + kReadBlock);
      const auto got = archive_read_data(handle, bytes.data() + size, kReadBlock);
      if (got < 0) return false;
      size += static_cast<size_t>(got);
      bytes.resize(size);
      if (got == 0) {
        bytes.shrink_to_fit();
        return true;
      }
    }
  }
};

TarReader::TarReader(const std::string& path, BadRecords& bad, int64_t max_member_bytes)
    : impl_(std::make_unique<Impl>(path, bad, max_member_bytes)) {
  CONTEXTURE_DATA_REQUIRE(std::filesystem::is_regular_file(path), path, ": there is no such file.");
  const int opened = archive_read_open_filename(impl_->handle, path.c_str(), kReadBlock);
  if (opened < ARCHIVE_WARN) impl_->damaged(/*drop_pending=*/false);
}

TarReader::TarReader(std::span<const std::byte> bytes, const std::string& name, BadRecords& bad,
                     int64_t max_member_bytes)
    : impl_(std::make_unique<Impl>(name, bad, max_member_bytes)) {
  const int opened = archive_read_open_memory(impl_->handle, bytes.data(), bytes.size());
  if (opened < ARCHIVE_WARN) impl_->damaged(/*drop_pending=*/false);
}

TarReader::~TarReader() = default;
bool TarReader::compressed() const { return impl_->compressed; }
const std::vector<std::string>& TarReader::odd_names() const { return impl_->odd; }

std::optional<TarSample> TarReader::next() {
  Impl& in = *impl_;
  while (!in.ended) {
    struct archive_entry* entry = nullptr;
    const int status = archive_read_next_header(in.handle, &entry);
    if (status == ARCHIVE_EOF) {
      in.ended = true;
      break;
    }
    if (status < ARCHIVE_WARN) {
      in.damaged(/*drop_pending=*/false);
      break;
    }
    in.compressed = archive_filter_code(in.handle, 0) != ARCHIVE_FILTER_NONE;
    // Names stay the bytes they are: libarchive falls back to them when the locale can't hold them.
    const char* stored = archive_entry_pathname(entry);
    const std::string name = stored != nullptr ? stored : "";
    const std::string base = base_name(name);
    const auto [key, field] = split_member_name(name);
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr ||
        field.empty() || base.rfind("__", 0) == 0 || base.front() == '.') {
      continue;
    }
    if (archive_entry_size(entry) > in.max_member_bytes || archive_entry_sparse_count(entry) > 0) {
      in.bad.add(concat(in.path, ":", name), "member too large",
                 concat(archive_entry_size(entry), " bytes, the limit is ", in.max_member_bytes));
      continue;
    }
    TarMember member{name, archive_filter_bytes(in.handle, 0), {}};
    const bool odd = is_odd(field);
    // Two odd names that share what stands before the first dot are not one sample.
    const std::string group = odd ? key + "." + field.substr(0, field.rfind('.')) : key;
    std::optional<TarSample> done;
    if (in.pending && in.pending_group != group) done = in.finish();
    if (!in.read_body(member.bytes)) {
      in.damaged(/*drop_pending=*/true);
      return done;
    }
    if (odd && in.odd.size() < kMaxOddNames) in.odd.push_back(name);
    if (!in.pending) {
      in.pending = TarSample{key, in.path, {}};
      in.pending_group = group;
    }
    if (!in.pending->fields.emplace(field, std::move(member)).second) {
      in.bad.add(concat(in.path, ":", name), "second member for one field", field);
    }
    if (done) return done;
  }
  return in.finish();
}

struct TarWriter::Impl {
  AtomicFile file;
  struct archive* handle;
  std::string failure;

  explicit Impl(const std::string& path) : file(path), handle(archive_write_new()) {
    CONTEXTURE_INVARIANT(handle != nullptr, "libarchive gives no writer");
  }
  ~Impl() { archive_write_free(handle); }

  // Exceptions must not cross libarchive's C frames: the reason is kept and thrown afterwards.
  static la_ssize_t write(struct archive*, void* self, const void* bytes, size_t size) {
    auto* impl = static_cast<Impl*>(self);
    try {
      impl->file.write(std::span(static_cast<const std::byte*>(bytes), size));
      return static_cast<la_ssize_t>(size);
    } catch (const std::exception& error) {
      impl->failure = error.what();
      return -1;
    }
  }
  void require(bool good, const char* action) {
    if (good) return;
    const char* reason = archive_error_string(handle);
    throw UserError(!failure.empty()
                        ? failure
                        : concat("can't ", action, " a tar: ", reason ? reason : "unknown reason"));
  }
};

TarWriter::TarWriter(const std::string& path) : impl_(std::make_unique<Impl>(path)) {
  archive_write_set_format_pax_restricted(impl_->handle);
  archive_write_add_filter_none(impl_->handle);
  archive_write_set_bytes_in_last_block(impl_->handle, 1);
  impl_->require(
      archive_write_open(impl_->handle, impl_.get(), nullptr, Impl::write, nullptr) == ARCHIVE_OK,
      "open");
}

// An abandoned archive must not write its end through a file that is going away.
TarWriter::~TarWriter() { archive_write_fail(impl_->handle); }

void TarWriter::add(const std::string& name, std::span<const std::byte> bytes) {
  struct archive_entry* entry = archive_entry_new();
  CONTEXTURE_INVARIANT(entry != nullptr, "libarchive gives no entry");
  archive_entry_set_pathname_utf8(entry, name.c_str());
  archive_entry_copy_pathname(entry, name.c_str());
  archive_entry_set_size(entry, static_cast<la_int64_t>(bytes.size()));
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_entry_set_perm(entry, 0644);
  archive_entry_set_mtime(entry, 0, 0);
  const int status = archive_write_header(impl_->handle, entry);
  archive_entry_free(entry);
  impl_->require(status >= ARCHIVE_WARN, "write to");
  const auto written = archive_write_data(impl_->handle, bytes.data(), bytes.size());
  impl_->require(written == static_cast<la_ssize_t>(bytes.size()), "write to");
}

int64_t TarWriter::bytes_written() const { return archive_filter_bytes(impl_->handle, 0); }

void TarWriter::commit() {
  impl_->require(archive_write_close(impl_->handle) == ARCHIVE_OK, "finish");
  impl_->file.commit();
}

}  // namespace contexture::data
