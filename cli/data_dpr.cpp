// contexture data dpr: what was retrieved, in the file that DPR writes and readers (DPR's,
// Fusion-in-Decoder's) are trained on.
#include <iostream>
#include <unordered_map>
#include <unordered_set>

#include "cli/data.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "data/formats.h"
#include "data/trec.h"
#include "eval/has_answer.h"
#include "eval/ranking.h"

namespace contexture::cli {
namespace {

struct DprOptions {
  std::string run, examples, corpus, from = "contexture", corpus_from, qrels, output,
                                     bad_records = "fail";
  int64_t k = 100;
  bool patterns = false, json = false;
};

// Each query's k best documents, best first, with their scores.
using Ranked = std::unordered_map<std::string, std::vector<data::RunEntry>>;

Ranked best_of(const data::TrecRun& run, int64_t k) {
  Ranked out;
  for (const auto& [query, entries] : run) {
    std::vector<eval::ScoredId> scored;
    std::unordered_map<std::string, double> scores;
    for (const data::RunEntry& entry : entries) {
      scored.push_back({entry.document, entry.score});
      scores[entry.document] = entry.score;
    }
    for (const std::string& id : eval::trec_order(std::move(scored))) {
      if (static_cast<int64_t>(out[query].size()) == k) break;
      out[query].push_back({id, scores.at(id)});
    }
  }
  return out;
}

// Those of the documents that are named, which may be few of very many.
std::unordered_map<std::string, data::Document> read_named(const DprOptions& options,
                                                           const Ranked& ranked,
                                                           data::BadRecords& bad) {
  std::unordered_set<std::string> named;
  for (const auto& [query, entries] : ranked) {
    for (const data::RunEntry& entry : entries) named.insert(entry.document);
  }
  std::unordered_map<std::string, data::Document> found;
  data::read_foreign_documents(options.corpus_from.empty() ? options.from : options.corpus_from,
                               options.corpus, bad,
                               [&](const std::string&, data::Document document) {
                                 if (!named.contains(document.id)) return;
                                 std::string id = document.id;
                                 found.emplace(std::move(id), std::move(document));
                               });
  for (const std::string& id : named) {
    CONTEXTURE_DATA_REQUIRE(found.contains(id), options.run, " ranks the document '", id,
                            "', which ", options.corpus,
                            " does not have. Give the corpus that was "
                            "searched.");
  }
  return found;
}

int write(const DprOptions& options) {
  CONTEXTURE_USAGE_REQUIRE(options.k >= 1, "-k ", options.k, " must be at least 1.");
  data::BadRecords bad(data::BadRecords::parse_policy(options.bad_records));
  const Ranked ranked = best_of(data::read_run(options.run, bad), options.k);
  const auto documents = read_named(options, ranked, bad);
  data::ForeignOptions foreign;
  foreign.qrels = options.qrels;
  foreign.unjudged = true;
  AtomicFile out(options.output);
  int64_t written = 0;
  data::read_foreign_examples(
      options.from, options.examples, foreign, bad,
      [&](const std::string& where, const data::Example& example) {
        const auto entries = ranked.find(example.id);
        if (entries == ranked.end())
          return bad.add(where, "question that the run does not rank", example.id);
        Json record{{"id", example.id},
                    {"question", example.question},
                    {"answers", example.answers},
                    {"ctxs", Json::array()}};
        for (const data::RunEntry& entry : entries->second) {
          const data::Document& document = documents.at(entry.document);
          const bool holds = options.patterns
                                 ? eval::has_answer_regex(document.text, example.answers)
                                 : eval::has_answer(document.text, example.answers);
          record["ctxs"].push_back({{"id", document.id},
                                    {"title", document.title},
                                    {"text", document.text},
                                    {"score", entry.score},
                                    {"has_answer", holds}});
        }
        out.write((written++ == 0 ? "[\n" : ",\n") + record.dump());
      });
  CONTEXTURE_DATA_REQUIRE(written > 0, options.run, " ranks no question of ", options.examples,
                          ".");
  out.write("\n]\n");
  out.commit();
  if (bad.count > 0) log::warn("{}", bad.summary());
  if (options.json) {
    print_json({{"output", options.output},
                {"questions", written},
                {"passages", documents.size()},
                {"bad_records", bad.count}});
  } else {
    std::cout << written << " questions with " << documents.size() << " distinct passages in "
              << options.output << "\n";
  }
  return 0;
}

}  // namespace

Command data_dpr_command(CLI::App& group) {
  auto options = std::make_shared<DprOptions>();
  CLI::App* app = group.add_subcommand(
      "dpr", "Write DPR's retriever results (question, answers, ctxs) from a TREC run");
  app->add_option("--run", options->run,
                  "TREC run of `index search --queries` or `eval retrieval RUN --output`")
      ->required();
  app->add_option("--examples", options->examples, "the questions, with their answers")->required();
  app->add_option("--corpus", options->corpus, "the documents that were searched")->required();
  app->add_option("--from", options->from, "format of --examples, as in data convert")
      ->capture_default_str();
  app->add_option("--corpus-from", options->corpus_from, "format of --corpus; default: --from");
  app->add_option("--qrels", options->qrels, "beir: only the queries judged in this file");
  app->add_option("-k", options->k, "passages of a question")->capture_default_str();
  app->add_flag("--patterns", options->patterns,
                "answers are regular expressions when looked for in passages (CuratedTREC)");
  app->add_option("--output", options->output, "file to write, JSON")->required();
  app->add_option("--bad-records", options->bad_records, "fail or skip")->capture_default_str();
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] { return write(*options); }};
}

}  // namespace contexture::cli
