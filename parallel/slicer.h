// Where the runtime cuts microbatches into token slices: into equal ones, or where the dynamic
// program (token_slices.h) puts the cuts once a few steps have been measured.
#pragma once
#include <cstdint>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/pipeline.h"
#include "parallel/token_slices.h"

namespace contexture::parallel {

class Slicer {
 public:
  // configured: the number of slices, or 0 to measure. world: all ranks (null: one), of which
  // num_pipeline_ranks make a pipeline. The world must outlive this.
  Slicer(int64_t configured, Communicator* world, int num_pipeline_ranks);

  int64_t count() const { return static_cast<int64_t>(shares_.size()) - 1; }  // of each microbatch
  // 0 = c_0 <= ... <= c_count = rows: where a microbatch of so many rows is cut.
  std::vector<int64_t> cuts(int64_t rows) const;

  bool measuring() const { return measuring_; }
  // Tells what a step's slices took. keys[m][r]: how many keys row r of microbatch m attends to.
  // Collective over the world until the cuts are planned; every rank then has the same. They come
  // of measured times: a resumed run may cut, and so round, differently.
  void observe(const std::vector<TimedAction>& timeline,
               const std::vector<std::vector<int64_t>>& keys);

 private:
  void plan(const std::vector<int64_t>& keys, size_t num_microbatches);
  Communicator* world_;
  int num_pipeline_ranks_;
  bool measuring_;
  int64_t steps_ = 0;
  std::vector<double> shares_;       // of the rows before each cut, 0 to 1
  std::vector<SliceTime> measured_;  // of this rank's part of each slice, forward and backward
};

}  // namespace contexture::parallel
