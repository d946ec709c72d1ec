// Training speed on random text of stated shapes, without data or index: what `contexture bench
// train` times, and what the scripts of tests/bench/peers run in PyTorch eager and in Hugging Face
// T5.
#pragma once
#include <string>

#include "core/json.h"

namespace contexture::train {

struct BenchShape {
  std::string name;
  int64_t width, heads, kv_heads, head_width, ffn_width,
      layers;  // layers: of the encoder and of the decoder
  int64_t inputs, documents, document_tokens, question_tokens = 16, target_tokens = 8;
};

// "small": width 128, 2 + 2 layers, 16 inputs of 4 documents of 96 tokens; "medium": width 512, 6 +
// 6 layers, 4 inputs of 4 documents of 128 tokens. In memory fusion half of the documents read are
// distinct. Throws UsageError otherwise.
BenchShape bench_shape(const std::string& name);

// Times whole steps (forward, backward, clipping, AdamW) after checking that the loss falls.
// {"examples_per_s", "config": {...}}: by the median step.
Json bench_training(const BenchShape& shape, const std::string& fusion,
                    const std::string& precision, int64_t warmup, int64_t steps);

}  // namespace contexture::train
