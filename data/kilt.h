// KILT's records: a question with its outputs, each an answer, its evidence, or both. Gold files
// and systems' guesses have the same form (docs/formats/foreign.md).
#pragma once
#include <string>
#include <vector>

#include "core/json.h"

namespace contexture::data {

struct KiltProvenance {
  std::string wikipedia_id, title, text;  // the latter two often empty
};

struct KiltOutput {
  std::string answer;                      // stripped; empty: none given
  std::vector<KiltProvenance> provenance;  // those with a wikipedia_id, in their order
  bool has_provenance = false;             // the field was there, even if empty
};

struct KiltRecord {
  std::string id, input;
  std::vector<KiltOutput> outputs;  // empty in test files
  Json meta = Json::object();       // "meta" of the record

  std::vector<std::string> answers() const;  // the distinct non-empty ones, in their order
};

// Throws DataError saying which field is wrong and what it holds. Answers that are numbers are kept
// as their digits.
KiltRecord parse_kilt(const Json& record);

}  // namespace contexture::data
