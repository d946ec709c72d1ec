// A made-up data set in a temporary folder: eight documents with pictures of their own, four
// without, and questions about their facts. Small enough that a training step takes milliseconds.
#pragma once
#include <string>

#include "core/files.h"
#include "core/json.h"
#include "data/image.h"
#include "train/config.h"

namespace contexture::train {

class TinyWorld {
 public:
  TinyWorld() {
    const char* capitals[] = {"Ardenville", "Bostrum", "Caldera", "Dunmore",
                              "Eastfell",   "Fenwick", "Galthor", "Hexham"};
    std::string corpus, train, text, pairs;
    for (int i = 0; i < 12; ++i) {
      const std::string id = "place:" + std::to_string(i),
                        name = std::string("Land ") + static_cast<char>('A' + i);
      Json document{{"id", id}, {"title", name}};
      if (i < 8) {
        const std::string picture = "p" + std::to_string(i) + ".png";
        write_file_atomic(dir_.path() / picture,
                          std::span<const std::byte>(data::encode_png(stripes(i))));
        document["image"] = picture;
        document["text"] = std::string("The capital is ") + capitals[i] + ". It has the code " +
                           std::to_string(100 + 7 * i) + ".";
        document["facts"] = {{"capital", {capitals[i]}}, {"code", {std::to_string(100 + 7 * i)}}};
        for (const char* type : {"capital", "code"}) {
          train += Json{{"id", id + "/" + type},
                        {"question", std::string("What is the ") + type + "?"},
                        {"type", type},
                        {"entity", id},
                        {"answers", document["facts"][type]},
                        {"image", picture},
                        {"documents", {id}}}
                       .dump() +
                   "\n";
        }
        pairs += Json{{"id", id},
                      {"kind", i % 2 == 0 ? "even" : "odd"},
                      {"document", picture},
                      {"queries", {picture}}}
                     .dump() +
                 "\n";
      } else {
        document["text"] = "Nobody has drawn this place yet, and nothing is known about it.";
      }
      text += name + ". " + document["text"].get<std::string>() +
              "\nWhat is the capital? What is the code?\n";
      corpus += document.dump() + "\n";
    }
    write_file_atomic(dir_.path() / "corpus.jsonl", corpus);
    write_file_atomic(dir_.path() / "train.jsonl", train);
    write_file_atomic(dir_.path() / "pairs.jsonl", pairs);
    write_file_atomic(dir_.path() / "tokenizer.txt", text);
  }

  std::string path() const { return dir_.path().string(); }

  RunConfig config(const std::string& precision = "fp64") const {
    RunConfig c;
    c.run.dir = (dir_.path() / "run").string();
    c.run.threads = 1;
    c.data.root = path();
    c.data.train = {{"train.jsonl", 0.0, {}}};
    c.data.dev = "train.jsonl";
    c.data.tokenizer_options.vocab_size = 330;
    c.data.group_size = 2;
    c.model.vocab = 330;
    c.model.width = 16;
    c.model.heads = 2;
    c.model.kv_heads = 1;
    c.model.head_width = 8;
    c.model.ffn_width = 24;
    c.model.image_size = 16;
    c.model.patch_size = 8;
    c.model.patch_projection = 4;
    c.model.embedding_width = 16;
    c.model.copy_width = 8;
    c.model.score_temperature = 0.2;
    c.train.batch_size = 8;
    c.train.steps = 20;
    c.train.precision = precision;
    c.optimizer.epsilon = 1e-4;
    c.optimizer.warmup_steps = 2;
    c.data.counterfactual.probability = 0.5;
    c.data.identity_probability = 0.5;
    return c;
  }

 private:
  static data::Image stripes(int i) {
    data::Image image{16, 16, std::vector<uint8_t>(16 * 16 * 3)};
    for (int p = 0; p < 256; ++p) {
      const int band = ((i % 2 == 0 ? p / 16 : p % 16) * (2 + i / 3)) / 16;
      for (int c = 0; c < 3; ++c)
        image.rgb[p * 3 + c] = static_cast<uint8_t>((band * 83 + c * 60 + i * 31) % 256);
    }
    return image;
  }
  TempDir dir_;
};

// The same run with queries and documents embedded by a published encoder (it reads letters), by
// their texts.
inline RunConfig with_tiny_bert(RunConfig config) {
  config.model.text_encoder = CONTEXTURE_SOURCE_DIR "/tests/golden/tiny_bert";
  config.data.query = "both";
  config.data.pairs_per_step = 0;
  return config;
}

}  // namespace contexture::train
