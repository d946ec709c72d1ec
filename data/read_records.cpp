#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "data/archive.h"
#include "data/internal/lines.h"
#include "data/internal/tar_images.h"
#include "data/records.h"

namespace contexture::data {
namespace {

constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Marks stand in the middle of a file too, where files were joined.
std::string_view without_marks(std::string_view line) {
  while (starts_with(line, kUtf8Mark)) line.remove_prefix(kUtf8Mark.size());
  return line;
}

// "corpus.jsonl:12: not JSON: ..." once, not twice: our parser names the place as well.
std::string without_prefix(const std::string& message, const std::string& prefix) {
  return message.rfind(prefix, 0) == 0 ? message.substr(prefix.size()) : message;
}

bool is_tar(const std::string& source) {
  for (const char* end : {".tar", ".tar.gz", ".tgz", ".tar.zst"}) {
    const std::string_view suffix = end;
    if (source.size() >= suffix.size() &&
        source.compare(source.size() - suffix.size(), suffix.size(), suffix) == 0) {
      return true;
    }
  }
  return false;
}

// Calls visit(where, record, fallback_id) for every record of a .jsonl or of tar shards; gives
// their pictures.
std::shared_ptr<ImageSource> for_each_record(
    const std::string& source, BadRecords& bad,
    const std::function<void(const std::string& where, Json record,
                             const std::string& fallback_id)>& visit) {
  if (!is_tar(source)) {
    const MappedFile file(source);
    const auto bytes = file.bytes();
    const std::string stem = std::filesystem::path(source).stem().string();
    for_each_jsonl({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, source, bad,
                   [&](int64_t line, Json record) {
                     visit(concat(source, ":", line), std::move(record), concat(stem, ":", line));
                   });
    const auto folder = std::filesystem::path(source).parent_path();
    return folder_images(folder.empty() ? "." : folder.string());
  }
  auto images = std::make_shared<internal::TarImages>();
  for (const std::string& shard : expand_braces(source)) {
    TarReader reader(shard, bad);
    while (auto sample = reader.next()) {
      const std::string where = concat(shard, ":", sample->key);
      Json record = Json::object();
      if (const auto json = sample->fields.find("json"); json != sample->fields.end()) {
        const auto& bytes = json->second.bytes;
        try {
          record = parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where);
        } catch (const DataError& error) {
          bad.add(where, "not JSON", without_prefix(error.what(), where + ": "));
          continue;
        }
        if (!record.is_object()) {
          bad.add(where, "not an object");
          continue;
        }
      }
      if (const auto text = sample->fields.find("txt");
          text != sample->fields.end() && !record.contains("text")) {
        const auto& bytes = text->second.bytes;
        record["text"] = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
      record.erase("image");
      for (const char* field : {"jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff"}) {
        const auto image = sample->fields.find(field);
        if (image == sample->fields.end()) continue;
        record["image"] = images->add(shard, std::move(image->second), reader.compressed());
        break;
      }
      visit(where, std::move(record), sample->key);
    }
    for (const std::string& name : reader.odd_names()) {
      log::warn("{}: odd member name '{}': the field starts at the first dot of the base name",
                shard, name);
    }
  }
  return images;
}

}  // namespace

void for_each_jsonl(std::string_view text, const std::string& name, BadRecords& bad,
                    const std::function<void(int64_t, Json)>& visit) {
  internal::refuse_utf16(text, name);
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = without_marks(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = concat(name, ":", number);
    Json record;
    try {
      record = parse_json(line, name, {.first_line = static_cast<int>(number)});
    } catch (const DataError& error) {
      bad.add(where, "not JSON", without_prefix(error.what(), where + ":"));
      continue;
    }
    if (!record.is_object()) {
      bad.add(where, "not an object");
      continue;
    }
    visit(number, std::move(record));
  }
}

Corpus read_corpus(const std::string& source, BadRecords& bad) {
  Corpus corpus;
  corpus.images = for_each_record(
      source, bad, [&](const std::string& where, Json record, const std::string& key) {
        if (is_tar(source) && !record.contains("id")) record["id"] = key;
        Document document;
        try {
          document = parse_document(std::move(record));
        } catch (const DataError& error) {
          bad.add(where, "not a document", error.what());
          return;
        }
        const auto position = static_cast<int64_t>(corpus.documents.size());
        if (!corpus.index.emplace(document.id, position).second) {
          bad.add(where, "duplicate id", document.id);
          return;
        }
        corpus.documents.push_back(std::move(document));
      });
  CONTEXTURE_DATA_REQUIRE(!corpus.documents.empty(), source, ": not one good document; ",
                          bad.summary());
  return corpus;
}

ExampleSet read_examples(const std::string& source, BadRecords& bad) {
  ExampleSet set;
  std::unordered_set<std::string> ids;
  set.images = for_each_record(source, bad,
                               [&](const std::string& where, Json record, const std::string& key) {
                                 Example example;
                                 try {
                                   example = parse_example(std::move(record));
                                 } catch (const DataError& error) {
                                   bad.add(where, "not an example", error.what());
                                   return;
                                 }
                                 if (example.id.empty()) example.id = key;
                                 if (!ids.insert(example.id).second) {
                                   bad.add(where, "duplicate id", example.id);
                                   return;
                                 }
                                 set.examples.push_back(std::move(example));
                               });
  CONTEXTURE_DATA_REQUIRE(!set.examples.empty(), source, ": not one good example; ", bad.summary());
  return set;
}

}  // namespace contexture::data
