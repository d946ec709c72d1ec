// What every evaluation gives: figures of each example side by side, their means with bootstrap
// intervals, and the comparison of two systems on the same examples. Pure functions: any thread.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "eval/bootstrap.h"

namespace contexture::eval {

struct ScoreTable {
  struct Column {
    std::string name;            // "ndcg@10"
    std::vector<double> values;  // [ids]
    double scale = 1.0;  // the mean is printed times this, as the reference scorer prints it
  };
  std::vector<std::string> ids;  // of the examples, distinct
  std::vector<Column> columns;   // in the order to print
  // Figures of the whole set that are no mean over examples (BLEU), already scaled.
  std::vector<std::pair<std::string, double>> totals;
  Json notes;  // counts and remarks that belong beside the figures; null or an object

  Column& add(std::string name, double scale = 1.0);  // a column to fill; valid until the next add
};

// Means of groups of examples, for a table's totals.
class GroupMeans {
 public:
  void add(const std::string& group, double value);
  std::optional<double> mean(const std::string& group) const;  // nothing when the group is empty
  void append_to(std::vector<std::pair<std::string, double>>& totals,
                 double scale) const;  // by name

 private:
  std::map<std::string, std::pair<double, int64_t>> groups_;  // sum and count
};

// One mean a column, scaled, in the order of the columns. Every column needs one finite value for
// each id.
std::vector<Interval> table_means(const ScoreTable& table, const BootstrapOptions& options);

// {"n", "measures": {name: {"mean","low","high"}}, "totals": {name: value}, then the notes}.
Json table_json(const ScoreTable& table, const BootstrapOptions& options);
// One JSON object a line: {"id", name: value ...}, unscaled.
std::string table_lines(const ScoreTable& table);

// a against b, by column: {"n", "measures": {name: {"a","b","difference","low","high","p","better",
// "worse","same"}}, "totals": {name: {"a","b","difference"}}}. The interval of the difference is
// the paired bootstrap's, p the two-sided sign-flip test's (paired_test.h). DataError, naming some,
// when the two do not hold the same ids; UserError when they do not hold the same columns.
Json compare_tables(const ScoreTable& a, const ScoreTable& b, const BootstrapOptions& options);

}  // namespace contexture::eval
