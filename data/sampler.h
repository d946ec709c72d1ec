// Which examples a step trains on: a pure function of (seed, step), so that order does not depend
// on threads, ranks or layout, and resuming needs no state. Thread-safe.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/records.h"

namespace contexture::data {

struct SamplerConfig {
  uint64_t seed = 0;
  int64_t batch_size = 16;        // examples in a step, over all ranks
  int64_t group_size = 1;         // examples that share a gold document, so that it is encoded once
  std::vector<double> weights{};  // one per dataset; empty = by number of examples
  // Above 1: the examples of so many steps are sorted by gold document and dealt out anew, so that
  // a step reads fewer different documents. The steps' order is shuffled; which examples a window
  // has stays the same.
  int64_t window = 1;
};

struct Pick {
  int dataset = 0;
  int64_t index = 0;  // position in that dataset's examples
  int64_t epoch = 0;  // full passes over that dataset before this one
  bool operator==(const Pick&) const = default;
};

class Sampler {
 public:
  // `first_gold[d][i]` names what example i of dataset d is grouped by (its first gold document);
  // "" = by itself. Throws UserError for an empty dataset, weights that don't fit, or a batch that
  // isn't a multiple of group_size.
  Sampler(const SamplerConfig& config, const std::vector<std::vector<std::string>>& first_gold);
  Sampler(const SamplerConfig& config, const std::vector<const ExampleSet*>& datasets);

  // batch_size picks. Slots [k * group_size, (k + 1) * group_size) share a gold document; when that
  // document has fewer examples, they repeat (augmentation makes them differ). Every example comes
  // at least once in an epoch of its dataset; a batch larger than a dataset wraps into the next
  // epoch.
  std::vector<Pick> batch_at(int64_t step) const;

  int64_t units(int dataset) const;                   // groups in one epoch of that dataset
  double share(int dataset) const;                    // exact share of groups drawn from it, 0..1
  double epochs_at(int dataset, int64_t step) const;  // passes over that dataset completed by then

 private:
  struct Unit {
    int64_t group = 0;  // which gold document
    int64_t chunk = 0;  // which run of group_size examples of it
  };
  struct Dataset {
    std::vector<std::vector<int64_t>>
        groups;  // example indices per gold document, in order of appearance
    std::vector<Unit> units;
    int64_t slots = 0;  // of every period_ slots
    int64_t first_slot = 0;
  };
  std::vector<Pick> drawn(int64_t step) const;  // without a window
  void number_gold(const std::vector<std::vector<std::string>>& first_gold);
  void add_group(int dataset, int64_t ordinal, std::vector<Pick>& picks) const;

  SamplerConfig config_;
  std::vector<Dataset> datasets_;
  std::vector<std::vector<int64_t>>
      gold_of_;  // [dataset][example]: number of its gold document; with a window
  int64_t period_ = 1;
};

// This rank's contiguous share. Throws UserError with the numbers when the batch doesn't divide
// evenly.
std::span<const Pick> rank_share(std::span<const Pick> batch, int rank, int num_ranks);

// [begin, end) ranges that cover n examples once, in order; the last may be short. Empty for n = 0.
std::vector<std::pair<int64_t, int64_t>> eval_batches(int64_t n, int64_t batch_size);

}  // namespace contexture::data
