// WebDataset tar shards (docs/formats/webdataset.md): a sample is a run of adjacent members that
// share a key; the key is the path up to the first dot of the base name, the field is the rest,
// lower-cased. Reads ustar, GNU and PAX names, plain or compressed (gzip, zstd ...). The only user
// of libarchive.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/records.h"

namespace contexture::data {

struct TarMember {
  std::string name;    // as stored, case kept
  int64_t offset = 0;  // of the body in the uncompressed stream
  std::vector<std::byte> bytes;
};

struct TarSample {
  std::string key;
  std::string shard;                        // path of the tar
  std::map<std::string, TarMember> fields;  // "jpg", "txt", "json", "left.png" ...
};

// "shard-{000000..000123}.tar" and "{a,b}.tar" (several braces multiply). Zero padding is kept. A
// plain path gives itself. Throws UserError for an unclosed brace, a reversed range or more than
// 1,000,000 names.
std::vector<std::string> expand_braces(const std::string& pattern);

// Splits at the first dot of the base name: {"a/v1", "2.txt"} for "a/v1.2.txt". No dot gives an
// empty field.
std::pair<std::string, std::string> split_member_name(const std::string& name);

// Delivers the samples of one shard in order. A damaged or truncated shard delivers every sample
// that is whole, then is reported to `bad` with the byte offset (which throws under policy "fail").
// Missing end-of-archive blocks are accepted. Directories, links, devices and names such as
// `__meta__` are skipped. One thread at a time.
class TarReader {
 public:
  // `max_member_bytes` bounds what one member may claim before its bytes are read.
  TarReader(const std::string& path, BadRecords& bad, int64_t max_member_bytes = int64_t{1} << 30);
  // The same from memory; `bytes` must outlive the reader, `name` is for messages.
  TarReader(std::span<const std::byte> bytes, const std::string& name, BadRecords& bad,
            int64_t max_member_bytes = int64_t{1} << 30);
  ~TarReader();
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;

  std::optional<TarSample> next();
  bool compressed() const;  // true when the shard is not a plain tar (known after the first next())
  // Names with more than one dot in the base name, at most ten: their field is "2.txt", probably
  // not what was meant.
  const std::vector<std::string>& odd_names() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes a plain PAX tar, byte for byte the same for the same content. commit() makes it appear
// under its name; without it nothing stays.
class TarWriter {
 public:
  explicit TarWriter(const std::string& path);
  ~TarWriter();
  TarWriter(const TarWriter&) = delete;
  TarWriter& operator=(const TarWriter&) = delete;

  void add(const std::string& name, std::span<const std::byte> bytes);
  int64_t bytes_written() const;
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace contexture::data
