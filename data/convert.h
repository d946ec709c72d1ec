// What `contexture data convert` does: files of a foreign format in, our corpus.jsonl and examples
// out.
#pragma once
#include <string>
#include <vector>

#include "core/json.h"
#include "data/formats.h"

namespace contexture::data {

struct ConvertOptions {
  std::string from{};                   // a format of formats.h
  std::string folder{};                 // beir only: a data set's folder, in place of the files
  std::vector<std::string> corpus{};    // files of documents
  std::vector<std::string> examples{};  // files of examples; each becomes OUTPUT/<its name>.jsonl
  std::string
      images{};  // folder of pictures: linked as OUTPUT/images, where their names then begin
  std::string output{};  // folder, made if needed
  ForeignOptions foreign{};
  BadRecords::Policy policy = BadRecords::Policy::kFail;
};

struct ConvertReport {
  int64_t documents = 0, examples = 0;
  std::vector<std::string> files;  // written
  BadRecords bad;
  Json to_json() const;
};

// Reads and writes one record at a time; of the documents it keeps 8 to 16 bytes each (to find ids
// met before, which are bad records). Passages that examples carry along go to corpus.jsonl too,
// once each, when no corpus is given. The files appear at the end, whole, the corpus first: after
// an error there are none. Throws UserError when a file to write exists, UsageError when there is
// nothing to read, DataError when not one record of a file is good.
ConvertReport convert(const ConvertOptions& options);

}  // namespace contexture::data
