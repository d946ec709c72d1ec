// Do two systems differ, judged on the same examples? The paired randomisation test: if they did
// not, each example's difference could as well have the other sign.
#pragma once
#include <cstdint>
#include <span>

namespace contexture::eval {

struct PairedTest {
  double difference = 0.0;                  // mean of a - b
  double p_value = 1.0;                     // two-sided; 1 when no example differs
  bool exact = false;                       // all sign patterns were counted, not drawn
  int64_t better = 0, worse = 0, same = 0;  // examples where a is above, below, equal to b
};

struct PairedTestOptions {
  int draws = 10000;     // sign patterns drawn when there are more than 2^exact_up_to
  int exact_up_to = 16;  // examples that differ, at most 24, up to which all patterns are counted
  uint64_t seed = 0;     // of the named stream "eval/sign-flip"
};

// p is the share of sign patterns whose mean is at least as far from 0 as the observed one; drawn
// patterns count the observed one too, so p is never 0. UserError if a and b differ in length or
// are empty, a value is not finite, or an option is out of range.
PairedTest paired_test(std::span<const double> a, std::span<const double> b,
                       const PairedTestOptions& options = {});

}  // namespace contexture::eval
