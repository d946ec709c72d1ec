// The decoder, one token at a time, with a key-value cache. A reading (model::Readings) is a prompt
// over some documents; a line is what has been written after one. Lines are values: copying one is
// forking it, and what they have in common lies in the cache once, for self-attention reads a
// line's rows as runs. Documents are encoded once, prompts are read once. No gradient. Not
// thread-safe. In a layout of many ranks every rank of a replica has one and makes the same calls.
#pragma once
#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "eval/generate.h"
#include "parallel/decoding.h"

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
  at::Tensor next_V;      // log-probabilities of the next token, fp64, CPU; undefined on ranks
                          // that lack the head
  std::vector<Run> rows;  // of the self-attention cache
  std::shared_ptr<Block> block;  // null before the first token
  std::vector<int64_t>
      noted;  // for each row written, where the shares of its memory segments begin
};

class Writer {
 public:
  // microbatch: targets are ignored; readings says which lines there can be. cache may be null. All
  // references must outlive this.
  Writer(const model::Model& model, const parallel::Inference& inference,
         model::Microbatch microbatch, DocumentCache* cache);

  int64_t num_readings() const { return static_cast<int64_t>(start_.size()); }
  const Line& start(int64_t reading) const { return start_.at(reading); }  // nothing written yet
  // p(document | query) of each input's documents.
  const std::vector<std::vector<double>>& document_prob() const { return document_prob_; }

  // Appends a token to each line. All are read in one pass. Without lines it only takes part in
  // the passes of others; false: there are none.
  bool append(const std::vector<Line*>& lines, const std::vector<int32_t>& tokens);
  // What the ranks with the head have in it (CPU, of one shape everywhere), on all ranks.
  void tell(const at::Tensor& decided) const { inference_->tell(kNext, decided); }
  // For each line the share of cross-attention over what it has written that goes to each memory
  // segment: the null key, then documents. Empty where nothing cross-attends, or joint readings
  // were not asked for.
  std::vector<std::vector<double>> attention(const std::vector<const Line*>& lines) const;

 private:
  static constexpr const char* kNext = "target.log_prob";
  void read_prompts(DocumentCache* cache);
  void note_attention(const std::vector<Line*>& lines, int64_t num_segments);
  int64_t row_for(Line& line);
  const model::Model* model_;
  const parallel::Inference* inference_;
  model::Microbatch microbatch_;
  parallel::Decoding decoding_;
  parallel::Feeds feeds_;       // of the newest pass
  parallel::WireValues given_;  // to it
  at::Tensor slot_log_prob_;
  std::vector<at::Tensor> notes_;  // per pass: [layers that cross-attend, segments]
  int64_t num_noted_ = 0;          // segments of all of them
  int64_t used_rows_ = 0;
  std::vector<Line> start_;
  std::vector<std::vector<Run>> memory_;                             // by reading
  std::vector<std::vector<std::pair<int64_t, int64_t>>> copy_keys_;  // by reading: memory row, slot
  std::vector<int32_t> last_prompt_token_;                           // by reading
  std::vector<int64_t> prompt_rows_;  // by reading: the next position
  std::vector<std::vector<double>> document_prob_;
};

}  // namespace contexture::eval
