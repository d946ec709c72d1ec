// contexture eval qa|vqa|caption: answers against references, of a run to its own data or in files.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>

#include "cli/run_source.h"
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

// Which references are scored, and how: predictions run parallel to the ids.
struct Rule {
  std::vector<std::string> ids;
  std::function<eval::ScoreTable(const std::vector<data::Prediction>&)> score;
};

template <typename Record>
std::vector<std::string> ids_of(const std::vector<Record>& records) {
  std::vector<std::string> ids;
  for (const Record& record : records) ids.push_back(record.id);
  return ids;
}

std::vector<std::string> texts_of(const std::vector<data::Prediction>& predictions) {
  std::vector<std::string> texts;
  for (const data::Prediction& prediction : predictions) texts.push_back(prediction.text);
  return texts;
}

// What the run's model says, with what it read.
std::vector<data::Prediction> answers_of(const OpenRun& run,
                                         const std::vector<const data::Example*>& asked) {
  std::vector<data::Prediction> out;
  const train::Evaluator evaluator(run.session);
  for (train::Answered& said : evaluator.answer(run.set, asked, train::Reading::kRetrieved)) {
    out.push_back({said.example->id, std::move(said.answer), {}});
    for (size_t k = 0; k < said.documents.size(); ++k) {
      const data::Document& document = run.session.corpus().document(said.documents[k]);
      out.back().passages.push_back({document.id, document.title, document.text, said.scores[k]});
    }
  }
  return out;
}

struct AnswerOptions {
  std::string predictions, references, from, missing = "fail", output;
  ScoreOptions scores;
  RunSource source;

  // Returns the option of the run's folder, and that of --from.
  std::pair<CLI::Option*, CLI::Option*> add_to(CLI::App& app, const std::string& from_help) {
    CLI::Option* folder = source.add_to(app);
    app.add_option("--output", output,
                   "of a run: writes its answers and what they read, for --predictions")
        ->needs(folder);
    app.add_option("--predictions", predictions,
                   "what the system said: JSONL, JSON list, or JSON object from id to text")
        ->excludes(folder);
    app.add_option("--references", references, "what is right")->excludes(folder);
    CLI::Option* format = app.add_option("--from", from, "what the references are: " + from_help)
                              ->capture_default_str();
    app.add_option("--missing", missing,
                   "references without a prediction: fail, or zero (count them as wrong)")
        ->capture_default_str()
        ->excludes(folder);
    scores.add_to(app, "predictions");
    return {folder, format};
  }

  bool of_a_run() const {
    CONTEXTURE_USAGE_REQUIRE(
        !source.run.empty() || (!predictions.empty() && !references.empty()),
        "contexture eval needs a run folder here, or --predictions and --references: see --help.");
    return !source.run.empty();
  }

  std::vector<data::Prediction> read(const std::string& file, const std::vector<std::string>& ids,
                                     data::BadRecords& bad) const {
    CONTEXTURE_USAGE_REQUIRE(missing == "fail" || missing == "zero", "--missing ", missing,
                             " is neither fail nor zero.");
    const std::string stem =
        references.empty() ? "" : std::filesystem::path(references).stem().string();
    return data::align(data::read_predictions(file, bad, stem), ids, missing == "zero", file, bad);
  }

  data::BadRecords bad_records() const {
    return data::BadRecords(data::BadRecords::parse_policy(scores.bad_records));
  }

  std::vector<data::Example> read_references() const {
    data::BadRecords bad = bad_records();
    std::vector<data::Example> examples;
    std::map<std::string, std::string> places;
    data::read_foreign_examples(
        from, references, {}, bad, [&](const std::string& where, data::Example example) {
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

  int report(const Rule& rule, const ScoreOwn& own) const {
    return report_scores(scores, own, [&](const std::string& file, data::BadRecords& bad) {
      return rule.score(read(file, rule.ids, bad));
    });
  }

  int score_files(const Rule& rule) const {
    return report(
        rule, [&](data::BadRecords& bad) { return rule.score(read(predictions, rule.ids, bad)); });
  }

  // Asks the run what the rule for its examples scores.
  int score_run(
      const std::function<Rule(const OpenRun&, const std::vector<data::Example>&)>& rule_of) const {
    return source.open([&](const OpenRun& run) {
      std::vector<data::Example> examples;
      std::map<std::string, const data::Example*> by_id;
      for (const data::Example* example : run.examples) {
        examples.push_back(*example);
        by_id[example->id] = example;
      }
      const Rule rule = rule_of(run, examples);
      std::vector<const data::Example*> asked;
      for (const std::string& id : rule.ids) {
        asked.push_back(by_id.at(id));
        CONTEXTURE_DATA_REQUIRE(!asked.back()->answers.empty(), "example '", id,
                                "' has no answer to score against");
      }
      const std::vector<data::Prediction> said = answers_of(run, asked);
      if (!run.first) return 0;
      if (run.bad.count > 0) log::warn("{}", run.bad.summary());
      if (!output.empty()) data::write_predictions(output, said);
      return report(rule, [&](data::BadRecords&) {
        eval::ScoreTable table = rule.score(said);
        if (rule.ids.size() < examples.size())
          table.notes["examples_not_asked"] = examples.size() - rule.ids.size();
        return table;
      });
    });
  }
};

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

    Rule rule(const std::vector<data::Example>& examples, const eval::QaOptions& how) const {
      return {ids_of(examples), [examples, how](const std::vector<data::Prediction>& said) {
                return eval::score_qa(examples, said, how);
              }};
    }

    int kilt() const {
      data::BadRecords bad = bad_records();
      const auto gold = read_kilt(references, bad);
      if (bad.count > 0) log::warn("{}", bad.summary());
      eval::KiltOptions how;
      how.cutoffs = qa.cutoffs;
      const auto score = [&](const std::string& file, data::BadRecords& guess_bad) {
        return eval::score_kilt(gold, read_kilt(file, guess_bad), how);
      };
      return report_scores(
          scores, [&](data::BadRecords& guess_bad) { return score(predictions, guess_bad); },
          score);
    }
  };
  auto options = std::make_shared<Options>();
  options->from = "contexture";
  CLI::App* app = group.add_subcommand(
      "qa",
      "Exact match and F1 of answers, answers in the passages read, KILT's scores: of a run, "
      "or of files");
  const auto [folder, format] =
      options->add_to(*app, "contexture (our examples), atlas, dpr, flashrag or kilt");
  format->excludes(folder);
  const CLI::Option* cutoffs =
      app->add_option("-k,--cutoffs", options->qa.cutoffs,
                      "passages that are looked at, as in 1,5,20; of a run by default no more than "
                      "an answer reads")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->capture_default_str();
  app->add_flag("--patterns", options->qa.patterns,
                "answers are regular expressions when looked for in passages (CuratedTREC)");
  return {app, [options, cutoffs] {
            if (options->of_a_run()) {
              return options->score_run(
                  [&](const OpenRun& run, const std::vector<data::Example>& examples) {
                    eval::QaOptions how = options->qa;
                    if (cutoffs->count() == 0) {
                      const int64_t read = train::Evaluator(run.session).documents_read();
                      std::erase_if(how.cutoffs, [&](int k) { return k > read; });
                    }
                    return options->rule(examples, how);
                  });
            }
            require_known(options->from, {"contexture", "atlas", "dpr", "flashrag", "kilt"});
            if (options->from == "kilt") return options->kilt();
            return options->score_files(options->rule(options->read_references(), options->qa));
          }};
}

Command eval_vqa_command(CLI::App& group) {
  struct Options : AnswerOptions {
    std::string types;  // file of InfoSeek's question types

    Rule annotated(const std::vector<data::VqaAnnotation>& annotations) const {
      const auto score = from == "aokvqa" ? eval::score_aokvqa : eval::score_vqa;
      return {ids_of(annotations), [annotations, score](const std::vector<data::Prediction>& said) {
                return score(annotations, texts_of(said));
              }};
    }

    Rule rule(std::vector<data::Example> examples) const {
      if (from == "vqa" || from == "aokvqa") return annotated(eval::vqa_annotations(examples));
      if (from == "evqa") {
        const auto wanted = eval::encyclopedic_references(examples);
        return {ids_of(wanted), [wanted](const std::vector<data::Prediction>& said) {
                  return eval::score_encyclopedic(wanted, texts_of(said));
                }};
      }
      if (!types.empty()) set_types(examples);
      const auto wanted = eval::infoseek_references(examples);
      return {ids_of(wanted), [wanted](const std::vector<data::Prediction>& said) {
                return eval::score_infoseek(wanted, texts_of(said));
              }};
    }

    void set_types(std::vector<data::Example>& examples) const {
      std::map<std::string, std::string> kinds;
      data::BadRecords bad = bad_records();
      data::for_each_jsonl(read_file(types), types, bad, [&](int64_t line, const Json& record) {
        const std::string where = concat(types, ":", line);
        kinds[json_get<std::string>(record, "data_id", where)] =
            json_get<std::string>(record, "question_type", where);
      });
      for (data::Example& example : examples) {
        CONTEXTURE_DATA_REQUIRE(kinds.contains(example.id), types, " has no question '", example.id,
                                "'");
        example.meta["question_type"] = kinds[example.id];
      }
    }
  };
  auto options = std::make_shared<Options>();
  options->from = "vqa";
  CLI::App* app = group.add_subcommand(
      "vqa",
      "Answers about pictures, of a run or of files: VQA accuracy, A-OKVQA, InfoSeek, "
      "Encyclopedic-VQA");
  options->add_to(
      *app,
      "vqa (the annotations .json), aokvqa (.json), infoseek (.jsonl) or evqa (.csv); of "
      "a run, whose rule its examples are scored by");
  app->add_option("--question-types", options->types, "infoseek: JSONL {data_id, question_type}");
  return {app, [options] {
            require_known(options->from, {"vqa", "aokvqa", "infoseek", "evqa"});
            if (options->of_a_run()) {
              return options->score_run(
                  [&](const OpenRun&, const std::vector<data::Example>& examples) {
                    return options->rule(examples);
                  });
            }
            if (options->from != "vqa")
              return options->score_files(options->rule(options->read_references()));
            data::BadRecords bad = options->bad_records();
            const auto annotations = data::read_vqa_annotations(options->references, bad);
            CONTEXTURE_DATA_REQUIRE(!annotations.empty(), options->references,
                                    ": not one good annotation; ", bad.summary());
            if (bad.count > 0) log::warn("{}", bad.summary());
            return options->score_files(options->annotated(annotations));
          }};
}

Command eval_caption_command(CLI::App& group) {
  struct Options : AnswerOptions {
    bool tokenized = false;

    eval::Tokens tokens(const std::string& text) const {
      if (!tokenized) return eval::caption_tokens(text);
      eval::Tokens words;
      std::istringstream stream(text);
      for (std::string word; stream >> word;) words.push_back(word);
      return words;
    }

    Rule rule(const std::vector<data::Example>& examples) const {
      std::vector<eval::CaptionReference> wanted;
      for (const data::Example& example : examples) {
        CONTEXTURE_DATA_REQUIRE(!example.answers.empty(), "picture '", example.id,
                                "' has no caption to score against");
        wanted.push_back({example.id, {}});
        for (const std::string& caption : example.answers)
          wanted.back().references.push_back(tokens(caption));
      }
      return {ids_of(wanted), [this, wanted](const std::vector<data::Prediction>& said) {
                std::vector<eval::Tokens> captions;
                for (const std::string& text : texts_of(said)) captions.push_back(tokens(text));
                return eval::score_captions(wanted, captions);
              }};
    }
  };
  auto options = std::make_shared<Options>();
  options->from = "coco";
  CLI::App* app = group.add_subcommand(
      "caption", "BLEU, ROUGE-L, CIDEr-D of captions: of a run's for its data, or of files");
  const auto [folder, format] =
      options->add_to(*app, "coco (captions .json) or contexture (our examples)");
  format->excludes(folder);
  app->add_flag("--tokenized", options->tokenized,
                "captions on both sides are tokenised already: cut them at blanks only");
  return {app, [options] {
            if (options->of_a_run()) {
              return options->score_run(
                  [&](const OpenRun&, const std::vector<data::Example>& examples) {
                    return options->rule(examples);
                  });
            }
            require_known(options->from, {"coco", "contexture"});
            return options->score_files(options->rule(options->read_references()));
          }};
}

}  // namespace contexture::cli
