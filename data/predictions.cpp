#include "data/predictions.h"

#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/files.h"
#include "data/internal/fields.h"
#include "data/internal/foreign.h"
#include "data/internal/json_stream.h"
#include "data/internal/lines.h"
#include "data/kilt.h"

namespace contexture::data {
namespace {

Prediction parse_prediction(const Json& record, const std::string& fallback_id) {
  Prediction prediction;
  const char* id = internal::first_of(record, {"id", "question_id", "data_id", "image_id", "_id"});
  prediction.id = id == nullptr ? fallback_id : internal::id_field(record, id);
  const char* text = internal::first_of(record, {"prediction", "answer", "caption"});
  if (text != nullptr) {
    prediction.text = internal::text_field(record, text);
  } else if (internal::first_of(record, {"ctxs", "documents"}) != nullptr) {
    prediction.answered = false;
  } else {
    const auto& outputs = internal::list_field(record, "output");
    CONTEXTURE_DATA_REQUIRE(
        outputs.size() == 1,
        "no field 'prediction', 'answer', 'caption' or 'ctxs', and not exactly one "
        "'output'");
    prediction.text = internal::text_field(outputs[0], "answer");
  }
  const char* passages = internal::first_of(record, {"ctxs", "documents"});
  if (passages == nullptr) return prediction;
  for (const Json& passage : internal::list_field(record, passages)) {
    const std::string score =
        internal::text_field(passage, "score", false);  // a number, or one in quotes
    double value = -static_cast<double>(prediction.passages.size() + 1);
    CONTEXTURE_DATA_REQUIRE(score.empty() || internal::to_finite(score, &value),
                            "field 'score' holds ", score, ", not a finite number");
    prediction.passages.push_back({internal::id_field(passage, "id", false),
                                   internal::text_field(passage, "title", false),
                                   internal::text_field(passage, "text", false), value});
  }
  return prediction;
}

bool maps_ids_to_texts(std::string_view text) {
  return internal::first_character(text) == '{' && !internal::looks_like_jsonl(text);
}

}  // namespace

std::vector<Prediction> read_predictions(const std::string& path, BadRecords& bad,
                                         const std::string& stem) {
  std::vector<Prediction> predictions;
  std::unordered_map<std::string, std::string> places;
  const auto add = [&](const std::string& where, Prediction prediction) {
    const auto [met, is_new] = places.emplace(prediction.id, where);
    if (is_new) {
      predictions.push_back(std::move(prediction));
    } else {
      bad.add(where, "duplicate id", concat(prediction.id, ", first at ", met->second));
    }
  };
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  const std::string named = stem.empty() ? std::filesystem::path(path).stem().string() : stem;
  const internal::Source source{text, path, named, {}, bad, {}, {}};
  // {"q1": "text"} on one line looks like JSONL; its values tell.
  bool object = maps_ids_to_texts(text);
  if (!object && internal::first_character(text) == '{') {
    try {
      const Json whole = parse_json(text, path);
      object = internal::first_of(whole, {"id", "question_id", "data_id", "image_id", "_id",
                                          "prediction", "answer", "caption", "output", "ctxs"}) ==
               nullptr;
    } catch (const DataError&) {
      object = false;  // several lines: JSONL
    }
  }
  if (object) {
    internal::for_each_member(text, path, bad,
                              [&](const std::string& where, const std::string& id, Json value) {
                                source.guarded(where, "not a prediction", [&] {
                                  if (value.is_object() && value.contains("direct_answer"))
                                    value = value["direct_answer"];
                                  CONTEXTURE_DATA_REQUIRE(value.is_string(), "'", id, "' has ",
                                                          json_excerpt(value), ", not a text");
                                  add(where, {id, value.get<std::string>(), {}});
                                });
                              });
  } else {
    source.records([&](const std::string& where, const std::string& fallback_id, Json record) {
      source.guarded(where, "not a prediction",
                     [&] { add(where, parse_prediction(record, fallback_id)); });
    });
  }
  CONTEXTURE_DATA_REQUIRE(!predictions.empty(), path, ": not one good prediction; ", bad.summary());
  return predictions;
}

void write_predictions(const std::string& path, const std::vector<Prediction>& predictions) {
  std::string lines;
  for (const Prediction& prediction : predictions) {
    Json record{{"id", prediction.id}, {"prediction", prediction.text}, {"ctxs", Json::array()}};
    for (const auto& passage : prediction.passages) {
      record["ctxs"].push_back({{"id", passage.id},
                                {"title", passage.title},
                                {"text", passage.text},
                                {"score", passage.score}});
    }
    lines += record.dump() + "\n";
  }
  write_file_atomic(path, lines);
}

std::vector<Prediction> align(std::vector<Prediction> predictions,
                              const std::vector<std::string>& ids, bool missing_is_empty,
                              const std::string& path, BadRecords& bad) {
  std::unordered_map<std::string, size_t> place;
  for (size_t i = 0; i < ids.size(); ++i) place.emplace(ids[i], i);
  std::vector<Prediction> aligned(ids.size());
  std::vector<bool> found(ids.size(), false);
  for (Prediction& prediction : predictions) {
    const auto at = place.find(prediction.id);
    if (at == place.end()) {
      bad.add(path, "prediction for no reference", prediction.id);
      continue;
    }
    found[at->second] = true;
    aligned[at->second] = std::move(prediction);
  }
  std::string some;
  size_t missing = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (found[i]) continue;
    aligned[i] = {ids[i], "", {}, /*answered=*/false};
    if (++missing <= 5) some += (some.empty() ? "" : ", ") + ids[i];
  }
  CONTEXTURE_DATA_REQUIRE(missing == 0 || missing_is_empty, path, " has no prediction for ",
                          missing, " of ", ids.size(), " references: ", some,
                          missing > 5 ? " ..." : "", ". --missing zero counts them as wrong.");
  return aligned;
}

TrecRun to_run(const std::vector<Prediction>& predictions, const std::string& path,
               BadRecords& bad) {
  TrecRun run;
  for (const Prediction& prediction : predictions) {
    std::unordered_set<std::string> met;
    for (const auto& passage : prediction.passages) {
      if (passage.id.empty()) continue;
      if (!met.insert(passage.id).second) {
        bad.add(path, "document twice", concat(passage.id, " for ", prediction.id));
        continue;
      }
      run[prediction.id].push_back({passage.id, passage.score});
    }
  }
  return run;
}

}  // namespace contexture::data
