#include "eval/internal/run_records.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace contexture::eval {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMaxExtraSeries = 12;
// Axes, what has a place of its own on the page, and samples_seen, whose curve says nothing.
constexpr std::array kUsualColumns = {
    "step", "time_s", "loss", "lr", "grad_norm", "examples_per_s", "tokens_per_s", "samples_seen"};

// Columns that grow together; NaN stands for an unknown figure.
class Columns {
 public:
  void start_row() { ++num_rows_; }
  void set(const std::string& name, double value) {
    auto& column = columns_[name];
    column.resize(num_rows_, kUnknown);
    column.back() = value;
  }

  size_t num_rows() const { return num_rows_; }
  const std::map<std::string, std::vector<double>>& all() {
    for (auto& [name, column] : columns_) column.resize(num_rows_, kUnknown);
    return columns_;
  }

  // Rows merged in equal runs of `run`: means of what is known. A merged "step" is the last one.
  Json to_json(size_t run) {
    Json out = Json::object();
    for (const auto& [name, column] : all()) {
      Json values = Json::array();
      for (size_t from = 0; from < num_rows_; from += run) {
        const size_t to = std::min(num_rows_, from + run);
        double sum = 0.0;
        size_t known = 0;
        for (size_t i = from; i < to; ++i) {
          if (!std::isfinite(column[i])) continue;
          sum += column[i];
          ++known;
        }
        const bool is_axis = name == "step" || name == "time_s";
        const double value = is_axis ? column[to - 1] : sum / static_cast<double>(known);
        values.push_back(std::isfinite(value) ? Json(value) : Json());
      }
      out[name] = std::move(values);
    }
    return out;
  }

 private:
  size_t num_rows_ = 0;
  std::map<std::string, std::vector<double>> columns_;
};

void set_figures(Columns& columns, const std::string& prefix, const Json& figures) {
  for (const auto& [key, value] : figures.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object()) set_figures(columns, name, value);
    if (value.is_number()) columns.set(name, value.get<double>());
  }
}

std::optional<Json> parse_line(std::string_view line) {
  try {
    Json record = parse_json(line, "metrics.jsonl");
    if (record.is_object() && record.contains("step") && record["step"].is_number()) return record;
  } catch (const UserError&) {
    // The torn last line of a killed run, or a damaged one: the caller counts it.
  }
  return std::nullopt;
}

bool is_marked(const Json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_boolean() && found->get<bool>();
}

class Reader {
 public:
  void read(std::string_view text) {
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(text.size(), end + 1));
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const auto record = parse_line(line);
      if (record) {
        add(*record);
      } else {
        ++num_bad_lines_;
      }
    }
  }

  Json result(size_t max_points) {
    const size_t run = std::max<size_t>(1, (train_.num_rows() + max_points - 1) / max_points);
    Json extra = Json::array();
    for (const auto& [name, column] : train_.all()) {
      const bool usual =
          std::find(kUsualColumns.begin(), kUsualColumns.end(), name) != kUsualColumns.end();
      if (!usual && extra.size() < kMaxExtraSeries) extra.push_back(name);
    }
    return {{"train", train_.to_json(run)},
            {"evals", evals_.to_json(1)},
            {"refreshes", refreshes_},
            {"extra_series", extra},
            {"last_step", last_step_},
            {"seconds", number(time_s_)},
            {"thinned", run},
            {"num_bad_lines", num_bad_lines_}};
  }

 private:
  static Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

  void add(const Json& record) {
    const double step = record["step"].get<double>();
    last_step_ = std::max(last_step_, step);
    if (const auto t = record.find("time_s"); t != record.end() && t->is_number()) {
      time_s_ = t->get<double>();
    }
    if (is_marked(record, "refresh")) {
      refreshes_.push_back({{"step", step}, {"time", number(time_s_)}});
    }
    if (record.contains("loss")) {
      train_.start_row();
      for (const auto& [key, value] : record.items()) {
        // A loss that was not finite is null in the file: its place is marked in the curve.
        if (value.is_number()) train_.set(key, value.get<double>());
      }
    }
    if (const auto figures = record.find("eval"); figures != record.end() && figures->is_object()) {
      evals_.start_row();
      set_figures(evals_, "", *figures);
      evals_.set("step", step);
      evals_.set("time_s", time_s_);
    }
  }

  Columns train_, evals_;
  Json refreshes_ = Json::array();
  double last_step_ = 0.0;
  double time_s_ = kUnknown;  // of the last record that says
  size_t num_bad_lines_ = 0;
};

}  // namespace

Json run_curves(std::string_view text, size_t max_points) {
  Reader reader;
  reader.read(text);
  return reader.result(std::max<size_t>(1, max_points));
}

}  // namespace contexture::eval
