// Which sequences of decoder rows a microbatch's readings make, and where objectives find what they
// read.
#pragma once
#include "model/batch.h"

namespace contexture::model::internal {

// An input and those of its documents (places in Input::documents) that are read at once.
struct Reading {
  enum class Kind { kJoint, kSingle, kLeftOut } kind;
  size_t input;
  std::vector<size_t> places;
  size_t column = 0;  // of a single or left-out document among the candidates
};

// Joint readings first, so that loss.reader counts the first targets. most: documents of the input
// with most.
std::vector<Reading> readings_of(const Microbatch& microbatch, size_t most);

// Where objectives find candidates, and in target.log_prob the likelihoods of single and left-out
// readings.
void add_objective_feeds(const Microbatch& microbatch, const std::vector<Reading>& readings,
                         size_t most, int64_t joint_targets, at::Device device,
                         parallel::Feeds& feeds);

}  // namespace contexture::model::internal
