#include "cli/scores.h"

#include <iostream>

#include "core/files.h"
#include "core/format.h"
#include "core/json.h"
#include "core/log.h"

namespace contexture::cli {
namespace {

void print_table(const eval::ScoreTable& table, const eval::BootstrapOptions& options) {
  const auto means = eval::table_means(table, options);
  std::cout << format("{:<16} {:>10}   {:.0f}% interval, n={}\n", "measure", "mean",
                      100 * options.level, table.ids.size());
  for (size_t c = 0; c < means.size(); ++c) {
    std::cout << format("{:<16} {:>10.4f}   {:.4f} .. {:.4f}\n", table.columns[c].name,
                        means[c].mean, means[c].low, means[c].high);
  }
  for (const auto& [name, value] : table.totals)
    std::cout << format("{:<16} {:>10.4f}\n", name, value);
  for (const auto& [name, note] : table.notes.items()) {
    std::cout << format("{}: {}\n", name, note.is_string() ? note.get<std::string>() : note.dump());
  }
}

void print_comparison(const eval::ScoreTable& table, const Json& comparison) {
  std::cout << format("\n{:<16} {:>10} {:>10} {:>10}   {:<22} {:>8}  better/worse/same\n",
                      "compared", "this", "other", "difference", "interval", "p");
  for (const auto& column : table.columns) {
    const Json& m = comparison["measures"][column.name];
    std::cout << format("{:<16} {:>10.4f} {:>10.4f} {:>+10.4f}   {:<22} {:>8.4f}  {}/{}/{}\n",
                        column.name, m["a"].get<double>(), m["b"].get<double>(),
                        m["difference"].get<double>(),
                        format("{:.4f} .. {:.4f}", m["low"].get<double>(), m["high"].get<double>()),
                        m["p"].get<double>(), m["better"].get<int64_t>(), m["worse"].get<int64_t>(),
                        m["same"].get<int64_t>());
  }
  for (const auto& [name, value] : table.totals) {
    const Json& t = comparison["totals"][name];
    std::cout << format("{:<16} {:>10.4f} {:>10.4f} {:>+10.4f}\n", name, value,
                        t["b"].get<double>(), t["difference"].get<double>());
  }
}

}  // namespace

void ScoreOptions::add_to(CLI::App& app, const std::string& system) {
  app.add_option("--per-query", per_query, "file to write, JSONL: the figures of each example");
  app.add_option("--compare", compare,
                 "another " + system + " file: differences, their intervals, and a paired test");
  app.add_option("--level", bootstrap.level, "of the confidence intervals")->capture_default_str();
  app.add_option("--resamples", bootstrap.resamples, "of the bootstrap")->capture_default_str();
  app.add_option("--seed", bootstrap.seed, "of the bootstrap and the paired test")
      ->capture_default_str();
  app.add_option("--bad-records", bad_records, "fail or skip")->capture_default_str();
  app.add_flag("--json", json, "print one JSON object on stdout");
}

int report_scores(const ScoreOptions& options, const ScoreOwn& own, const ScoreFile& other) {
  data::BadRecords bad(data::BadRecords::parse_policy(options.bad_records));
  const eval::ScoreTable table = own(bad);
  Json out = eval::table_json(table, options.bootstrap);
  if (!options.compare.empty()) {
    out["compared"] = eval::compare_tables(table, other(options.compare, bad), options.bootstrap);
    out["compared"]["with"] = options.compare;
  }
  if (!options.per_query.empty()) write_file_atomic(options.per_query, eval::table_lines(table));
  out["bad_records"] = bad.count;
  if (bad.count > 0) log::warn("{}", bad.summary());
  if (options.json) {
    print_json(out);
    return 0;
  }
  print_table(table, options.bootstrap);
  if (!options.compare.empty()) print_comparison(table, out["compared"]);
  return 0;
}

}  // namespace contexture::cli
