#include "train/model_folder.h"

#include <memory>
#include <set>

#include "core/config.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "train/published_encoder.h"
#include "train/session.h"

namespace contexture::train {
namespace fs = std::filesystem;
namespace {

constexpr int kFormatVersion = 1;
constexpr const char* kFormat = "contexture-model";
constexpr const char *kConfig = "config.json", *kWeights = "model.safetensors",
                     *kTokenizer = "tokenizer.model", *kEncoder = "encoder";

bool is_run(const fs::path& folder) { return fs::exists(folder / "config.resolved.json"); }

// The exported folder's config.json, checked in form.
Json read_config(const fs::path& folder) {
  const std::string path = (folder / kConfig).string();
  CONTEXTURE_DATA_REQUIRE(
      fs::exists(path), folder.string(),
      " is no model: config.json is missing, and it is no run either. Write one "
      "with contexture checkpoint export RUN FOLDER.");
  Json config = read_json_file(path);
  CONTEXTURE_DATA_REQUIRE(config.is_object() && config.value("format", Json()) == kFormat &&
                              config.contains("model") && config["model"].is_object(),
                          path, " is not the config.json of an exported model.");
  CONTEXTURE_DATA_REQUIRE(json_get<int>(config, "version", path) <= kFormatVersion, path,
                          " has version ", config["version"].dump(), ", newer than this program's ",
                          kFormatVersion, ". Update the program.");
  return config;
}

// Settings that fit any shapes (heads, pooling, temperatures) and yet change what weights mean.
void warn_of_other_settings(const Json& ours, const Json& theirs, const std::string& from) {
  std::string differences;
  for (const auto& [key, value] : theirs.items()) {
    if (key == "text_encoder" || !ours.contains(key) || ours[key] == value) continue;
    differences += concat("\n  model.", key, "=", ours[key].dump(), ", there ", value.dump());
  }
  if (!differences.empty()) log::warn("{} was trained with other settings:{}", from, differences);
}

}  // namespace

fs::path tokenizer_of(const RunConfig& config) {
  return config.data.tokenizer.empty() ? fs::path(config.run.dir) / kTokenizer
                                       : fs::path(data_path(config.data, config.data.tokenizer));
}

parallel::Checkpoint model_checkpoint(const fs::path& run_dir, int64_t step) {
  const fs::path checkpoints = run_dir / "checkpoints";
  const std::vector<int64_t> steps = parallel::list_checkpoints(checkpoints);
  CONTEXTURE_DATA_REQUIRE(!steps.empty(), run_dir.string(), " has no complete checkpoint yet.");
  return parallel::load_checkpoint(
      parallel::checkpoint_path(checkpoints, step < 0 ? steps.back() : step), {"model"});
}

void export_model(const fs::path& run_dir, const fs::path& to, int64_t step) {
  RunConfig config = settings_of(run_dir, {});
  CONTEXTURE_USAGE_REQUIRE(!fs::exists(to), to.string(), " exists. Name another folder.");
  const parallel::Checkpoint checkpoint = model_checkpoint(run_dir, step);
  const std::string tokenizer = read_file(tokenizer_of(config));
  make_folders(to);
  if (!config.model.text_encoder.empty()) {
    read_text_encoder(config);
    write_encoder_folder(kept_encoder(run_dir), *config.model.text, to / kEncoder);
    config.model.text_encoder = kEncoder;
  }
  write_file_atomic(to / kTokenizer, tokenizer);
  parallel::write_tensors(to / kWeights, checkpoint.files.at("model"), {{"format", "pt"}});
  const Json settings = to_json(config);
  Json out{{"format", kFormat},
           {"version", kFormatVersion},
           {"step", checkpoint.step},
           {"tokenizer", kTokenizer},
           {"model", settings.at("model")}};
  for (const char* key :
       {"query", "max_document_tokens", "max_question_tokens", "max_answer_tokens"})
    out["data"][key] = settings.at("data").at(key);
  write_file_atomic(to / kConfig, out.dump(1) + "\n");  // last: without it there is no model
}

fs::path starting_tokenizer(const fs::path& from) {
  if (is_run(from)) return tokenizer_of(settings_of(from, {}));
  read_config(from);
  return from / kTokenizer;
}

std::function<at::Tensor(const parallel::Parameter&)> starting_values(
    const RunConfig& config, const parallel::ParameterStore& store, bool warns) {
  const fs::path from = config.train.start_from;
  const bool run = is_run(from);
  const Json theirs =
      run ? to_json(settings_of(from, {})).at("model") : read_config(from).at("model");
  const fs::path tokenizer = starting_tokenizer(from);
  CONTEXTURE_DATA_REQUIRE(
      read_file(tokenizer_of(config)) == read_file(tokenizer), "train.start_from=", from.string(),
      " has another tokenizer than this run, so that its embeddings are of other pieces. Set "
      "data.tokenizer=",
      fs::absolute(tokenizer).string(), ".");
  const auto weights = std::make_shared<const parallel::NamedTensors>(
      run ? model_checkpoint(from).files.at("model") : parallel::read_tensors(from / kWeights));
  // The null document's score belongs to the objective realm, not to the model: runs with and
  // without it follow one another.
  const auto of_objective = [](const std::string& name) { return name == "score.null"; };
  std::string problems;
  std::set<std::string> known;
  for (const auto& p : store.all()) {
    known.insert(p->name);
    const auto found = weights->find(p->name);
    if (found == weights->end()) {
      if (!of_objective(p->name)) problems += concat("\n  ", p->name, " is missing there");
    } else if (found->second.sizes() != at::IntArrayRef(p->shape)) {
      problems += concat("\n  ", p->name, " has shape ", found->second.sizes(), " there, ",
                         at::IntArrayRef(p->shape), " here");
    }
  }
  for (const auto& [name, value] : *weights) {
    if (known.count(name) == 0 && !of_objective(name))
      problems += concat("\n  ", name, " is no parameter here");
  }
  CONTEXTURE_DATA_REQUIRE(problems.empty(), "train.start_from=", from.string(),
                          " does not fit this model. Give it that model's settings:", problems);
  if (warns) warn_of_other_settings(to_json(config).at("model"), theirs, from.string());
  return [weights](const parallel::Parameter& p) {
    const auto found = weights->find(p.name);
    return found == weights->end() ? at::Tensor() : found->second;
  };
}

}  // namespace contexture::train
