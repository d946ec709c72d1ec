// The engine's speed and memory on a plain transformer, without data, retrieval or index: what
// `contexture bench parallel` times and tests/bench/peers/parallel.py runs in torch.distributed.
#pragma once
#include "core/json.h"
#include "parallel/engine.h"

namespace contexture::train {

struct ParallelBenchShape {
  int64_t width = 256, heads = 4, ffn_width = 688, layers = 8, vocab = 2000, batch = 16,
          tokens = 128;
};

// Times whole steps (forward, backward, clipping, AdamW; fp32) in a layout. Collective; on rank 0
// {"step_s", "loss", "parameters", "peak_mb": [per rank: memory grown since before the model was
// made]}; null on other ranks.
Json bench_engine(const ParallelBenchShape& shape, const parallel::ParallelConfig& config,
                  parallel::Groups groups, int64_t warmup, int64_t steps);

// One process: steps by the engine and by the bare executor in turn. {"engine_s", "plain_s",
// "ratio"}: the medians.
Json bench_overhead(const ParallelBenchShape& shape, int64_t warmup, int64_t steps);

}  // namespace contexture::train
