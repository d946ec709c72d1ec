// What the model is. Declared once (core/config.h); validate() refuses what cannot work, with the
// numbers.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/sentence_encoder_config.h"

namespace contexture::model {

struct ModelConfig {
  int64_t vocab = 1500;
  int64_t width = 128;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_width = 32;
  int64_t ffn_width = 344;
  int64_t encoder_layers = 2;
  int64_t decoder_layers = 2;
  std::vector<int64_t> cross_layers;  // decoder layers that read documents; empty: all
  int64_t image_size = 64;
  int64_t patch_size = 16;
  std::string fusion = "memory";
  std::string towers = "shared";
  std::string pooling = "patches";
  int64_t patch_projection = 16;
  int64_t embedding_width = 256;
  bool closed_pictures = true;
  bool copy_head = true;
  int64_t copy_width = 64;
  bool token_shift = true;
  bool tie_head = true;
  double score_temperature = 0.05;
  double rope_theta = 10000.0;
  double norm_eps = 1e-6;
  double dropout = 0.0;
  double init_std = 0.0;
  std::string text_encoder;
  int64_t text_encoder_tokens = 0;
  // What text_encoder's folder says of its shape (read_text_encoder): queries and documents are
  // then embedded by it. No setting.
  std::optional<SentenceEncoderConfig> text;

  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("vocab", vocab, "text pieces; must equal the tokenizer's size");
    visit("width", width, "width of the residual stream");
    visit("heads", heads, "query heads");
    visit("kv_heads", kv_heads, "key and value heads; divides heads (grouped-query attention)");
    visit("head_width", head_width, "numbers per head; even");
    visit("ffn_width", ffn_width, "width of the SwiGLU hidden layer");
    visit("encoder_layers", encoder_layers,
          "layers of the encoder that reads documents and queries");
    visit("decoder_layers", decoder_layers, "layers of the decoder");
    visit("cross_layers", cross_layers,
          "decoder layers (from 0) that read the documents; empty: all");
    visit("image_size", image_size, "pictures are resized to this many pixels square");
    visit("patch_size", patch_size, "pixels per patch side; divides image_size");
    visit("fusion", fusion,
          "memory (documents encoded once), fid (question joined to each document) or prefix "
          "(documents before the prompt)");
    visit("towers", towers,
          "shared: queries and documents share the encoder; separate: each has its own");
    visit("pooling", pooling,
          "retrieval embedding from: cls, mean, or patches (each patch projected small, then "
          "concatenated)");
    visit("patch_projection", patch_projection, "numbers per patch when pooling=patches");
    visit("embedding_width", embedding_width,
          "width of the retrieval embedding (pooling=patches: patches x patch_projection)");
    visit("closed_pictures", closed_pictures,
          "a picture's patches attend to patches only, so that equal pictures embed equally "
          "whatever text is beside them");
    visit("copy_head", copy_head, "pointer mixture over the tokens of the retrieved documents");
    visit("copy_width", copy_width, "width of the copy head's keys");
    visit("token_shift", token_shift, "mix each token's predecessor into its embedding");
    visit("tie_head", tie_head, "the output matrix is the embedding matrix");
    visit("score_temperature", score_temperature, "retrieval scores are cosines divided by this");
    visit("rope_theta", rope_theta, "base of the rotary position embedding");
    visit("norm_eps", norm_eps, "added to the mean square in RMSNorm");
    visit("dropout", dropout, "on the residual branches; never on attention probabilities");
    visit("init_std", init_std, "standard deviation of the embeddings; 0: 1/sqrt(width)");
    visit(
        "text_encoder", text_encoder,
        "Hugging Face folder of a BERT-family sentence encoder that embeds queries and documents, "
        "their texts alone, and is trained further; empty: the model's own encoder does");
    visit("text_encoder_tokens", text_encoder_tokens,
          "WordPieces that text_encoder reads of a text, [CLS] and [SEP] included; 0: its folder's "
          "limit");
  }

  // Throws UsageError naming the keys and values.
  void validate() const;
  void validate_split(int64_t tp) const;  // over so many tensor-parallel ranks
  // Sets `text` from a Hugging Face folder. Throws DataError as SentenceEncoderConfig::read,
  // UsageError when text_encoder_tokens is outside what the encoder can read.
  void read_text_encoder(const std::filesystem::path& folder);
  int64_t retrieval_width() const { return text ? text->width : embedding_width; }
  int64_t num_patches() const { return (image_size / patch_size) * (image_size / patch_size); }
  int64_t patch_width() const { return 3 * patch_size * patch_size; }
  bool reads_documents(int64_t decoder_layer) const;
  // Whether the model's own encoder reads documents by themselves: for the decoder, or to embed
  // them.
  bool has_document_tower() const { return !text || fusion == "memory"; }
};

}  // namespace contexture::model
