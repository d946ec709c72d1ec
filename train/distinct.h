// How often the examples of a step read the same documents, from what there is of a run's data.
#pragma once
#include <optional>
#include <string>

#include "train/config.h"

namespace contexture::train {

struct DistinctRatio {
  double ratio = 1.0;  // different documents of a step over the slots that its examples fill
  std::string source;  // where that was found, for people
};

// As metrics.jsonl in run.dir has it (slots and distinct_documents), if one replica ran there. Else
// from the gold documents of the examples that the first steps draw, which is exact for those and
// an estimate for whatever else is retrieved. Null where there are neither, or the examples are
// spans of the corpus.
std::optional<DistinctRatio> distinct_of_data(const RunConfig& config);

}  // namespace contexture::train
