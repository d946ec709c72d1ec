#include "train/data_health.h"

#include <algorithm>

namespace contexture::train {
namespace {

// At most twelve bins of one width, from 0 on.
Json histogram(const std::vector<int64_t>& values) {
  constexpr int64_t kMostBins = 12;
  const int64_t width = *std::max_element(values.begin(), values.end()) / kMostBins + 1;
  std::vector<int64_t> edges{0}, counts;
  for (const int64_t value : values) {
    const auto bin = static_cast<size_t>(value / width);
    for (; counts.size() <= bin; counts.push_back(0)) edges.push_back(edges.back() + width);
    ++counts[bin];
  }
  return {{"edges", edges}, {"counts", counts}};
}

// The first of the named records ("file:line: reason: detail") that was bad for this reason.
std::string example_of(const std::string& reason, const data::BadRecords& bad) {
  const auto found = std::find_if(
      bad.first.begin(), bad.first.end(),
      [&](const std::string& named) { return named.find(": " + reason) != std::string::npos; });
  return found == bad.first.end() ? "" : *found;
}

}  // namespace

Json data_health(const retriever::Documents& documents, int64_t training_examples,
                 int64_t dev_examples, const data::BadRecords& bad) {
  Json skipped = Json::array();
  for (const auto& [reason, count] : bad.by_reason)
    skipped.push_back({{"reason", reason}, {"count", count}, {"example", example_of(reason, bad)}});
  std::vector<int64_t> tokens;
  for (const model::Sequence* sequence : documents.all())
    tokens.push_back(static_cast<int64_t>(sequence->tokens.size()));
  return {{"counts",
           {{"documents", documents.size()},
            {"training examples", training_examples},
            {"dev examples", dev_examples}}},
          {"skipped", skipped},
          {"histograms", {{"Tokens in a document, as read", histogram(tokens)}}}};
}

}  // namespace contexture::train
