// Pictures inside tar shards: those of plain tars are read again from the file when asked for,
// those of compressed shards stay in memory, encoded.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "data/archive.h"
#include "data/records.h"

namespace contexture::data::internal {

class TarImages : public ImageSource {
 public:
  // The name under which read() gives this member: "shard.tar/member". add() is for one thread,
  // before any read().
  std::string add(const std::string& shard, TarMember member, bool keep_bytes);
  std::vector<std::byte> read(const std::string& name) const override;

 private:
  struct Place {
    std::string shard;
    int64_t offset = 0;
    size_t size = 0;
    std::vector<std::byte> bytes;  // kept ones only
    bool kept = false;
  };
  std::unordered_map<std::string, Place> places_;
};

}  // namespace contexture::data::internal
