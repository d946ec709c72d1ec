// What a system said, in the files that systems write (docs/formats/foreign.md): one record an
// example, with its id, its answer or caption, and the passages that it read.
#pragma once
#include <string>
#include <vector>

#include "data/records.h"
#include "data/trec.h"

namespace contexture::data {

struct Prediction {
  std::string id{}, text{};
  struct Passage {
    std::string id{}, title{}, text{};
    double score = 0.0;  // as given; without one, minus the place from 1
  };
  std::vector<Passage> passages{};  // best first
  bool answered = true;             // the record had a text, even if an empty one
};

// JSONL, a list in a JSON file, or one JSON object from id to text or to A-OKVQA's
// {"direct_answer"}. Of a record, the id is the
// first of "id", "question_id", "data_id", "image_id", "_id", the text the first of "prediction",
// "answer", "caption", or the answer of KILT's only "output", the passages are "ctxs" or
// "documents". Records without an id are named as our examples are, "stem:line", of `stem` when it
// is not empty, else of the file; a record with passages needs no text. Bad records: no text or
// passages, an id met before. DataError when not one record is good.
std::vector<Prediction> read_predictions(const std::string& path, BadRecords& bad,
                                         const std::string& stem = "");

// One JSON object a line, {"id", "prediction", "ctxs": [{"id", "title", "text", "score"}]}, as
// read_predictions reads it.
void write_predictions(const std::string& path, const std::vector<Prediction>& predictions);

// One text for every id, in the order of `ids`: DataError naming some when an id has no prediction
// (or "" for them when `missing_is_empty`); a prediction for another id is a bad record.
std::vector<Prediction> align(std::vector<Prediction> predictions,
                              const std::vector<std::string>& ids, bool missing_is_empty,
                              const std::string& path, BadRecords& bad);

// The passages as a run (data/trec.h); those without an id are left out. An id twice for one
// prediction is a bad record, as is a score that is no finite number when the file is read.
TrecRun to_run(const std::vector<Prediction>& predictions, const std::string& path,
               BadRecords& bad);

}  // namespace contexture::data
