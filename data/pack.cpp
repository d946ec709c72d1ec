#include <filesystem>
#include <iomanip>
#include <memory>
#include <sstream>

#include "core/error.h"
#include "core/files.h"
#include "data/archive.h"
#include "data/inspect.h"

namespace contexture::data {
namespace {

std::string numbered(const std::string& prefix, int64_t number, int digits) {
  std::ostringstream name;
  name << prefix << std::setw(digits) << std::setfill('0') << number;
  return std::move(name).str();
}

// Starts a shard when the last one is full; each appears under its name only once whole.
class ShardWriter {
 public:
  ShardWriter(std::string folder, int64_t shard_bytes)
      : folder_(std::move(folder)), shard_bytes_(shard_bytes) {}

  void next_sample() {
    if (tar_ && tar_->bytes_written() >= shard_bytes_) finish();
    if (tar_) return;
    path_ = folder_ + "/" + numbered("shard-", static_cast<int64_t>(paths_.size()), 6) + ".tar";
    tar_ = std::make_unique<TarWriter>(path_);
  }
  void add(const std::string& name, std::span<const std::byte> bytes) { tar_->add(name, bytes); }
  void finish() {
    if (!tar_) return;
    tar_->commit();
    tar_.reset();
    paths_.push_back(path_);
  }
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  std::string folder_;
  int64_t shard_bytes_;
  std::string path_;
  std::unique_ptr<TarWriter> tar_;
  std::vector<std::string> paths_;
};

// The extension says what the bytes are, whatever the file was called.
std::string extension(std::span<const std::byte> bytes, const std::string& name) {
  const std::string format = probe_image(bytes, name).format;
  return format == "jpeg" ? "jpg" : format;
}

}  // namespace

PackReport pack(const PackOptions& options) {
  CONTEXTURE_REQUIRE(options.shard_bytes > 0, "shard_bytes=", options.shard_bytes,
                     " must be positive.");
  make_folders(options.output);
  for (const auto& entry : std::filesystem::directory_iterator(options.output)) {
    CONTEXTURE_REQUIRE(entry.path().extension() != ".tar", options.output, " already holds ",
                       entry.path().filename().string(), ". Give an empty folder.");
  }
  PackReport report;
  report.bad = BadRecords(options.policy);
  const auto images =
      folder_images(std::filesystem::path(options.input).parent_path().empty()
                        ? "."
                        : std::filesystem::path(options.input).parent_path().string());
  ShardWriter shards(options.output, options.shard_bytes);
  const MappedFile file(options.input);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  for_each_jsonl(text, options.input, report.bad, [&](int64_t line, Json record) {
    const std::string where = concat(options.input, ":", line);
    try {
      // Whichever it is, it must be a whole one.
      record.contains("question") ? static_cast<void>(parse_example(record))
                                  : static_cast<void>(parse_document(record));
    } catch (const DataError& error) {
      report.bad.add(where, "no document or example", error.what());
      return;
    }
    std::vector<std::byte> bytes;
    std::string field;
    if (record.contains("image") && record["image"].is_string() && record["image"] != "") {
      const auto name = record["image"].get<std::string>();
      try {
        bytes = images->read(name);
        field = extension(bytes, name);
      } catch (const DataError& error) {
        report.bad.add(where, "unreadable picture", error.what());
        return;
      }
      record.erase("image");
    }
    if (!record.contains("id"))
      record["id"] = concat(std::filesystem::path(options.input).stem().string(), ":", line);
    shards.next_sample();
    const std::string key = numbered("", report.samples++, 8);
    shards.add(key + ".json", as_bytes(record.dump()));
    if (field.empty()) return;
    shards.add(key + "." + field, bytes);
    ++report.images;
  });
  CONTEXTURE_DATA_REQUIRE(report.samples > 0, options.input, ": not one good record; ",
                          report.bad.summary());
  shards.finish();
  report.shards = shards.paths();
  return report;
}

Json PackReport::to_json() const {
  return {{"samples", samples},       {"images", images},           {"shards", shards},
          {"bad_records", bad.count}, {"by_reason", bad.by_reason}, {"first_bad", bad.first}};
}

}  // namespace contexture::data
