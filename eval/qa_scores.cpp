#include "eval/qa_scores.h"

#include <algorithm>

#include "core/error.h"
#include "eval/answers.h"
#include "eval/has_answer.h"
#include "eval/ranking.h"

namespace contexture::eval {
namespace {

// The place, from 1, of the first passage that holds an answer; 0: none does.
int answer_place(const data::Prediction& prediction, const std::vector<std::string>& answers,
                 int most, bool patterns) {
  for (int i = 0; i < std::min(most, static_cast<int>(prediction.passages.size())); ++i) {
    const std::string& text = prediction.passages[static_cast<size_t>(i)].text;
    if (patterns ? has_answer_regex(text, answers) : has_answer(text, answers)) return i + 1;
  }
  return 0;
}

double sub_exact_match(const std::string& prediction, const std::vector<std::string>& answers) {
  const std::string said = normalize_answer(prediction);
  return std::any_of(answers.begin(), answers.end(),
                     [&](const std::string& answer) {
                       return said.find(normalize_answer(answer)) != std::string::npos;
                     })
             ? 1.0
             : 0.0;
}

void add_answer_columns(const std::vector<data::Example>& references,
                        const std::vector<data::Prediction>& predictions, ScoreTable& table) {
  for (const char* name : {"em", "f1", "acc"}) table.add(name, 100.0);
  for (size_t i = 0; i < references.size(); ++i) {
    const auto& answers = references[i].answers;
    table.columns[0].values.push_back(exact_match(predictions[i].text, answers));
    table.columns[1].values.push_back(f1_score(predictions[i].text, answers));
    table.columns[2].values.push_back(sub_exact_match(predictions[i].text, answers));
  }
}

}  // namespace

ScoreTable score_qa(const std::vector<data::Example>& references,
                    const std::vector<data::Prediction>& predictions, const QaOptions& options) {
  CONTEXTURE_INVARIANT(references.size() == predictions.size());
  for (const int k : options.cutoffs)
    CONTEXTURE_REQUIRE(k >= 1, "a cut-off is at least 1, got ", k);
  ScoreTable table;
  bool answered = false, texts = false, ids = false;
  for (size_t i = 0; i < references.size(); ++i) {
    CONTEXTURE_DATA_REQUIRE(!references[i].answers.empty(), "reference '", references[i].id,
                            "' has no answer to score against");
    table.ids.push_back(references[i].id);
    answered = answered || predictions[i].answered;
    for (const auto& passage : predictions[i].passages) {
      texts = texts || !passage.text.empty();
      ids = ids || (!passage.id.empty() && !references[i].documents.empty());
    }
  }
  if (answered || !texts) add_answer_columns(references, predictions, table);
  if (texts && !options.cutoffs.empty()) {
    const int most = *std::max_element(options.cutoffs.begin(), options.cutoffs.end());
    std::vector<int> places;
    for (size_t i = 0; i < references.size(); ++i) {
      places.push_back(answer_place(predictions[i], references[i].answers, most, options.patterns));
    }
    for (const int k : options.cutoffs) {
      auto& column = table.add(concat("has_answer@", k), 100.0);
      for (const int place : places) column.values.push_back(place > 0 && place <= k ? 1.0 : 0.0);
    }
  }
  if (ids) {
    for (const int k : options.cutoffs) {
      auto& column = table.add(concat("gold@", k), 100.0);
      for (size_t i = 0; i < references.size(); ++i) {
        std::vector<std::string> ranked;
        for (const auto& passage : predictions[i].passages) ranked.push_back(passage.id);
        column.values.push_back(hit_at(ranked, references[i].documents, k));
      }
    }
  }
  return table;
}

}  // namespace contexture::eval
