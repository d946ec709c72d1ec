// The readers behind data/formats.h: text formats in foreign_text.cpp, picture formats in
// foreign_pictures.cpp.
#pragma once
#include <string>
#include <string_view>

#include "data/formats.h"

namespace contexture::data::internal {

// One source file being read.
struct Source {
  std::string_view text;
  std::string path, stem;
  const ForeignOptions& options;
  BadRecords& bad;
  const VisitDocument& document;  // documents, or the passages that examples carry; may be empty
  const VisitExample& example;

  // Runs `read`; a DataError that it throws makes the record a bad one.
  void guarded(const std::string& where, const char* reason,
               const std::function<void()>& read) const;
  // Every object of a JSONL file, or of a list in a JSON file (at the root, or under `member`).
  void records(const std::function<void(const std::string& where, const std::string& fallback_id,
                                        Json record)>& visit,
               const std::string& member = "") const;
};

using Reader = void (*)(const Source&);

void kilt_documents(const Source&);
void kilt_examples(const Source&);
void dpr_documents(const Source&);
void dpr_examples(const Source&);
void atlas_documents(const Source&);
void atlas_examples(const Source&);
void flashrag_documents(const Source&);
void flashrag_examples(const Source&);
void beir_documents(const Source&);
void beir_examples(const Source&);

void coco_examples(const Source&);
void vqa_examples(const Source&);
void aokvqa_examples(const Source&);
void infoseek_documents(const Source&);
void infoseek_examples(const Source&);
void evqa_documents(const Source&);
void evqa_examples(const Source&);

// A JSON object's members that `used` does not name: kept beside ours.
Json others(const Json& record, std::initializer_list<const char*> used);
// "a|b" -> {"a", "b"}, without empty parts.
std::vector<std::string> split_at(std::string_view text, char mark);

}  // namespace contexture::data::internal
