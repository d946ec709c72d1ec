// The data sets of the field, in the files that they come in, read as our documents and examples
// one at a time (docs/formats/foreign.md lists the fields): 21 million passages need no more memory
// than one. A bad record is named ("file:line: reason"), counted, and skipped or fatal as asked.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "data/records.h"

namespace contexture::data {

struct ForeignOptions {
  std::string annotations{};  // vqa: the file of the answers; may be empty for a test set
  std::string
      image_name{};  // of a picture: "{id}" or "{id:012}" stands for its id; "" = the format's own
  std::string prompt = "Describe the picture.";  // coco: the question of every example
  std::string qrels{};                           // beir: the judgments of the queries file
  bool unjudged = false;  // beir: all queries, without judgments where qrels is empty
};

using VisitDocument = std::function<void(const std::string& where, Document document)>;
using VisitExample = std::function<void(const std::string& where, Example example)>;

struct ForeignFormat {
  std::string name;
  std::string documents;  // what --corpus takes, or "" when the format has no documents
  std::string examples;   // what --examples takes
};
// "contexture", "aokvqa", "atlas", "beir", "coco", "dpr", "evqa", "flashrag", "infoseek", "kilt",
// "vqa".
const std::vector<ForeignFormat>& foreign_formats();
// Throws UsageError with the nearest name when there is no such format.
const ForeignFormat& find_format(const std::string& name);

// Throws UsageError when the format has none, UserError when the file can't be read. Ids are not
// checked for duplicates here.
void read_foreign_documents(const std::string& format, const std::string& path, BadRecords& bad,
                            const VisitDocument& visit);

// `context` (may be empty) is called for the passages that an example carries along (dpr, atlas),
// before it. An example without an id is named by its place, "dev:12".
void read_foreign_examples(const std::string& format, const std::string& path,
                           const ForeignOptions& options, BadRecords& bad,
                           const VisitExample& visit, const VisitDocument& context = {});

// The "annotations" of VQA v2 or OK-VQA alone, to score against. A question answered before is a
// bad record.
struct VqaAnnotation {
  std::string id;                    // of the question
  std::vector<std::string> answers;  // the annotators', in their order
  std::string type;                  // answer_type
};
std::vector<VqaAnnotation> read_vqa_annotations(const std::string& path, BadRecords& bad);

// A picture's name: `pattern` with {id}, or {id:0W} padded with zeros to W digits, replaced.
std::string image_name(const std::string& pattern, const std::string& id);

}  // namespace contexture::data
