#include "model/sentence_encoder_config.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace contexture::model {
namespace {

namespace fs = std::filesystem;

// modules.json lists what follows the transformer: a pooling folder, perhaps a normalisation.
void read_modules(const fs::path& folder, SentenceEncoderConfig& config) {
  const fs::path path = folder / "modules.json";
  fs::path pooling = folder / "1_Pooling";
  if (fs::exists(path)) {
    const Json modules = read_json_file(path.string());
    CONTEXTURE_DATA_REQUIRE(modules.is_array(), path.string(), ": must be a list of modules.");
    for (const Json& module : modules) {
      const std::string type = json_get<std::string>(module, "type", path.string());
      if (type.ends_with(".Normalize")) {
        config.normalise = true;
      } else if (type.ends_with(".Pooling")) {
        pooling = folder / json_get<std::string>(module, "path", path.string());
      } else {
        CONTEXTURE_DATA_REQUIRE(type.ends_with(".Transformer"), path.string(), ": has a module ",
                                type, ". Read are Transformer, Pooling and Normalize.");
      }
    }
  }
  if (!fs::exists(pooling / "config.json")) return;
  const std::string where = (pooling / "config.json").string();
  const Json json = read_json_file(where);
  std::vector<std::string> modes;
  for (const auto& [key, value] : json.items()) {
    if (key.starts_with("pooling_mode_") && value.is_boolean() && value.get<bool>())
      modes.push_back(key.substr(13));
  }
  if (json.contains("pooling_mode")) modes = {json_get<std::string>(json, "pooling_mode", where)};
  CONTEXTURE_DATA_REQUIRE(
      modes.size() == 1 && (modes[0] == "mean_tokens" || modes[0] == "cls_token" ||
                            modes[0] == "mean" || modes[0] == "cls"),
      where, ": asks for the pooling ", modes.empty() ? "of nothing" : modes[0],
      modes.size() > 1 ? " and others" : "", ". Read are mean_tokens and cls_token, one of them.");
  config.mean_pooling = modes[0].starts_with("mean");
}

}  // namespace

SentenceEncoderConfig SentenceEncoderConfig::read(const fs::path& folder) {
  const std::string where = (folder / "config.json").string();
  CONTEXTURE_DATA_REQUIRE(fs::exists(where), folder.string(),
                          " has no config.json. Name the folder of a Hugging Face model.");
  const Json json = read_json_file(where);
  CONTEXTURE_DATA_REQUIRE(json.is_object(), where, ": must be a JSON object.");
  const std::string kind = json_get<std::string>(json, "model_type", where);
  CONTEXTURE_DATA_REQUIRE(kind == "bert", where, ": model_type is '", kind,
                          "'. Encoders of model_type 'bert' are read.");
  const std::string act = json_get_or<std::string>(json, "hidden_act", "gelu", where);
  CONTEXTURE_DATA_REQUIRE(act == "gelu", where, ": hidden_act is '", act,
                          "'. Only 'gelu' is read.");
  const std::string place =
      json_get_or<std::string>(json, "position_embedding_type", "absolute", where);
  CONTEXTURE_DATA_REQUIRE(place == "absolute", where, ": position_embedding_type is '", place,
                          "'. Only 'absolute' is read.");
  SentenceEncoderConfig config;
  const auto size = [&](const char* key, int64_t most) {
    const int64_t value = json_get<int64_t>(json, key, where);
    CONTEXTURE_DATA_REQUIRE(value >= 1 && value <= most, where, ": ", key, " ", value,
                            " is outside 1..", most, ".");
    return value;
  };
  config.vocab = size("vocab_size", 10'000'000);
  config.width = size("hidden_size", 65536);
  config.heads = size("num_attention_heads", 1024);
  config.ffn_width = size("intermediate_size", 1 << 20);
  config.layers = size("num_hidden_layers", 1000);
  config.positions = size("max_position_embeddings", 1 << 20);
  config.types = size("type_vocab_size", 1024);
  config.norm_eps = json_get_or(json, "layer_norm_eps", 1e-12, where);
  CONTEXTURE_DATA_REQUIRE(config.width % config.heads == 0, where, ": hidden_size ", config.width,
                          " is no multiple of num_attention_heads ", config.heads, ".");
  config.max_tokens = config.positions;
  const fs::path limits = folder / "sentence_bert_config.json";
  if (fs::exists(limits)) {
    const int64_t most = json_get_or(read_json_file(limits.string()), "max_seq_length",
                                     config.positions, limits.string());
    CONTEXTURE_DATA_REQUIRE(most >= 2, limits.string(), ": max_seq_length ", most,
                            " leaves no room for text.");
    config.max_tokens = std::min(config.positions, most);
  }
  read_modules(folder, config);
  return config;
}

}  // namespace contexture::model
