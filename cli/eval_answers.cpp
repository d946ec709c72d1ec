// contexture eval qa|vqa|caption: predictions against references, both in files.
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>

#include "cli/scores.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "data/formats.h"
#include "data/kilt.h"
#include "data/predictions.h"
#include "eval/captions.h"
#include "eval/kilt.h"
#include "eval/qa_scores.h"
#include "eval/vqa.h"

namespace contexture::cli {
namespace {

struct AnswerOptions {
  std::string predictions, references, from, missing = "fail";
  ScoreOptions scores;

  void add_to(CLI::App& app, const std::string& from_help) {
    app.add_option("--predictions", predictions,
                   "what the system said: JSONL, JSON list, or JSON object from id to text")
        ->required();
    app.add_option("--references", references, "what is right")->required();
    app.add_option("--from", from, "what the references are: " + from_help)->capture_default_str();
    app.add_option("--missing", missing,
                   "references without a prediction: fail, or zero (count them as wrong)")
        ->capture_default_str();
    scores.add_to(app, "predictions");
  }

  std::string stem() const { return std::filesystem::path(references).stem().string(); }

  std::vector<data::Prediction> read(const std::string& file, const std::vector<std::string>& ids,
                                     data::BadRecords& bad) const {
    CONTEXTURE_USAGE_REQUIRE(missing == "fail" || missing == "zero", "--missing ", missing,
                             " is neither fail nor zero.");
    return data::align(data::read_predictions(file, bad, stem()), ids, missing == "zero", file,
                       bad);
  }

  std::vector<std::string> read_texts(const std::string& file, const std::vector<std::string>& ids,
                                      data::BadRecords& bad) const {
    std::vector<std::string> texts;
    for (data::Prediction& prediction : read(file, ids, bad))
      texts.push_back(std::move(prediction.text));
    return texts;
  }

  data::BadRecords bad_records() const {
    return data::BadRecords(data::BadRecords::parse_policy(scores.bad_records));
  }

  std::vector<data::Example> read_references(const std::string& format) const {
    data::BadRecords bad = bad_records();
    std::vector<data::Example> examples;
    std::map<std::string, std::string> places;
    data::read_foreign_examples(
        format, references, {}, bad, [&](const std::string& where, data::Example example) {
          const auto [met, is_new] = places.emplace(example.id, where);
          if (is_new) {
            examples.push_back(std::move(example));
          } else {
            bad.add(where, "duplicate id", concat(example.id, ", first at ", met->second));
          }
        });
    CONTEXTURE_DATA_REQUIRE(!examples.empty(), references, ": not one good reference; ",
                            bad.summary());
    if (bad.count > 0) log::warn("{}", bad.summary());
    return examples;
  }
};

template <typename Record>
std::vector<std::string> ids_of(const std::vector<Record>& records) {
  std::vector<std::string> ids;
  for (const Record& record : records) ids.push_back(record.id);
  return ids;
}

std::vector<data::KiltRecord> read_kilt(const std::string& path, data::BadRecords& bad) {
  std::vector<data::KiltRecord> records;
  data::for_each_jsonl(read_file(path), path, bad, [&](int64_t line, Json record) {
    try {
      records.push_back(data::parse_kilt(record));
    } catch (const DataError& error) {
      bad.add(concat(path, ":", line), "not a KILT record", error.what());
    }
  });
  CONTEXTURE_DATA_REQUIRE(!records.empty(), path, ": not one KILT record; ", bad.summary());
  return records;
}

void require_known(const std::string& from, const std::vector<std::string>& known) {
  std::string list;
  for (const std::string& name : known) {
    if (name == from) return;
    list += (list.empty() ? "" : ", ") + name;
  }
  throw UsageError(
      concat("--from ", from, " can't be scored by this command, which takes ", list, "."));
}

}  // namespace

Command eval_qa_command(CLI::App& group) {
  struct Options : AnswerOptions {
    eval::QaOptions qa;
  };
  auto options = std::make_shared<Options>();
  options->from = "contexture";
  CLI::App* app = group.add_subcommand(
      "qa", "Score answers: exact match and F1; answers in the passages read; KILT's scores");
  options->add_to(*app, "contexture (our examples), atlas, dpr, flashrag or kilt");
  app->add_option("-k,--cutoffs", options->qa.cutoffs, "passages that are looked at, as in 1,5,20")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  app->add_flag("--patterns", options->qa.patterns,
                "answers are regular expressions when looked for in passages (CuratedTREC)");
  return {
      app, [options] {
        require_known(options->from, {"contexture", "atlas", "dpr", "flashrag", "kilt"});
        if (options->from == "kilt") {
          data::BadRecords bad = options->bad_records();
          const auto gold = read_kilt(options->references, bad);
          if (bad.count > 0) log::warn("{}", bad.summary());
          eval::KiltOptions kilt;
          kilt.cutoffs = options->qa.cutoffs;
          return report_scores(options->predictions, options->scores,
                               [&](const std::string& file, data::BadRecords& guess_bad) {
                                 return eval::score_kilt(gold, read_kilt(file, guess_bad), kilt);
                               });
        }
        const auto references = options->read_references(options->from);
        return report_scores(options->predictions, options->scores,
                             [&](const std::string& file, data::BadRecords& bad) {
                               return eval::score_qa(references,
                                                     options->read(file, ids_of(references), bad),
                                                     options->qa);
                             });
      }};
}

Command eval_vqa_command(CLI::App& group) {
  auto options = std::make_shared<AnswerOptions>();
  options->from = "vqa";
  auto types = std::make_shared<std::string>();
  CLI::App* app = group.add_subcommand(
      "vqa", "Score answers about pictures: VQA accuracy, InfoSeek, Encyclopedic-VQA");
  options->add_to(*app, "vqa (the annotations .json), infoseek (.jsonl) or evqa (.csv)");
  app->add_option("--question-types", *types, "infoseek: JSONL {data_id, question_type}");
  return {app, [options, types] {
            require_known(options->from, {"vqa", "infoseek", "evqa"});
            const auto scored =
                [&](const std::vector<std::string>& ids,
                    const std::function<eval::ScoreTable(const std::vector<std::string>&)>& score) {
                  return report_scores(options->predictions, options->scores,
                                       [&](const std::string& file, data::BadRecords& bad) {
                                         return score(options->read_texts(file, ids, bad));
                                       });
                };
            if (options->from == "vqa") {
              data::BadRecords bad = options->bad_records();
              const auto annotations = data::read_vqa_annotations(options->references, bad);
              CONTEXTURE_DATA_REQUIRE(!annotations.empty(), options->references,
                                      ": not one good annotation; ", bad.summary());
              if (bad.count > 0) log::warn("{}", bad.summary());
              return scored(ids_of(annotations),
                            [&](const auto& texts) { return eval::score_vqa(annotations, texts); });
            }
            std::vector<data::Example> examples = options->read_references(options->from);
            if (options->from == "evqa") {
              std::vector<eval::EncyclopedicReference> references;
              for (const data::Example& example : examples) {
                references.push_back(
                    {example.id, example.meta["answer"].get<std::string>(), example.type});
              }
              return scored(ids_of(references), [&](const auto& texts) {
                return eval::score_encyclopedic(references, texts);
              });
            }
            if (!types->empty()) {
              std::map<std::string, std::string> kinds;
              data::BadRecords bad = options->bad_records();
              data::for_each_jsonl(read_file(*types), *types, bad,
                                   [&](int64_t line, const Json& record) {
                                     const std::string where = concat(*types, ":", line);
                                     kinds[json_get<std::string>(record, "data_id", where)] =
                                         json_get<std::string>(record, "question_type", where);
                                   });
              for (data::Example& example : examples) {
                CONTEXTURE_DATA_REQUIRE(kinds.contains(example.id), *types, " has no question '",
                                        example.id, "'");
                example.meta["question_type"] = kinds[example.id];
              }
            }
            const auto references = eval::infoseek_references(examples);
            return scored(ids_of(references), [&](const auto& texts) {
              return eval::score_infoseek(references, texts);
            });
          }};
}

Command eval_caption_command(CLI::App& group) {
  auto options = std::make_shared<AnswerOptions>();
  options->from = "coco";
  auto tokenized = std::make_shared<bool>(false);
  CLI::App* app = group.add_subcommand("caption", "Score captions: BLEU, ROUGE-L, CIDEr-D");
  options->add_to(*app, "coco (captions .json) or contexture (our examples)");
  app->add_flag("--tokenized", *tokenized,
                "captions on both sides are tokenised already: cut them at blanks only");
  return {app, [options, tokenized] {
            require_known(options->from, {"coco", "contexture"});
            const auto tokens = [&](const std::string& text) {
              if (!*tokenized) return eval::caption_tokens(text);
              eval::Tokens words;
              std::istringstream stream(text);
              for (std::string word; stream >> word;) words.push_back(word);
              return words;
            };
            std::vector<eval::CaptionReference> references;
            for (const data::Example& example : options->read_references(options->from)) {
              CONTEXTURE_DATA_REQUIRE(!example.answers.empty(), "picture '", example.id,
                                      "' has no caption to score against");
              references.push_back({example.id, {}});
              for (const std::string& caption : example.answers)
                references.back().references.push_back(tokens(caption));
            }
            return report_scores(
                options->predictions, options->scores,
                [&](const std::string& file, data::BadRecords& bad) {
                  std::vector<eval::Tokens> said;
                  for (const std::string& text : options->read_texts(file, ids_of(references), bad))
                    said.push_back(tokens(text));
                  return eval::score_captions(references, said);
                });
          }};
}

}  // namespace contexture::cli
