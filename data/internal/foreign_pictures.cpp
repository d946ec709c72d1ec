#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/files.h"
#include "data/internal/delimited.h"
#include "data/internal/fields.h"
#include "data/internal/foreign.h"
#include "data/internal/json_stream.h"

namespace contexture::data::internal {
namespace {

std::string picture(const Source& source, const std::string& id, const char* default_pattern) {
  return image_name(source.options.image_name.empty() ? default_pattern : source.options.image_name,
                    id);
}

std::string_view view(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Distinct, those given most often first.
std::vector<std::string> by_frequency(const std::vector<std::string>& answers) {
  std::vector<std::string> out;
  for (const std::string& answer : answers) {
    if (std::find(out.begin(), out.end(), answer) == out.end()) out.push_back(answer);
  }
  const auto times = [&](const std::string& answer) {
    return std::count(answers.begin(), answers.end(), answer);
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](const auto& a, const auto& b) { return times(a) > times(b); });
  return out;
}

}  // namespace

void vqa_examples(const Source& source) {
  std::unordered_map<std::string, VqaAnnotation> annotations;
  const bool annotated = !source.options.annotations.empty();
  if (annotated) {
    for (VqaAnnotation& annotation : read_vqa_annotations(source.options.annotations, source.bad)) {
      annotations.emplace(annotation.id, std::move(annotation));
    }
  }
  source.records(
      [&](const std::string& where, const std::string&, Json record) {
        source.guarded(where, "not a VQA question", [&] {
          Example example;
          example.id = id_field(record, "question_id");
          example.question = text_field(record, "question");
          const std::string image = id_field(record, "image_id");
          example.image = picture(source, image, "{id:012}.jpg");
          example.meta = {{"image_id", image}};
          if (annotated) {
            const auto found = annotations.find(example.id);
            CONTEXTURE_DATA_REQUIRE(found != annotations.end(), "question ", example.id,
                                    " has no annotation");
            example.answers = by_frequency(found->second.answers);
            example.type = found->second.type;
            example.meta["annotator_answers"] = found->second.answers;
          }
          source.example(where, std::move(example));
        });
      },
      "questions");
}

void aokvqa_examples(const Source& source) {
  source.records([&](const std::string& where, const std::string&, Json record) {
    source.guarded(where, "not an A-OKVQA question", [&] {
      Example example;
      example.id = id_field(record, "question_id");
      example.question = text_field(record, "question");
      example.image = picture(source, id_field(record, "image_id"), "{id:012}.jpg");
      example.meta = others(record, {"question_id", "question", "direct_answers"});
      const std::vector<std::string> given = texts_field(record, "direct_answers");
      if (!given.empty()) {  // test questions have none
        example.answers = by_frequency(given);
        example.meta["annotator_answers"] = given;
      }
      source.example(where, std::move(example));
    });
  });
}

void coco_examples(const Source& source) {
  std::unordered_map<std::string, std::string> files;
  for_each_element(source.text, source.path, "images", source.bad,
                   [&](const std::string& where, Json record) {
                     source.guarded(where, "not a COCO image", [&] {
                       files[id_field(record, "id")] = text_field(record, "file_name", false);
                     });
                   });
  std::vector<std::string> order;  // images as their first caption comes
  std::unordered_map<std::string, std::vector<std::string>> captions;
  for_each_element(source.text, source.path, "annotations", source.bad,
                   [&](const std::string& where, Json record) {
                     source.guarded(where, "not a COCO caption", [&] {
                       const std::string image = id_field(record, "image_id");
                       CONTEXTURE_DATA_REQUIRE(files.contains(image), "there is no image ", image,
                                               " under 'images'");
                       auto& list = captions[image];
                       list.push_back(text_field(record, "caption"));
                       if (list.size() == 1) order.push_back(image);
                     });
                   });
  for (const std::string& image : order) {
    Example example;
    example.id = image;
    example.question = source.options.prompt;
    example.answers = captions[image];
    const std::string& file = files[image];
    example.image = source.options.image_name.empty() && !file.empty()
                        ? file
                        : picture(source, image, "{id:012}.jpg");
    source.example(source.path, std::move(example));
  }
}

void infoseek_documents(const Source& source) {
  source.records([&](const std::string& where, const std::string&, Json record) {
    source.guarded(where, "not a Wiki6M entry", [&] {
      Document document;
      document.id = id_field(record, "wikidata_id");
      document.title = text_field(record, "wikipedia_title", false);
      const char* text = first_of(record, {"wikipedia_content", "wikipedia_summary"});
      CONTEXTURE_DATA_REQUIRE(text != nullptr, "field 'wikipedia_content' is missing");
      document.text = text_field(record, text);
      document.meta = others(record, {"wikidata_id", "wikipedia_title", "wikipedia_content"});
      source.document(where, std::move(document));
    });
  });
}

void infoseek_examples(const Source& source) {
  source.records([&](const std::string& where, const std::string&, Json record) {
    source.guarded(where, "not an InfoSeek question", [&] {
      Example example;
      example.id = id_field(record, "data_id");
      example.question = text_field(record, "question");
      example.answers = texts_field(record, "answer");
      example.image = picture(source, id_field(record, "image_id"), "{id}.jpg");
      example.entity = id_field(record, "entity_id", false);
      if (!example.entity.empty()) example.documents = {example.entity};
      example.meta = others(record, {"data_id", "question", "answer", "entity_id"});
      source.example(where, std::move(example));
    });
  });
}

void evqa_documents(const Source& source) {
  for_each_member(
      source.text, source.path, source.bad,
      [&](const std::string& where, const std::string& url, Json page) {
        source.guarded(where, "not a knowledge base page", [&] {
          Document document;
          document.id = url;
          document.title = text_field(page, "title", false);
          const auto titles = texts_field(page, "section_titles"),
                     texts = texts_field(page, "section_texts");
          CONTEXTURE_DATA_REQUIRE(titles.size() == texts.size(), titles.size(),
                                  " section titles for ", texts.size(), " section texts");
          for (size_t i = 0; i < texts.size(); ++i) {
            if (strip(texts[i]).empty()) continue;
            document.text += (document.text.empty() ? "" : "\n") + titles[i] + "\n" + texts[i];
          }
          source.document(where, std::move(document));
        });
      });
}

void evqa_examples(const Source& source) {
  std::vector<std::string> header;
  int64_t n = 0;
  for_each_row(source.text, source.path, ',', source.bad,
               [&](const std::string& where, std::vector<std::string> cells) {
                 if (header.empty()) {
                   for (const char* name : {"question", "answer", "question_type"}) {
                     CONTEXTURE_DATA_REQUIRE(
                         std::find(cells.begin(), cells.end(), name) != cells.end(), where,
                         ": the header has no column '", name, "'");
                   }
                   header = std::move(cells);
                   return;
                 }
                 ++n;
                 source.guarded(where, "not an Encyclopedic-VQA question", [&] {
                   CONTEXTURE_DATA_REQUIRE(cells.size() == header.size(), cells.size(),
                                           " columns, where the header has ", header.size());
                   Json record = Json::object();
                   for (size_t i = 0; i < header.size(); ++i) record[header[i]] = cells[i];
                   Example example;
                   example.id = concat(source.stem, ":", n);
                   example.question = record["question"];
                   example.type = record["question_type"];
                   for (std::string answer : split_at(record["answer"].get<std::string>(), '|')) {
                     for (size_t at; (at = answer.find("&&")) != std::string::npos;)
                       answer.replace(at, 2, ", ");
                     example.answers.push_back(std::move(answer));
                   }
                   example.documents = split_at(record.value("wikipedia_url", ""), '|');
                   const auto images = split_at(record.value("dataset_image_ids", ""), '|');
                   if (!images.empty()) example.image = picture(source, images.front(), "{id}.jpg");
                   example.meta = others(record, {"question", "question_type"});
                   source.example(where, std::move(example));
                 });
               });
  CONTEXTURE_DATA_REQUIRE(!header.empty(), source.path, ": not one row");
}

}  // namespace contexture::data::internal

namespace contexture::data {

std::vector<VqaAnnotation> read_vqa_annotations(const std::string& path, BadRecords& bad) {
  std::vector<VqaAnnotation> out;
  std::unordered_set<std::string> ids;
  const MappedFile file(path);
  internal::for_each_element(
      internal::view(file), path, "annotations", bad, [&](const std::string& where, Json record) {
        VqaAnnotation annotation;
        std::string problem;
        try {
          annotation.id = internal::id_field(record, "question_id");
          annotation.type = internal::text_field(record, "answer_type", false);
          for (const Json& answer : internal::list_field(record, "answers")) {
            annotation.answers.push_back(internal::text_field(answer, "answer"));
          }
          if (!ids.insert(annotation.id).second)
            problem = concat("question ", annotation.id, " was answered before");
        } catch (const DataError& error) {
          problem = error.what();
        }
        if (problem.empty()) {
          out.push_back(std::move(annotation));
        } else {
          bad.add(where, "not a VQA annotation", problem);
        }
      });
  return out;
}

}  // namespace contexture::data
