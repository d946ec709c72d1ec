// Any text gives records or named bad records, one or the other for every line that holds
// something; whatever was accepted is written and read again without change.
#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "data/counterfactual.h"
#include "data/records.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contexture;
  using namespace contexture::data;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  BadRecords bad(BadRecords::Policy::kSkip);
  try {
    for_each_jsonl(text, "fuzz.jsonl", bad, [&](int64_t, Json record) {
      try {
        const Document document = parse_document(record);
        const Document again = parse_document(to_record(document));
        if (again.id != document.id || again.text != document.text || again.meta != document.meta)
          std::abort();
        const std::vector<Swap> swaps = {{"", document.title, "x"},
                                         {"", document.id, document.text}};
        replace_words(document.text, swaps);
      } catch (const DataError&) {
      }
      try {
        const Example example = parse_example(record);
        const Example again = parse_example(to_record(example));
        if (again.answers != example.answers || again.meta != example.meta) std::abort();
      } catch (const DataError&) {
      }
    });
  } catch (const DataError&) {  // UTF-16
  }
  return 0;
}
