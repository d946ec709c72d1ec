// contexture eval retrieval: a TREC run against judgments, or a run's retriever against its data's.
#include <algorithm>

#include "cli/run_source.h"
#include "cli/scores.h"
#include "core/error.h"
#include "core/log.h"
#include "eval/trec_scores.h"

namespace contexture::cli {
namespace {

struct RetrievalOptions {
  std::string qrels, run, missing = "skip", output;
  eval::TrecOptions trec;
  ScoreOptions scores;
  RunSource source;

  int report(const data::Qrels& judgments, const ScoreOwn& own) const {
    return report_scores(scores, own, [&](const std::string& file, data::BadRecords& bad) {
      return score_file(judgments, file, bad);
    });
  }

  eval::ScoreTable score_file(const data::Qrels& judgments, const std::string& file,
                              data::BadRecords& bad) const {
    eval::ScoreTable table = eval::score_retrieval(judgments, data::read_run(file, bad), trec);
    const auto without = table.notes["missing_queries"].get<int64_t>();
    if (without > 0 && !trec.missing_is_zero) {
      log::warn(
          "{}: {} of {} judged queries have no result and are left out of every mean, as trec_eval "
          "does; --missing zero counts them as 0",
          file, without, judgments.size());
    }
    return table;
  }

  int files() const {
    data::BadRecords bad(data::BadRecords::parse_policy(scores.bad_records));
    const data::Qrels judgments = data::read_qrels(qrels, bad);
    if (bad.count > 0) log::warn("{}", bad.summary());
    return report(judgments,
                  [&](data::BadRecords& run_bad) { return score_file(judgments, run, run_bad); });
  }

  // The run's retriever, asked with every example that judges documents.
  int checkpoint(const OpenRun& opened) const {
    data::Qrels judgments;
    std::vector<const data::Example*> asked;
    for (const data::Example* example : opened.examples) {
      data::add_judgments(*example, judgments);
      if (judgments.contains(example->id)) asked.push_back(example);
    }
    CONTEXTURE_DATA_REQUIRE(
        !asked.empty(), "none of ", opened.examples.size(),
        " examples names a gold document (\"documents\"), so retrieval can't be scored. Give "
        "--data "
        "FILE with examples that do; eval qa looks for the answers in what was retrieved.");
    const int64_t depth = *std::max_element(trec.cutoffs.begin(), trec.cutoffs.end());
    CONTEXTURE_REQUIRE(depth >= 1, "a cut-off is at least 1, got ", depth);
    const auto rankings = train::Evaluator(opened.session).rank(opened.set, asked, depth);
    if (!opened.first) return 0;
    if (opened.bad.count > 0) log::warn("{}", opened.bad.summary());
    data::TrecRun results;
    for (size_t i = 0; i < asked.size(); ++i) {
      for (const retriever::Hit& hit : rankings[i]) {
        results[asked[i]->id].push_back({opened.session.corpus().document(hit.row).id, hit.score});
      }
    }
    if (!output.empty()) {
      data::write_qrels(output + ".qrels", judgments);
      data::write_run(output + ".run", results, "contexture");
    }
    return report(judgments, [&](data::BadRecords&) {
      eval::ScoreTable table = eval::score_retrieval(judgments, results, trec);
      table.notes["examples_without_gold"] = opened.examples.size() - asked.size();
      return table;
    });
  }
};

}  // namespace

Command eval_retrieval_command(CLI::App& group) {
  auto options = std::make_shared<RetrievalOptions>();
  CLI::App* app = group.add_subcommand(
      "retrieval",
      "nDCG, MAP, recall, precision, MRR: of a run's retriever on its data, or of a TREC run");
  CLI::Option* folder = options->source.add_to(*app);
  app->add_option("--output", options->output,
                  "of a run: writes OUTPUT.run and OUTPUT.qrels, TREC files")
      ->needs(folder);
  app->add_option("--qrels", options->qrels, "judgments: TREC qrels or BEIR's .tsv")
      ->excludes(folder);
  app->add_option("--run", options->run, "results: query Q0 document rank score tag")
      ->excludes(folder);
  app->add_option("-k,--cutoffs", options->trec.cutoffs,
                  "cut-offs, as in 1,5,10; a run's retriever is asked for as many documents as the "
                  "largest")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  app->add_option(
         "--missing", options->missing,
         "judged queries without a result: skip them (as trec_eval does), or zero (its -c)")
      ->capture_default_str()
      ->excludes(folder);
  app->add_flag("--drop-same-id", options->trec.drop_same_id,
                "leave out results whose document id is the query's, as BEIR does");
  options->scores.add_to(*app, "TREC run");
  return {app, [options] {
            CONTEXTURE_USAGE_REQUIRE(options->missing == "skip" || options->missing == "zero",
                                     "--missing ", options->missing, " is neither skip nor zero.");
            options->trec.missing_is_zero = options->missing == "zero";
            if (!options->source.run.empty()) {
              return options->source.open(
                  [&](const OpenRun& opened) { return options->checkpoint(opened); });
            }
            CONTEXTURE_USAGE_REQUIRE(!options->qrels.empty() && !options->run.empty(),
                                     "contexture eval retrieval needs a run folder, or --qrels and "
                                     "--run: see --help.");
            return options->files();
          }};
}

}  // namespace contexture::cli
