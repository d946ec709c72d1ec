// The downsets of a graph: sets of blocks that contain everything their blocks read from. The
// boundaries between stages are exactly these.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/internal/cut_graph.h"

namespace contexture::parallel {

class Downsets {
 public:
  struct Step {
    int block = 0;  // added
    int to = 0;     // the downset this gives
  };

  // All downsets, unless there are more than max_downsets: then only so many that complete() is
  // false.
  Downsets(const CutGraph& graph, int max_downsets);
  // Only the prefixes of the blocks' order.
  static Downsets prefixes(const CutGraph& graph);

  bool complete() const { return complete_; }
  int size() const {
    return static_cast<int>(first_step_.size()) - 1;
  }  // the empty set is 0, the whole size() - 1
  int num_blocks(int downset) const { return num_blocks_[downset]; }  // ascending in downset
  bool contains(int downset, int block) const {
    return bits(downset)[block / 64] >> (block % 64) & 1;
  }
  bool contains_all(int downset, std::span<const uint64_t> set) const;
  bool contains_any(int downset, std::span<const uint64_t> set) const;
  std::span<const Step> steps(int downset) const {
    return {steps_.data() + first_step_[downset], steps_.data() + first_step_[downset + 1]};
  }
  int num_words() const { return num_words_; }
  std::span<const uint64_t> bits(int downset) const {
    return {words_.data() + static_cast<size_t>(downset) * num_words_,
            static_cast<size_t>(num_words_)};
  }

 private:
  Downsets() = default;
  int num_words_ = 0;
  bool complete_ = true;
  std::vector<uint64_t> words_;  // [size][num_words]
  std::vector<int> num_blocks_;  // [size]
  std::vector<Step> steps_;
  std::vector<int> first_step_;  // [size + 1]
};

// Blocks as bits, num_words long.
std::vector<uint64_t> bits_of(const std::vector<int>& blocks, int num_words);

}  // namespace contexture::parallel
