#include "eval/internal/report_samples.h"

#include <string>

#include "core/json.h"
#include "eval/answers.h"

namespace contexture::eval {
namespace {

Json number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? *found : Json();
}

bool truth_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return false;
  return found->is_boolean() ? found->get<bool>() : found->is_number() && *found != 0;
}

std::vector<std::string> texts_of(const Json& object, const char* key) {
  std::vector<std::string> texts;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return texts;
  for (const Json& item : *found) {
    if (item.is_string()) texts.push_back(item.get<std::string>());
  }
  return texts;
}

template <typename Clean>
Json clean_list(const Json& raw, const char* key, const Clean& clean) {
  Json out = Json::array();
  const auto list = raw.is_object() ? raw.find(key) : raw.end();
  if (list == raw.end() || !list->is_array()) return out;
  for (const Json& item : *list) {
    if (item.is_object()) out.push_back(clean(item));
  }
  return out;
}

Json clean_document(const Json& raw, PictureTable& pictures) {
  return {{"id", text_of(raw, "id")},
          {"title", text_of(raw, "title")},
          {"text", text_of(raw, "text")},
          {"image", pictures.add(text_of(raw, "image"))},
          {"score", number_of(raw, "score")},
          {"probability", number_of(raw, "probability")},
          {"attention", number_of(raw, "attention")},
          {"utility", number_of(raw, "utility")},
          {"is_gold", truth_of(raw, "is_gold")}};
}

Json clean_sample(const Json& raw, PictureTable& pictures) {
  const std::string answer = text_of(raw, "answer");
  const std::vector<std::string> references = texts_of(raw, "references");
  Json em = number_of(raw, "em"), f1 = number_of(raw, "f1");
  if (em.is_null()) em = exact_match(answer, references);
  if (f1.is_null()) f1 = f1_score(answer, references);
  Json answers = Json::object();
  if (const auto found = raw.find("answers"); found != raw.end() && found->is_object()) {
    for (const auto& [key, value] : found->items()) {
      if (value.is_string()) answers[key] = value;
    }
  }
  return {{"id", text_of(raw, "id")},
          {"question", text_of(raw, "question")},
          {"query_image", pictures.add(text_of(raw, "query_image"))},
          {"answer", answer},
          {"answers", answers},
          {"references", references},
          {"em", em},
          {"f1", f1},
          {"gold_ids", texts_of(raw, "gold_ids")},
          {"documents", clean_list(raw, "documents", [&](const Json& document) {
             return clean_document(document, pictures);
           })}};
}

Json clean_edit(const Json& raw, PictureTable& pictures) {
  return {{"question", text_of(raw, "question")},
          {"query_image", pictures.add(text_of(raw, "query_image"))},
          {"fact_before", text_of(raw, "fact_before")},
          {"fact_after", text_of(raw, "fact_after")},
          {"answer_before", text_of(raw, "answer_before")},
          {"answer_after", text_of(raw, "answer_after")},
          {"followed", truth_of(raw, "followed")}};
}

}  // namespace

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  return found->is_number() ? found->dump() : std::string();
}

Json clean_samples(const Json& raw, PictureTable& pictures) {
  return clean_list(raw, "samples",
                    [&](const Json& sample) { return clean_sample(sample, pictures); });
}

Json clean_edits(const Json& raw, PictureTable& pictures) {
  return clean_list(raw, "edits", [&](const Json& edit) { return clean_edit(edit, pictures); });
}

}  // namespace contexture::eval
