// Visual question answering scores as their reference scorers compute them. Pure functions: any
// thread.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/formats.h"
#include "eval/score_table.h"

namespace contexture::eval {

// The VQA challenge's normalisation: punctuation out (or to a space where no space stands beside it
// and no comma parts digits), full stops out unless a digit follows, lower case, number words to
// digits, articles out, contractions restored, white space squeezed.
std::string vqa_punctuation(std::string_view answer);
std::string vqa_digits_and_articles(std::string_view answer);

// VQA v2, OK-VQA: the mean over the leave-one-out subsets of min(1, matches / 3), 0..1.
// `answers` are the annotators' (ten as a rule). Normalised only where they differ among
// themselves, as the reference does. 0 without answers.
double vqa_accuracy(std::string_view prediction, const std::vector<std::string>& answers);

// Column "accuracy" (scale 100) of data::VqaAnnotation's answers; totals by answer type
// ("accuracy-yes/no"). `predictions` runs parallel to `references`, here and below.
ScoreTable score_vqa(const std::vector<data::VqaAnnotation>& references,
                     const std::vector<std::string>& predictions);

// A-OKVQA's direct answers. Column "accuracy" (scale 100): min(1, matches / 3), where only the very
// same text matches.
ScoreTable score_aokvqa(const std::vector<data::VqaAnnotation>& references,
                        const std::vector<std::string>& predictions);

// The annotators' answers of examples, to score against: "annotator_answers" as the vqa
// and aokvqa readers keep them, else "answers" where there are several. Examples with one answer or
// none are left out: agreement among annotators is what is scored. DataError when no example is
// left.
std::vector<data::VqaAnnotation> vqa_annotations(const std::vector<data::Example>& examples);

// InfoSeek. A question asks for a text or a time (exact match over the answers) or for a number.
// The number or range in a text: two numbers ascending are a range, else the first counts; {0, 0}
// without one.
struct NumberRange {
  double low = 0.0, high = 0.0;
  bool is_range = false;
};
NumberRange parse_number_range(std::string_view text);
// 1 if the number lies in [low, high], or the range does, or its intersection over union is at
// least one half; else 0.
double number_in_range(const NumberRange& prediction, double low, double high);

struct InfoSeekReference {
  std::string id;
  std::vector<std::string> answers;                // of texts and times: answer_eval
  std::optional<std::pair<double, double>> range;  // of numbers: answer_eval's range
  std::string kind;                                // "string", "time", "numerical"
  bool unseen_entity = false;                      // else unseen question
};
// From examples as the infoseek reader gives them: answer_eval, data_split and question_type of
// their meta; without a question type, an answer_eval with a range is a number's and the others are
// texts. DataError naming the example.
std::vector<InfoSeekReference> infoseek_references(const std::vector<data::Example>& examples);
// Column "accuracy" (scale 100). Totals: score (harmonic mean of the two splits; their accuracy
// when only one is there), unseen_question, unseen_entity, and by kind: string, time, numerical.
ScoreTable score_infoseek(const std::vector<InfoSeekReference>& references,
                          const std::vector<std::string>& predictions);

// Encyclopedic-VQA. Alternatives are parted by '|', the parts of an answer to a multi_answer
// question by "&&".
struct EncyclopedicReference {
  std::string id;
  std::string answer;  // as in the file
  std::string type;    // "templated", "automatic", "multi_answer", "2_hop"
};
// From examples as the evqa reader gives them: "answer" of their meta. DataError naming the
// example.
std::vector<EncyclopedicReference> encyclopedic_references(
    const std::vector<data::Example>& examples);
// Columns em and f1 (scale 100): exact match over the alternatives (multi_answer: the intersection
// over union of the parts is at least one half) and their best token F1. The published score also
// asks a learned model (BEM), which is not part of this: f1 stands in for it and is no such score.
// Totals: em by question type.
ScoreTable score_encyclopedic(const std::vector<EncyclopedicReference>& references,
                              const std::vector<std::string>& predictions);

}  // namespace contexture::eval
