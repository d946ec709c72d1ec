#include "cli/scores.h"
#include "core/error.h"
#include "core/log.h"
#include "eval/trec_scores.h"

namespace contexture::cli {

Command eval_retrieval_command(CLI::App& group) {
  struct Options {
    std::string qrels, run, missing = "skip";
    eval::TrecOptions trec;
    ScoreOptions scores;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(
      "retrieval", "Score a TREC run against judgments: nDCG, MAP, recall, precision, MRR");
  app->add_option("--qrels", options->qrels, "judgments: TREC qrels or BEIR's .tsv")->required();
  app->add_option("--run", options->run, "results: query Q0 document rank score tag")->required();
  app->add_option("-k,--cutoffs", options->trec.cutoffs, "cut-offs, as in 1,5,10")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  app->add_option(
         "--missing", options->missing,
         "judged queries without a result: skip them (as trec_eval does), or zero (its -c)")
      ->capture_default_str();
  app->add_flag("--drop-same-id", options->trec.drop_same_id,
                "leave out results whose document id is the query's, as BEIR does");
  options->scores.add_to(*app, "run");
  return {app, [options] {
            CONTEXTURE_USAGE_REQUIRE(options->missing == "skip" || options->missing == "zero",
                                     "--missing ", options->missing, " is neither skip nor zero.");
            options->trec.missing_is_zero = options->missing == "zero";
            data::BadRecords bad(data::BadRecords::parse_policy(options->scores.bad_records));
            const data::Qrels qrels = data::read_qrels(options->qrels, bad);
            if (bad.count > 0) log::warn("{}", bad.summary());
            return report_scores(options->run, options->scores,
                                 [&](const std::string& file, data::BadRecords& run_bad) {
                                   eval::ScoreTable table = eval::score_retrieval(
                                       qrels, data::read_run(file, run_bad), options->trec);
                                   const auto missing =
                                       table.notes["missing_queries"].get<int64_t>();
                                   if (missing > 0 && !options->trec.missing_is_zero) {
                                     log::warn(
                                         "{}: {} of {} judged queries have no result and are left "
                                         "out of every mean, as trec_eval does; "
                                         "--missing zero counts them as 0",
                                         file, missing, qrels.size());
                                   }
                                   return table;
                                 });
          }};
}

}  // namespace contexture::cli
