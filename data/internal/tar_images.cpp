#include "data/internal/tar_images.h"

#include <fstream>

#include "core/error.h"

namespace contexture::data::internal {

std::string TarImages::add(const std::string& shard, TarMember member, bool keep_bytes) {
  std::string name = shard + "/" + member.name;
  // Two members of one name are legal in a tar; each keeps its picture.
  while (places_.contains(name)) name += "+";
  Place place{shard, member.offset, member.bytes.size(), {}, keep_bytes};
  if (keep_bytes) place.bytes = std::move(member.bytes);
  places_.emplace(name, std::move(place));
  return name;
}

std::vector<std::byte> TarImages::read(const std::string& name) const {
  const auto found = places_.find(name);
  CONTEXTURE_DATA_REQUIRE(found != places_.end(), "there is no picture '", name,
                          "' in the shards.");
  const Place& place = found->second;
  if (place.kept) return place.bytes;
  std::vector<std::byte> bytes(place.size);
  std::ifstream file(place.shard, std::ios::binary);
  file.seekg(place.offset);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  CONTEXTURE_DATA_REQUIRE(file.good() || bytes.empty(), name, ": can't be read again; was ",
                          place.shard, " changed meanwhile?");
  return bytes;
}

}  // namespace contexture::data::internal
