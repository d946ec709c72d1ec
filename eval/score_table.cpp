#include "eval/score_table.h"

#include <unordered_map>

#include "core/error.h"
#include "core/json.h"
#include "eval/paired_test.h"

namespace contexture::eval {
namespace {

Json interval_json(const Interval& interval) {
  return {{"mean", interval.mean}, {"low", interval.low}, {"high", interval.high}};
}

// Position of every id of `ids`.
std::unordered_map<std::string, size_t> positions(const std::vector<std::string>& ids) {
  std::unordered_map<std::string, size_t> out;
  for (size_t i = 0; i < ids.size(); ++i) {
    CONTEXTURE_INVARIANT(out.emplace(ids[i], i).second, "id twice in a score table: ", ids[i]);
  }
  return out;
}

// Where each id of a stands in b. DataError unless both hold the same ids.
std::vector<size_t> align(const ScoreTable& a, const ScoreTable& b) {
  const auto in_b = positions(b.ids);
  const auto in_a = positions(a.ids);
  std::vector<size_t> places;
  std::vector<std::string> only;
  for (const std::string& id : a.ids) {
    const auto found = in_b.find(id);
    if (found == in_b.end()) {
      only.push_back(id + " (first only)");
    } else {
      places.push_back(found->second);
    }
  }
  for (const std::string& id : b.ids) {
    if (!in_a.contains(id)) only.push_back(id + " (second only)");
  }
  std::string some;
  for (size_t i = 0; i < only.size() && i < 5; ++i) some += (i == 0 ? "" : ", ") + only[i];
  CONTEXTURE_DATA_REQUIRE(only.empty(), "two systems can be compared only on the same examples; ",
                          only.size(), " were scored for one of them alone: ", some,
                          only.size() > 5 ? " ..." : "");
  return places;
}

}  // namespace

ScoreTable::Column& ScoreTable::add(std::string name, double scale) {
  columns.push_back({std::move(name), {}, scale});
  columns.back().values.reserve(ids.size());
  return columns.back();
}

void GroupMeans::add(const std::string& group, double value) {
  auto& [sum, count] = groups_[group];
  sum += value;
  ++count;
}

std::optional<double> GroupMeans::mean(const std::string& group) const {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return std::nullopt;
  return found->second.first / static_cast<double>(found->second.second);
}

void GroupMeans::append_to(std::vector<std::pair<std::string, double>>& totals,
                           double scale) const {
  for (const auto& group : groups_) totals.emplace_back(group.first, scale * *mean(group.first));
}

std::vector<Interval> table_means(const ScoreTable& table, const BootstrapOptions& options) {
  std::vector<std::span<const double>> values;
  for (const auto& column : table.columns) {
    CONTEXTURE_INVARIANT(column.values.size() == table.ids.size(), column.name, ": ",
                         column.values.size(), " values for ", table.ids.size(), " examples");
    values.push_back(column.values);
  }
  std::vector<Interval> means = bootstrap_means(values, options);
  for (size_t c = 0; c < means.size(); ++c) {
    const double scale = table.columns[c].scale;
    means[c] = {means[c].mean * scale, means[c].low * scale, means[c].high * scale};
  }
  return means;
}

Json table_json(const ScoreTable& table, const BootstrapOptions& options) {
  Json out = table.notes.is_object() ? table.notes : Json::object();
  out["n"] = table.ids.size();
  out["measures"] = Json::object();
  const auto means = table_means(table, options);
  for (size_t c = 0; c < means.size(); ++c)
    out["measures"][table.columns[c].name] = interval_json(means[c]);
  for (const auto& [name, value] : table.totals) out["totals"][name] = value;
  return out;
}

std::string table_lines(const ScoreTable& table) {
  std::string lines;
  for (size_t i = 0; i < table.ids.size(); ++i) {
    Json line{{"id", table.ids[i]}};
    for (const auto& column : table.columns) line[column.name] = column.values[i];
    lines += line.dump() + "\n";
  }
  return lines;
}

Json compare_tables(const ScoreTable& a, const ScoreTable& b, const BootstrapOptions& options) {
  const std::vector<size_t> places = align(a, b);
  CONTEXTURE_REQUIRE(a.columns.size() == b.columns.size() && a.totals.size() == b.totals.size(),
                     "two systems can be compared only by the same measures");
  Json out{{"n", a.ids.size()}, {"measures", Json::object()}};
  std::vector<std::vector<double>> differences;
  std::vector<std::span<const double>> spans;
  std::vector<PairedTest> tests;
  PairedTestOptions test_options;
  test_options.seed = options.seed;
  for (size_t c = 0; c < a.columns.size(); ++c) {
    const auto& first = a.columns[c];
    CONTEXTURE_REQUIRE(first.name == b.columns[c].name,
                       "two systems can be compared only by the same ", "measures, not by ",
                       first.name, " and ", b.columns[c].name);
    std::vector<double> second, difference;
    for (size_t i = 0; i < places.size(); ++i) {
      second.push_back(b.columns[c].values[places[i]]);
      difference.push_back(first.values[i] - second[i]);
    }
    tests.push_back(paired_test(first.values, second, test_options));
    differences.push_back(std::move(difference));
  }
  for (const auto& difference : differences) spans.emplace_back(difference);
  const auto intervals = bootstrap_means(spans, options);
  const auto mean = [](const ScoreTable::Column& column) {
    double sum = 0.0;
    for (const double v : column.values) sum += v;
    return column.scale * sum / static_cast<double>(column.values.size());
  };
  for (size_t c = 0; c < a.columns.size(); ++c) {
    const double scale = a.columns[c].scale;
    out["measures"][a.columns[c].name] = {{"a", mean(a.columns[c])},
                                          {"b", mean(b.columns[c])},
                                          {"difference", scale * intervals[c].mean},
                                          {"low", scale * intervals[c].low},
                                          {"high", scale * intervals[c].high},
                                          {"p", tests[c].p_value},
                                          {"better", tests[c].better},
                                          {"worse", tests[c].worse},
                                          {"same", tests[c].same}};
  }
  for (size_t t = 0; t < a.totals.size(); ++t) {
    const auto& [name, value] = a.totals[t];
    out["totals"][name] = {
        {"a", value}, {"b", b.totals[t].second}, {"difference", value - b.totals[t].second}};
  }
  return out;
}

}  // namespace contexture::eval
