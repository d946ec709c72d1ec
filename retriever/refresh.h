// When an index is refreshed, and how far it had fallen behind.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace contexture::retriever {

// "0-100:10,100-100000:500": from step 0 up to, not including, 100 every 10 steps, then every 500;
// no refresh outside.
class RefreshSchedule {
 public:
  RefreshSchedule() = default;  // never
  // Throws UsageError quoting the piece that is wrong: not of this form, empty or backward ranges,
  // or ranges that overlap.
  static RefreshSchedule parse(const std::string& text);
  static RefreshSchedule every(int64_t steps);  // 0: never
  bool due(int64_t step) const;                 // after this many optimizer steps
  bool empty() const { return ranges_.empty(); }
  int64_t shortest() const;  // steps between two refreshes, the least of any range; 0 when empty

 private:
  struct Range {
    int64_t begin, end, every;
  };
  std::vector<Range> ranges_;
};

// What a refresh found: the stored vectors against those of the newer encoder.
struct Staleness {
  int64_t steps = 0;    // between the weights of the two
  double cosine = 1.0;  // mean over the documents that were embedded anew
  double recall = 1.0;  // share of the newer index's top k that the older one had found, or had
                        // proposed to be ranked again, for the last step's queries
};

// What to tell of an index that had fallen behind: most of what training looked up in it was no
// longer what the present encoder would find. Empty while it keeps up.
std::string staleness_warning(const Staleness& found);

}  // namespace contexture::retriever
