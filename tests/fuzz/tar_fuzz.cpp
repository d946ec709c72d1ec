// Any bytes give samples whose members hold no more than the limit, and bad records for the rest;
// no crash, no endless loop, no allocation beyond what is there.
#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "data/archive.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contexture;
  using namespace contexture::data;
  constexpr int64_t kLimit = 1 << 20;
  BadRecords bad(BadRecords::Policy::kSkip);
  try {
    TarReader reader(std::as_bytes(std::span(data, size)), "fuzz.tar", bad, kLimit);
    int samples = 0;
    while (auto sample = reader.next()) {
      if (++samples > 1'000'000 || sample->fields.empty()) std::abort();
      for (const auto& [field, member] : sample->fields) {
        if (field.empty() || static_cast<int64_t>(member.bytes.size()) > kLimit) std::abort();
      }
    }
  } catch (const DataError&) {
  }
  return 0;
}
