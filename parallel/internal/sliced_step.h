// A step's work for the simulator: the stages of a placed layout or, with token slices, their parts
// in the order in which the engine runs them (pipeline_plan.cpp).
#pragma once
#include <utility>

#include "parallel/internal/placed_layout.h"

namespace contexture::parallel {

// Each slice's share of a microbatch's rows, and of the pairs of rows that are compared within its
// sequences, which are equally long.
struct TokenSlices {
  std::vector<double> rows, pairs;
};

// The smallest shares that the first of `count` slices can have (0: planned).
std::pair<double, double> least_first_slice(int64_t count, int64_t sequences);

// Where layout.token_slices puts the cuts: into equal slices or, planned, where the dynamic program
// does for the slowest rank (as parallel/slicer.h, at fewer places).
TokenSlices token_slices_of(const PlacedLayout& placed);

// Whole stages' graph with its edges' times, and their times.
SimulatedStep whole_step(const PlacedLayout& placed);
// whole: of the same layout.
SimulatedStep sliced_step(const PlacedLayout& placed, const SimulatedStep& whole,
                          const TokenSlices& slices);

// Seconds of the busiest rank's all-reduces over tensor-parallel ranks in a step.
double tensor_s(const PlacedLayout& placed, const TokenSlices& slices);

}  // namespace contexture::parallel
