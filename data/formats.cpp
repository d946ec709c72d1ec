#include "data/formats.h"

#include <algorithm>
#include <filesystem>

#include "core/did_you_mean.h"
#include "core/error.h"
#include "core/files.h"
#include "data/internal/foreign.h"
#include "data/internal/json_stream.h"

namespace contexture::data {
namespace internal {

void Source::guarded(const std::string& where, const char* reason,
                     const std::function<void()>& read) const {
  std::string problem;
  try {
    read();
    return;
  } catch (const DataError& error) {
    // Errors of the visitor and of `bad` itself carry a place and must pass.
    problem = error.what();
    if (problem.starts_with(path)) throw;
  }
  bad.add(where, reason, problem);
}

void Source::records(const std::function<void(const std::string&, const std::string&, Json)>& visit,
                     const std::string& member) const {
  const char first = first_character(text);
  if (first == '\0') return;
  if (member.empty() && looks_like_jsonl(text)) {
    for_each_jsonl(text, path, bad, [&](int64_t line, Json record) {
      visit(concat(path, ":", line), concat(stem, ":", line), std::move(record));
    });
    return;
  }
  int64_t n = 0;
  for_each_element(text, path, first == '{' ? member : "", bad,
                   [&](const std::string& where, Json record) {
                     visit(where, concat(stem, ":", ++n), std::move(record));
                   });
}

Json others(const Json& record, std::initializer_list<const char*> used) {
  Json out = record;
  for (const char* key : used) out.erase(key);
  return out;
}

std::vector<std::string> split_at(std::string_view text, char mark) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(mark), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

namespace {

void own_documents(const Source& source) {
  source.records([&](const std::string& where, const std::string&, Json record) {
    source.guarded(where, "not a document",
                   [&] { source.document(where, parse_document(std::move(record))); });
  });
}

void own_examples(const Source& source) {
  source.records([&](const std::string& where, const std::string& id, Json record) {
    source.guarded(where, "not an example", [&] {
      Example example = parse_example(std::move(record));
      if (example.id.empty()) example.id = id;
      source.example(where, std::move(example));
    });
  });
}

struct Readers {
  ForeignFormat format;
  Reader documents, examples;
};

const std::vector<Readers>& readers() {
  static const std::vector<Readers> all{
      {{"contexture", "our corpus.jsonl", "our examples .jsonl"}, own_documents, own_examples},
      {{"aokvqa", "", "A-OKVQA questions .json"}, nullptr, aokvqa_examples},
      {{"atlas", "passages .jsonl {id?, title, section?, text}, or DPR's .tsv",
        "Atlas or FiD .jsonl or .json {question, answers, ctxs?}"},
       atlas_documents,
       atlas_examples},
      {{"beir", "corpus.jsonl", "queries.jsonl, with --qrels qrels/SPLIT.tsv"},
       beir_documents,
       beir_examples},
      {{"coco", "", "captions .json"}, nullptr, coco_examples},
      {{"dpr", "psgs_w100.tsv",
        "retriever training .json, output .json, or questions .tsv/.csv with answer lists"},
       dpr_documents,
       dpr_examples},
      {{"evqa", "knowledge base .json by url", "questions .csv"}, evqa_documents, evqa_examples},
      {{"flashrag", "corpus .jsonl {id, contents}", ".jsonl {id, question, golden_answers}"},
       flashrag_documents,
       flashrag_examples},
      {{"infoseek", "Wiki6M .jsonl", ".jsonl {data_id, image_id, question, answer}"},
       infoseek_documents,
       infoseek_examples},
      {{"kilt", "knowledge source .jsonl", "task .jsonl {id, input, output}"},
       kilt_documents,
       kilt_examples},
      {{"vqa", "", "questions .json of VQA v2 or OK-VQA, with --annotations"},
       nullptr,
       vqa_examples}};
  return all;
}

const Readers& readers_of(const std::string& name) {
  std::vector<std::string> names;
  for (const Readers& r : readers()) {
    if (r.format.name == name) return r;
    names.push_back(r.format.name);
  }
  throw UsageError(concat(
      "there is no data format '", name, "'.", did_you_mean_hint(name, names), " Known: ",
      [&] {
        std::string list;
        for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
        return list;
      }(),
      "."));
}

void read_file_with(Reader reader, const std::string& path, const ForeignOptions& options,
                    BadRecords& bad, const VisitDocument& document, const VisitExample& example) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  reader(Source{text, path, std::filesystem::path(path).stem().string(), options, bad, document,
                example});
}

}  // namespace
}  // namespace internal

const std::vector<ForeignFormat>& foreign_formats() {
  static const std::vector<ForeignFormat> formats = [] {
    std::vector<ForeignFormat> out;
    for (const auto& r : internal::readers()) out.push_back(r.format);
    return out;
  }();
  return formats;
}

const ForeignFormat& find_format(const std::string& name) {
  return internal::readers_of(name).format;
}

void read_foreign_documents(const std::string& format, const std::string& path, BadRecords& bad,
                            const VisitDocument& visit) {
  const auto& reader = internal::readers_of(format);
  CONTEXTURE_USAGE_REQUIRE(reader.documents != nullptr, "the format ", format,
                           " has no documents.");
  internal::read_file_with(reader.documents, path, {}, bad, visit, {});
}

void read_foreign_examples(const std::string& format, const std::string& path,
                           const ForeignOptions& options, BadRecords& bad,
                           const VisitExample& visit, const VisitDocument& context) {
  internal::read_file_with(internal::readers_of(format).examples, path, options, bad, context,
                           visit);
}

std::string image_name(const std::string& pattern, const std::string& id) {
  const size_t begin = pattern.find("{id");
  const size_t end = begin == std::string::npos ? begin : pattern.find('}', begin);
  CONTEXTURE_USAGE_REQUIRE(end != std::string::npos, "the picture name '", pattern,
                           "' names no {id}; give one as in 'images/{id:012}.jpg'.");
  const std::string how = pattern.substr(begin + 3, end - begin - 3);  // "" or ":012"
  size_t width = 0;
  if (!how.empty()) {
    const bool digits =
        how.size() > 2 && how.size() < 5 && how.starts_with(":0") &&
        std::all_of(how.begin() + 1, how.end(), [](char c) { return c >= '0' && c <= '9'; });
    CONTEXTURE_USAGE_REQUIRE(digits, "the picture name '", pattern, "' holds {id", how,
                             "}: write {id}, or {id:012} to pad with zeros.");
    width = std::stoul(how.substr(1));
  }
  return pattern.substr(0, begin) + std::string(id.size() < width ? width - id.size() : 0, '0') +
         id + pattern.substr(end + 1);
}

}  // namespace contexture::data
