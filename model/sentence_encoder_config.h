// The shape of a published sentence encoder of the BERT family, and how it makes one embedding of a
// text's states.
#pragma once
#include <cstdint>
#include <filesystem>

namespace contexture::model {

// config.json, modules.json, 1_Pooling/config.json and sentence_bert_config.json of a Hugging Face
// folder.
struct SentenceEncoderConfig {
  int64_t vocab = 0, width = 0, heads = 0, ffn_width = 0, layers = 0, positions = 0, types = 0;
  double norm_eps = 1e-12;
  int64_t max_tokens = 0;    // longer texts are cut, [CLS] and [SEP] included
  bool mean_pooling = true;  // else the first token's state
  bool normalise = false;    // embeddings of length 1

  // Throws DataError naming file, key and what it holds: another architecture, an activation,
  // pooling or module that is not read, sizes that can't be. Without pooling files: mean, not
  // normalised, as sentence-transformers does.
  static SentenceEncoderConfig read(const std::filesystem::path& folder);
};

}  // namespace contexture::model
