#include "data/records.h"

#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"

namespace contexture::data {

BadRecords::Policy BadRecords::parse_policy(const std::string& text) {
  CONTEXTURE_USAGE_REQUIRE(text == "fail" || text == "skip", "'", text,
                           "' is no policy for bad records: fail or skip.");
  return text == "fail" ? Policy::kFail : Policy::kSkip;
}

void BadRecords::add(const std::string& where, const std::string& reason,
                     const std::string& detail) {
  const std::string text = concat(where, ": ", reason, detail.empty() ? "" : ": ", detail);
  ++count;
  ++by_reason[reason];
  if (first.size() < kMaxNamed) first.push_back(text);
  if (on_each) on_each(text);
  if (policy == Policy::kFail) throw DataError(text);
}

std::string BadRecords::summary() const {
  if (count == 0) return "no bad records";
  std::string text = concat(count, count == 1 ? " bad record (" : " bad records (");
  const char* separator = "";
  for (const auto& [reason, n] : by_reason) {
    text += concat(separator, n, " ", reason);
    separator = ", ";
  }
  return text + "), first: " + first.front();
}

const Document& Corpus::at(const std::string& id) const {
  const auto found = index.find(id);
  CONTEXTURE_DATA_REQUIRE(found != index.end(), "there is no document '", id, "' among the ",
                          documents.size(), " of the corpus.");
  return documents[static_cast<size_t>(found->second)];
}

namespace {

class FolderImages : public ImageSource {
 public:
  explicit FolderImages(std::string root) : root_(std::move(root)) {}

  std::vector<std::byte> read(const std::string& name) const override {
    const auto path = std::filesystem::path(name).lexically_normal();
    CONTEXTURE_DATA_REQUIRE(!name.empty() && !path.is_absolute() && *path.begin() != "..",
                            "picture '", name, "' is no path inside ", root_.string(),
                            ". Give paths relative to the .jsonl file.");
    try {
      const std::string bytes = read_file(root_ / path, uint64_t{1} << 30);
      std::vector<std::byte> copy(bytes.size());
      std::memcpy(copy.data(), bytes.data(), bytes.size());
      return copy;
    } catch (const UserError& error) {
      throw DataError(error.what());
    }
  }

 private:
  std::filesystem::path root_;
};

// Removes `key` from the record. Missing or null gives false.
bool take(Json& record, const char* key, Json& value) {
  const auto found = record.find(key);
  if (found == record.end()) return false;
  value = std::move(*found);
  record.erase(found);
  return !value.is_null();
}

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string take_string(Json& record, const char* key, bool required) {
  Json value;
  if (!take(record, key, value)) {
    CONTEXTURE_DATA_REQUIRE(!required, "field '", key, "' is missing");
    return {};
  }
  CONTEXTURE_DATA_REQUIRE(value.is_string(), "field '", key, "' holds ", shown(value),
                          ", not a string");
  return value.get<std::string>();
}

// Ids may be whole numbers: they are kept as their digits.
std::string as_id(const Json& value, const char* key) {
  if (value.is_number_integer()) return value.dump();
  CONTEXTURE_DATA_REQUIRE(value.is_string() && !value.get_ref<const std::string&>().empty(),
                          "field '", key, "' holds ", shown(value),
                          ", not an id (a string or a whole number)");
  return value.get<std::string>();
}

std::string take_id(Json& record, bool required) {
  Json value;
  if (!take(record, "id", value)) {
    CONTEXTURE_DATA_REQUIRE(!required, "field 'id' is missing");
    return {};
  }
  return as_id(value, "id");
}

Json take_list(Json& record, const char* key) {
  Json value;
  if (!take(record, key, value)) return Json::array();
  CONTEXTURE_DATA_REQUIRE(value.is_array(), "field '", key, "' holds ", shown(value),
                          ", not a list");
  return value;
}

void require_object(const Json& record) {
  CONTEXTURE_DATA_REQUIRE(record.is_object(), "holds ", shown(record), ", not an object");
}

}  // namespace

std::shared_ptr<ImageSource> folder_images(const std::string& root) {
  return std::make_shared<FolderImages>(root);
}

Document parse_document(Json record) {
  require_object(record);
  Document document;
  document.id = take_id(record, true);
  document.title = take_string(record, "title", false);
  document.text = take_string(record, "text", true);
  document.image = take_string(record, "image", false);
  document.meta = std::move(record);
  return document;
}

Example parse_example(Json record) {
  require_object(record);
  Example example;
  example.id = take_id(record, false);
  example.question = take_string(record, "question", true);
  for (const Json& answer : take_list(record, "answers")) {
    CONTEXTURE_DATA_REQUIRE(answer.is_string(), "field 'answers' holds ", shown(answer),
                            ", not strings only");
    example.answers.push_back(answer.get<std::string>());
  }
  for (const Json& id : take_list(record, "documents"))
    example.documents.push_back(as_id(id, "documents"));
  example.image = take_string(record, "image", false);
  example.type = take_string(record, "type", false);
  example.entity = take_string(record, "entity", false);
  example.meta = std::move(record);
  return example;
}

Json to_record(const Document& document) {
  Json record = document.meta.is_object() ? document.meta : Json::object();
  record["id"] = document.id;
  record["title"] = document.title;
  record["text"] = document.text;
  if (!document.image.empty()) record["image"] = document.image;
  return record;
}

Json to_record(const Example& example) {
  Json record = example.meta.is_object() ? example.meta : Json::object();
  record["id"] = example.id;
  record["question"] = example.question;
  record["answers"] = example.answers;
  record["documents"] = example.documents;
  if (!example.image.empty()) record["image"] = example.image;
  if (!example.type.empty()) record["type"] = example.type;
  if (!example.entity.empty()) record["entity"] = example.entity;
  return record;
}

void require_gold_documents(ExampleSet& set, const Corpus& corpus, BadRecords& bad) {
  std::vector<Example> kept;
  kept.reserve(set.examples.size());
  for (Example& example : set.examples) {
    bool whole = true;
    for (const std::string& id : example.documents) {
      if (corpus.index.contains(id)) continue;
      bad.add(concat("example ", example.id), "gold document not in the corpus", id);
      whole = false;
      break;
    }
    if (whole) kept.push_back(std::move(example));
  }
  set.examples = std::move(kept);
}

}  // namespace contexture::data
