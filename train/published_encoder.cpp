#include "train/published_encoder.h"

#include <map>
#include <memory>

#include "core/config.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "model/bert_weights.h"
#include "train/model_folder.h"

namespace contexture::train {
namespace fs = std::filesystem;

fs::path kept_encoder(const fs::path& run_dir) { return run_dir / "encoder"; }

void read_text_encoder(RunConfig& config) {
  const fs::path given = config.model.text_encoder, kept = kept_encoder(config.run.dir);
  if (given.empty()) return;
  config.model.read_text_encoder(fs::exists(given) || !fs::exists(kept) ? given : kept);
}

void write_encoder_folder(const fs::path& from, const model::SentenceEncoderConfig& config,
                          const fs::path& to) {
  make_folders(to / "1_Pooling");
  for (const char* name : {"config.json", "vocab.txt", "tokenizer_config.json", "tokenizer.json",
                           "special_tokens_map.json"}) {
    if (fs::exists(from / name)) write_file_atomic(to / name, read_file(from / name));
  }
  Json modules = Json::array();
  for (const auto& [type, path] : {std::pair{"Transformer", ""}, std::pair{"Pooling", "1_Pooling"},
                                   std::pair{"Normalize", "2_Normalize"}}) {
    modules.push_back({{"idx", modules.size()},
                       {"name", std::to_string(modules.size())},
                       {"path", path},
                       {"type", concat("sentence_transformers.models.", type)}});
  }
  write_file_atomic(to / "modules.json", modules.dump(2));
  write_file_atomic(to / "1_Pooling" / "config.json",
                    Json{{"word_embedding_dimension", config.width},
                         {"pooling_mode_cls_token", !config.mean_pooling},
                         {"pooling_mode_mean_tokens", config.mean_pooling}}
                        .dump(2));
  write_file_atomic(to / "sentence_bert_config.json",
                    Json{{"max_seq_length", config.max_tokens}, {"do_lower_case", false}}.dump(2));
}

std::function<at::Tensor(const parallel::Parameter&)> published_values(
    const model::ModelConfig& config) {
  struct Source {
    model::ForeignWeights weights;
    std::map<std::string, model::TextParameter> parameters;
  };
  const auto source =
      std::make_shared<Source>(Source{model::ForeignWeights::open(config.text_encoder), {}});
  for (model::TextParameter& parameter : model::text_parameters(*config.text))
    source->parameters.emplace(parameter.name, std::move(parameter));
  return [source](const parallel::Parameter& p) {
    const auto known = source->parameters.find(p.name);
    return known == source->parameters.end()
               ? at::Tensor()
               : model::published_value(source->weights, known->second);
  };
}

void export_encoder(const fs::path& run_dir, const fs::path& to, int64_t step) {
  RunConfig config;
  const fs::path resolved = run_dir / "config.resolved.json";
  CONTEXTURE_DATA_REQUIRE(fs::exists(resolved), run_dir.string(),
                          " is no run: config.resolved.json is missing.");
  apply_json(config, read_file(resolved), resolved.string());
  CONTEXTURE_DATA_REQUIRE(!config.model.text_encoder.empty(), run_dir.string(),
                          " was trained without model.text_encoder: it has no encoder of the BERT "
                          "family to write.");
  CONTEXTURE_USAGE_REQUIRE(!fs::exists(to), to.string(), " exists. Name another folder.");
  const fs::path kept = kept_encoder(run_dir);
  config.model.read_text_encoder(kept);
  const parallel::Checkpoint checkpoint = model_checkpoint(run_dir, step);
  const parallel::NamedTensors& trained = checkpoint.files.at("model");
  parallel::NamedTensors out;
  for (const model::TextParameter& parameter : model::text_parameters(*config.model.text)) {
    const auto value = trained.find(parameter.name);
    CONTEXTURE_DATA_REQUIRE(
        value != trained.end() && value->second.sizes() == at::IntArrayRef(parameter.shape()),
        "the checkpoint's '", parameter.name, "' is missing, or of another shape than ",
        (kept / "config.json").string(), " says.");
    const auto parts =
        value->second.to(at::kFloat).chunk(static_cast<int64_t>(parameter.published.size()));
    for (size_t i = 0; i < parts.size(); ++i) out[parameter.published[i]] = parts[i].contiguous();
  }
  write_encoder_folder(kept, *config.model.text, to);
  // transformers asks for it in a file's header.
  parallel::write_tensors(to / "model.safetensors", out, {{"format", "pt"}});
}

}  // namespace contexture::train
