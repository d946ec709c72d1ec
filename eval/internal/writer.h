// The decoder, one token at a time, with a key-value cache. A reading (model::Readings) is a prompt
// over some documents; a line is what has been written after one. Lines are values: copying one is
// forking it, and what they have in common lies in the cache once, for self-attention reads a
// line's rows as runs. Documents are encoded once, prompts are read once. No gradient. Not
// thread-safe.
#pragma once
#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "eval/generate.h"

namespace contexture::eval {

struct Run {
  int64_t begin, end;  // rows
  int64_t slot;        // document slot whose log-probability is its bias; -1: none
};

// Cache rows set aside for a line, so that its rows follow one another. The line that took the last
// row may take the next.
struct Block {
  int64_t next, end;
};

struct Line {
  int64_t reading = 0;
  std::vector<int32_t> tokens;
  at::Tensor state_D;             // of the last row
  std::vector<Run> rows;          // of the self-attention cache
  std::shared_ptr<Block> block;   // null before the first token
  std::vector<double> attention;  // sums over layers and rows written, by memory segment: the null
                                  // key, then documents
  int64_t attention_count = 0;
};

class Writer {
 public:
  // microbatch: targets are ignored; readings says which lines there can be. cache may be null. All
  // references must outlive this.
  Writer(const model::Model& model, model::Microbatch microbatch, DocumentCache* cache);

  int64_t num_readings() const { return static_cast<int64_t>(start_.size()); }
  const Line& start(int64_t reading) const { return start_.at(reading); }  // nothing written yet
  // p(document | query) of each input's documents.
  const std::vector<std::vector<double>>& document_prob() const { return document_prob_; }

  // Log-probabilities of each line's next token, [lines, vocab] fp64 on the CPU.
  at::Tensor next(const std::vector<const Line*>& lines) const;
  // Appends a token to each line. All are read in one pass.
  void append(const std::vector<Line*>& lines, const std::vector<int32_t>& tokens);

 private:
  at::Tensor advance(const parallel::Pass& pass, const std::vector<Line*>& lines,
                     const std::vector<int64_t>& rows_of, const at::Tensor& cache_rows, bool share);
  void make_room(int64_t rows);
  int64_t row_for(Line& line);
  const model::Model* model_;
  model::Microbatch microbatch_;
  parallel::Feeds feeds_;
  at::Tensor memory_MD_, slot_log_prob_;
  std::vector<model::LayerCache> caches_;
  int64_t used_rows_ = 0;
  std::vector<Line> start_;
  std::vector<std::vector<Run>> memory_;                             // by reading
  std::vector<std::vector<std::pair<int64_t, int64_t>>> copy_keys_;  // by reading: memory row, slot
  std::vector<int32_t> last_prompt_token_;                           // by reading
  std::vector<int64_t> prompt_rows_;  // by reading: the next position
  std::vector<std::vector<double>> document_prob_;
};

}  // namespace contexture::eval
