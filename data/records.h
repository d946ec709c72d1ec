// Documents and examples, and how they are read from JSONL (docs/formats/jsonl.md) and WebDataset
// shards. A bad record is never silently lost: it is named ("file:line: reason"), counted, and
// skipped or fatal as asked.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/json.h"

namespace contexture::data {

struct Document {
  std::string id{}, title{}, text{};
  std::string image{};         // name within the corpus's ImageSource, or empty
  Json meta = Json::object();  // every other field of the record ("kind", "facts", ...)
};

struct Example {
  std::string id{}, question{};
  std::vector<std::string> answers{};
  std::string image{};                   // name within the set's ImageSource, or empty
  std::vector<std::string> documents{};  // ids of the gold documents
  std::string type{}, entity{};
  Json meta = Json::object();
};

// Counts and names what was wrong. Not thread-safe.
struct BadRecords {
  enum class Policy { kFail, kSkip };
  static constexpr size_t kMaxNamed = 20;

  explicit BadRecords(Policy policy = Policy::kFail) : policy(policy) {}
  static Policy parse_policy(const std::string& text);  // "fail" or "skip"; throws UsageError

  Policy policy;
  int64_t count = 0;
  std::map<std::string, int64_t> by_reason;  // short reason to count
  std::vector<std::string> first;            // "file:line: reason: detail", the first kMaxNamed
  std::function<void(const std::string&)> on_each;  // when set, is told of every one

  // Counts it. Throws DataError with the same text under kFail.
  void add(const std::string& where, const std::string& reason, const std::string& detail = "");
  std::string summary()
      const;  // "3 bad records skipped (2 not JSON, 1 duplicate id): a.jsonl:7: ..."
};

// Where encoded pictures come from. Thread-safe.
class ImageSource {
 public:
  virtual ~ImageSource() = default;
  // Throws DataError naming the picture when there is none of that name.
  virtual std::vector<std::byte> read(const std::string& name) const = 0;
};

// Pictures are files; names are paths relative to `root`, and may not leave it.
std::shared_ptr<ImageSource> folder_images(const std::string& root);

struct Corpus {
  std::vector<Document> documents;
  std::unordered_map<std::string, int64_t> index;  // id to position in documents
  std::shared_ptr<ImageSource> images;
  // Throws DataError naming the id when there is no such document.
  const Document& at(const std::string& id) const;
};

struct ExampleSet {
  std::vector<Example> examples;
  std::shared_ptr<ImageSource> images;
};

// `source` is a .jsonl file, a tar, or a brace list of tars ("shard-{000..123}.tar"). Byte-order
// marks, CRLF and empty lines are accepted; UTF-16, raw NULs, lone surrogates, wrong types, missing
// fields and duplicate ids are bad records. Throws DataError when a file is missing, or when not
// one record is good.
Corpus read_corpus(const std::string& source, BadRecords& bad);
ExampleSet read_examples(const std::string& source, BadRecords& bad);

// Calls visit(line_number, record) for each JSON object of `text`; `name` is used in messages.
void for_each_jsonl(std::string_view text, const std::string& name, BadRecords& bad,
                    const std::function<void(int64_t, Json)>& visit);

// One record. Throws DataError saying which field is wrong and what it holds.
Document parse_document(Json record);
Example parse_example(Json record);
Json to_record(const Document& document);  // the inverse, unknown fields included
Json to_record(const Example& example);

// Removes examples whose gold documents aren't in the corpus; each is reported to `bad`.
void require_gold_documents(ExampleSet& set, const Corpus& corpus, BadRecords& bad);

}  // namespace contexture::data
