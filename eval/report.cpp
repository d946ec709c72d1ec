#include "eval/report.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "eval/internal/picture_table.h"
#include "eval/internal/report_samples.h"
#include "eval/internal/run_records.h"

namespace contexture::eval {
namespace {

namespace fs = std::filesystem;

// Reads the files of one run folder; what cannot be read is noted, not fatal.
class RunReader {
 public:
  explicit RunReader(const std::string& run_dir) : dir_(run_dir) {}

  // null when the file is missing or damaged.
  Json json(const char* name) {
    const auto content = text(name);
    if (!content) return nullptr;
    try {
      return parse_json(*content, name);
    } catch (const UserError& error) {
      problems_.push_back(error.what());
      return nullptr;
    }
  }

  std::optional<std::string> text(const char* name) {
    const fs::path path = dir_ / name;
    std::error_code error;
    if (!fs::exists(path, error)) return std::nullopt;
    try {
      return read_file(path);
    } catch (const UserError& failure) {
      problems_.push_back(failure.what());
      return std::nullopt;
    }
  }

  std::vector<std::string>& problems() { return problems_; }

 private:
  fs::path dir_;
  std::vector<std::string> problems_;
};

// Leaves of nested objects under dotted names; lists count as leaves.
void flatten(const Json& json, const std::string& prefix, Json& out) {
  for (const auto& [key, value] : json.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object()) {
      flatten(value, name, out);
    } else {
      out[name] = value;
    }
  }
}

Json config_difference(const Json& config, const Json& defaults) {
  if (!config.is_object() || !defaults.is_object()) return nullptr;
  Json ours = Json::object(), usual = Json::object(), difference = Json::array();
  flatten(config, "", ours);
  flatten(defaults, "", usual);
  for (const auto& [key, value] : ours.items()) {
    const auto other = usual.find(key);
    if (other != usual.end() && *other == value) continue;
    Json entry = {{"key", key}, {"value", value}};
    if (other != usual.end()) entry["default"] = *other;
    difference.push_back(entry);
  }
  return difference;
}

std::optional<double> number_at(const Json& json, const char* pointer) {
  const Json::json_pointer place(pointer);
  if (!json.is_object() || !json.contains(place) || !json.at(place).is_number()) {
    return std::nullopt;
  }
  return json.at(place).get<double>();
}

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string percent(double value) { return formatted("%.0f %%", value); }

// The last value of a column that is known.
std::optional<double> last_of(const Json& columns, const char* name) {
  const auto column = columns.find(name);
  if (column == columns.end()) return std::nullopt;
  for (auto value = column->rbegin(); value != column->rend(); ++value) {
    if (value->is_number()) return value->get<double>();
  }
  return std::nullopt;
}

// A run without a summary: what it got to.
std::string unfinished_verdict(const Json& curves) {
  const auto step = static_cast<int64_t>(curves["last_step"].get<double>());
  if (step == 0) return "This run has not logged a step yet.";
  std::string verdict = concat("Not finished: the log ends at step ", step);
  if (const auto loss = last_of(curves["train"], "loss"))
    verdict += ", loss " + formatted("%.4g", *loss);
  verdict += ".";
  const auto em = last_of(curves["evals"], "em.retrieved");
  const auto evaluated = last_of(curves["evals"], "step");
  if (em && evaluated) {
    verdict += concat(" At its last evaluation, step ", static_cast<int64_t>(*evaluated), ", ",
                      percent(*em), " of the held-out answers were exact.");
  }
  return verdict;
}

std::string verdict_of(const Json& summary, const Json& curves) {
  if (summary.is_object() && !text_of(summary, "verdict").empty()) {
    return text_of(summary, "verdict");
  }
  const auto retrieved = number_at(summary, "/held_out/em/retrieved");
  if (!retrieved) return unfinished_verdict(curves);
  std::string verdict;
  if (const auto n = number_at(summary, "/held_out/n")) {
    verdict = concat("Of ", static_cast<int64_t>(*n), " held-out questions, ");
  }
  verdict += concat(percent(*retrieved), " are answered exactly with retrieved documents");
  if (const auto closed = number_at(summary, "/held_out/em/closed_book")) {
    verdict += concat(", ", percent(*closed), " without any");
  }
  verdict += ".";
  if (const auto recall = number_at(summary, "/held_out/recall_at/1")) {
    verdict += concat(" A right document comes first for ", percent(*recall), ".");
  }
  if (const auto follow = number_at(summary, "/held_out/edit_follow")) {
    verdict += concat(" When a fact in the index is edited, ", percent(*follow),
                      " of the answers follow.");
  }
  return verdict;
}

// The few facts of the header: short entries of run.json.
Json header_facts(const Json& environment) {
  Json facts = Json::object();
  for (const char* key : {"version", "commit", "machine", "device", "precision", "started"}) {
    if (environment.is_object() && !text_of(environment, key).empty()) {
      facts[key] = text_of(environment, key);
    }
  }
  return facts;
}

Json object_or_null(Json json) { return json.is_object() ? json : Json(); }

}  // namespace

Json report_data(const std::string& run_dir) {
  CONTEXTURE_REQUIRE(fs::is_directory(run_dir), run_dir,
                     ": not a run folder. Give the folder that holds metrics.jsonl.");
  RunReader reader(run_dir);
  Json curves = run_curves(reader.text("metrics.jsonl").value_or(""));
  const Json summary = object_or_null(reader.json("summary.json"));
  const Json config = object_or_null(reader.json("config.resolved.json"));
  const Json samples = object_or_null(reader.json("samples.json"));
  Json environment = Json::object();
  if (const Json raw = reader.json("run.json"); raw.is_object()) flatten(raw, "", environment);
  Json health = object_or_null(reader.json("data_health.json"));

  PictureTable pictures(run_dir);
  Json data = {
      {"name", fs::path(fs::absolute(run_dir).lexically_normal() / "").parent_path().filename()},
      {"verdict", verdict_of(summary, curves)},
      {"summary", summary},
      {"config", config},
      {"config_diff", config_difference(config, reader.json("config.defaults.json"))},
      {"environment", environment},
      {"facts", header_facts(environment)},
      {"train", curves["train"]},
      {"evals", curves["evals"]},
      {"refreshes", curves["refreshes"]},
      {"extra_series", curves["extra_series"]},
      {"progress",
       {{"last_step", curves["last_step"]},
        {"seconds", curves["seconds"]},
        {"thinned", curves["thinned"]}}},
      {"samples", clean_samples(samples, pictures)},
      {"edits", clean_edits(samples, pictures)},
      {"data_health", health},
      {"credits", samples.is_object() ? text_of(samples, "credits") : ""}};
  data["images"] = pictures.uris();
  if (const auto bad = curves["num_bad_lines"].get<int64_t>(); bad > 0) {
    reader.problems().push_back(concat("metrics.jsonl: ", bad, " unreadable line(s) left out"));
  }
  if (pictures.num_refused() > 0) {
    reader.problems().push_back(concat(
        pictures.num_refused(), " picture(s) left out; the first: ", pictures.first_refusal()));
  }
  data["problems"] = reader.problems();
  return data;
}

void write_report(const std::string& run_dir) {
  write_file_atomic(fs::path(run_dir) / "report.html",
                    std::string_view(report_page(report_data(run_dir))));
}

}  // namespace contexture::eval
