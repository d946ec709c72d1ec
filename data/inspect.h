// What `contexture data check|stats|pack` do. Each returns a report that prints as text or as one
// JSON object.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/json.h"
#include "data/image.h"
#include "data/records.h"
#include "data/tokenizer.h"

namespace contexture::data {

struct InspectInputs {
  std::string corpus{};                 // .jsonl, tar or brace list; may be empty
  std::vector<std::string> examples{};  // the same
  std::string tokenizer{};              // .model; may be empty
  bool decode_images = true;
  int threads = 2;
  ImageOptions image{};
};

struct CheckReport {
  int64_t documents = 0;  // good ones
  int64_t examples = 0;
  int64_t images = 0;
  BadRecords bad{BadRecords::Policy::kSkip};
  std::vector<std::string> problems;  // every bad record, "file:line: reason"
  std::vector<std::string>
      warnings;  // odd but usable: gold documents without the answer, odd member names ...
  int exit_code() const { return bad.count == 0 ? 0 : 3; }  // 3 = bad input data
  Json to_json() const;
  std::string to_text() const;
};
// Reads everything and lists every bad record. Throws only when a file is missing.
CheckReport check_data(const InspectInputs& inputs);

struct StatsReport {
  Json figures;  // {"corpus":{...},"examples":[{...}]}; the same in to_text()
  std::string to_text() const;
};
// Counts, characters and tokens (with histogram when a tokenizer is given), picture sizes, how many
// answers stand in their gold documents, duplicates. Bad records are skipped and counted.
StatsReport data_stats(const InspectInputs& inputs);

struct PackOptions {
  std::string input{};   // a .jsonl of documents or examples
  std::string output{};  // folder for shard-000000.tar, ...
  int64_t shard_bytes = int64_t{256} << 20;
  BadRecords::Policy policy = BadRecords::Policy::kFail;
};
struct PackReport {
  int64_t samples = 0;
  int64_t images = 0;
  std::vector<std::string> shards;  // paths
  BadRecords bad;
  Json to_json() const;
};
// JSONL with picture files -> WebDataset shards, each written atomically; reading them gives the
// same records. Throws UserError when the folder already holds shards.
PackReport pack(const PackOptions& options);

}  // namespace contexture::data
