#include <algorithm>
#include <unordered_map>

#include "core/error.h"
#include "core/hash.h"
#include "data/internal/delimited.h"
#include "data/internal/fields.h"
#include "data/internal/foreign.h"
#include "data/kilt.h"
#include "data/trec.h"

namespace contexture::data::internal {
namespace {

void add_distinct(std::vector<std::string>& list, const std::string& id) {
  if (!id.empty() && std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
}

// A passage that stands in an example: {"title","text"} with an id under one of several names, else
// one made from its content.
Document context_of(const Json& record) {
  Document document;
  document.title = text_field(record, "title", false);
  document.text = text_field(record, "text");
  const char* key = first_of(record, {"passage_id", "psg_id", "id"});
  document.id =
      key != nullptr
          ? id_field(record, key)
          : concat("passage-", sha256_hex(document.title + "\n" + document.text).substr(0, 16));
  return document;
}

// Hands the passages of a list over and gives their ids.
std::vector<std::string> contexts(const Source& source, const std::string& where,
                                  const Json& record, const char* key) {
  std::vector<std::string> ids;
  for (const Json& passage : list_field(record, key)) {
    Document document = context_of(passage);
    add_distinct(ids, document.id);
    if (source.document) source.document(where, std::move(document));
  }
  return ids;
}

// A question with its answers, and "ctxs" or "passages" that were retrieved for it: those marked as
// holding the answer are its documents.
Example with_contexts(const Source& source, const std::string& where,
                      const std::string& fallback_id, const Json& record) {
  Example example;
  example.id = id_field(record, "id", false);
  if (example.id.empty()) example.id = fallback_id;
  example.question = text_field(record, "question");
  example.answers = texts_field(record, "answers");
  if (example.answers.empty()) example.answers = texts_field(record, "target");
  example.meta = others(record, {"id", "question", "answers", "ctxs", "passages", "positive_ctxs",
                                 "negative_ctxs", "hard_negative_ctxs"});
  for (const char* key : {"ctxs", "passages"}) {
    const std::vector<std::string> retrieved = contexts(source, where, record, key);
    if (!retrieved.empty()) example.meta["retrieved"] = retrieved;
    for (const Json& passage : list_field(record, key)) {
      const auto mark = passage.find("has_answer");
      if (mark != passage.end() && mark->is_boolean() && mark->get<bool>())
        add_distinct(example.documents, context_of(passage).id);
    }
  }
  return example;
}

// psgs_w100.tsv: id, text, title.
void passage_rows(const Source& source) {
  for_each_row(source.text, source.path, '\t', source.bad,
               [&](const std::string& where, std::vector<std::string> cells) {
                 if (cells.size() >= 2 && cells[0] == "id" && cells[1] == "text") return;
                 source.guarded(where, "not a passage", [&] {
                   CONTEXTURE_DATA_REQUIRE(cells.size() == 3, cells.size(),
                                           " columns, where id, text and title are 3");
                   CONTEXTURE_DATA_REQUIRE(!cells[0].empty(), "the id is empty");
                   Document document;
                   document.id = cells[0];
                   document.text = cells[1];
                   document.title = cells[2];
                   source.document(where, std::move(document));
                 });
               });
}

}  // namespace

void dpr_documents(const Source& source) { passage_rows(source); }

void dpr_examples(const Source& source) {
  if (source.path.ends_with(".json") || source.path.ends_with(".jsonl")) {
    source.records([&](const std::string& where, const std::string& id, Json record) {
      source.guarded(where, "not a DPR question", [&] {
        Example example = with_contexts(source, where, id, record);
        for (const std::string& gold : contexts(source, where, record, "positive_ctxs"))
          add_distinct(example.documents, gold);
        for (const char* key : {"negative_ctxs", "hard_negative_ctxs"}) {
          const auto negatives = contexts(source, where, record, key);
          if (!negatives.empty()) example.meta[key] = negatives;
        }
        source.example(where, std::move(example));
      });
    });
    return;
  }
  int64_t n = 0;
  for_each_row(source.text, source.path, '\t', source.bad,
               [&](const std::string& where, std::vector<std::string> cells) {
                 ++n;
                 source.guarded(where, "not a DPR question", [&] {
                   CONTEXTURE_DATA_REQUIRE(cells.size() == 2, cells.size(),
                                           " columns, where question and answers are 2");
                   Example example;
                   example.id = concat(source.stem, ":", n);
                   example.question = cells[0];
                   example.answers = parse_python_list(cells[1]);
                   source.example(where, std::move(example));
                 });
               });
}

void atlas_documents(const Source& source) {
  if (source.path.ends_with(".tsv")) return passage_rows(source);
  source.records([&](const std::string& where, const std::string& fallback_id, Json record) {
    source.guarded(where, "not a passage", [&] {
      Document document;
      document.id = id_field(record, "id", false);
      if (document.id.empty()) document.id = fallback_id;
      document.title = text_field(record, "title", false);
      const std::string section = text_field(record, "section", false);
      if (!section.empty()) document.title += (document.title.empty() ? "" : ": ") + section;
      document.text = text_field(record, "text");
      document.meta = others(record, {"id", "title", "text"});
      source.document(where, std::move(document));
    });
  });
}

void atlas_examples(const Source& source) {
  source.records([&](const std::string& where, const std::string& id, Json record) {
    source.guarded(where, "not a question",
                   [&] { source.example(where, with_contexts(source, where, id, record)); });
  });
}

void flashrag_documents(const Source& source) {
  source.records([&](const std::string& where, const std::string&, Json record) {
    source.guarded(where, "not a FlashRAG document", [&] {
      Document document;
      document.id = id_field(record, "id");
      document.title = text_field(record, "title", false);
      if (first_of(record, {"contents"}) !=
          nullptr) {  // the title, often in quotes, is its first line
        const std::string contents = text_field(record, "contents");
        const size_t end = contents.find('\n');
        if (end != std::string::npos && document.title.empty()) {
          document.title = contents.substr(0, end);
          if (document.title.size() > 1 && document.title.front() == '"' &&
              document.title.back() == '"') {
            document.title = document.title.substr(1, document.title.size() - 2);
          }
        }
        document.text = end == std::string::npos ? contents : contents.substr(end + 1);
      } else {
        document.text = text_field(record, "text");
      }
      document.meta = others(record, {"id", "title", "text", "contents"});
      source.document(where, std::move(document));
    });
  });
}

void flashrag_examples(const Source& source) {
  source.records([&](const std::string& where, const std::string& fallback_id, Json record) {
    source.guarded(where, "not a FlashRAG question", [&] {
      Example example;
      example.id = id_field(record, "id", false);
      if (example.id.empty()) example.id = fallback_id;
      example.question = text_field(record, "question");
      example.answers = texts_field(record, "golden_answers");
      example.meta = others(record, {"id", "question", "golden_answers"});
      source.example(where, std::move(example));
    });
  });
}

void kilt_documents(const Source& source) {
  source.records([&](const std::string& where, const std::string&, Json record) {
    source.guarded(where, "not a KILT page", [&] {
      Document document;
      document.id = id_field(record, "wikipedia_id");
      document.title = text_field(record, "wikipedia_title", false);
      for (const std::string& paragraph : texts_field(record, "text")) {
        const std::string_view text = strip(paragraph);
        if (text.empty() || text == document.title) continue;  // a page begins with its title
        if (!document.text.empty()) document.text += '\n';
        document.text += text;
      }
      source.document(where, std::move(document));
    });
  });
}

void kilt_examples(const Source& source) {
  source.records([&](const std::string& where, const std::string&, Json record) {
    source.guarded(where, "not a KILT record", [&] {
      const KiltRecord kilt = parse_kilt(record);
      Example example;
      example.id = kilt.id;
      example.question = text_field(record, "input");
      example.answers = kilt.answers();
      for (const KiltOutput& output : kilt.outputs) {
        for (const KiltProvenance& evidence : output.provenance)
          add_distinct(example.documents, evidence.wikipedia_id);
      }
      example.meta = others(
          record, {"id", "input"});  // with "output", so that KILT's scores can be had from it
      source.example(where, std::move(example));
    });
  });
}

void beir_documents(const Source& source) {
  source.records([&](const std::string& where, const std::string&, Json record) {
    source.guarded(where, "not a BEIR document", [&] {
      Document document;
      document.id = id_field(record, "_id");
      document.title = text_field(record, "title", false);
      document.text = text_field(record, "text");
      document.meta = others(record, {"_id", "title", "text"});
      source.document(where, std::move(document));
    });
  });
}

// The queries that the judgments name; those of another split are passed over.
void beir_examples(const Source& source) {
  const bool all = source.options.unjudged && source.options.qrels.empty();
  CONTEXTURE_USAGE_REQUIRE(all || !source.options.qrels.empty(),
                           "beir's queries need their judgments: give --qrels qrels/SPLIT.tsv.");
  const Qrels qrels = all ? Qrels{} : read_qrels(source.options.qrels, source.bad);
  source.records([&](const std::string& where, const std::string&, Json record) {
    source.guarded(where, "not a BEIR query", [&] {
      Example example;
      example.id = id_field(record, "_id");
      const auto judged = qrels.find(example.id);
      if (judged == qrels.end() && !all) return;
      example.question = text_field(record, "text");
      example.meta = others(record, {"_id", "text"});
      if (!all) {
        for (const auto& [document, relevance] : judged->second) {
          if (relevance > 0) example.documents.push_back(document);
        }
        example.meta["relevance"] = judged->second;
      }
      source.example(where, std::move(example));
    });
  });
}

}  // namespace contexture::data::internal
