#include "cli/held_out.h"

#include <filesystem>

#include "core/files.h"
#include "eval/report.h"

namespace contexture::cli {
namespace {
namespace fs = std::filesystem;

std::string read_credits(const train::RunConfig& config) {
  const fs::path file = train::data_path(config.data, "CREDITS.md");
  return fs::exists(file) ? read_file(file) : "";
}

}  // namespace

HeldOut evaluate_held_out(train::Session& session, const train::PictureSet& set,
                          const std::vector<const data::Example*>& examples, bool edits) {
  const train::Evaluator evaluator(session);
  HeldOut out;
  out.figures = evaluator.held_out(set, examples, &out.samples, &out.records);
  if (!edits) return out;
  int64_t asked = 0;
  out.figures["edit_follow"] = evaluator.edit_follow(set, examples, &asked, &out.edits);
  out.figures["edits"] = asked;
  return out;
}

Json keep_held_out(const train::RunConfig& config, const HeldOut& found, const Json& train) {
  const fs::path dir = config.run.dir, file = dir / "summary.json";
  Json summary = fs::exists(file) ? read_json_file(file.string()) : Json::object();
  if (!train.is_null()) summary["train"] = train;
  summary["held_out"] = found.figures;
  write_file_atomic(file, summary.dump(1));
  const Json shown{
      {"samples", found.samples}, {"edits", found.edits}, {"credits", read_credits(config)}};
  write_file_atomic(dir / "samples.json", shown.dump(1));
  eval::write_report(config.run.dir);
  return summary;
}

}  // namespace contexture::cli
