// Any text, read as any foreign format, gives records or named bad records and ends; what was
// accepted can be written and read again. The first byte chooses the reader.
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "core/files.h"
#include "data/formats.h"
#include "data/internal/delimited.h"
#include "data/predictions.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contexture;
  using namespace contexture::data;
  if (size == 0) return 0;
  static const TempDir folder;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto& formats = foreign_formats();
  const ForeignFormat& format = formats[(data[0] & 0x7f) % formats.size()];
  // The ending decides between TSV and JSON where a format has both.
  const std::string path = folder.path() / ((data[0] & 0x80) != 0 ? "fuzz.tsv" : "fuzz.json");
  // No write_file_atomic: its sync would take most of the time.
  std::ofstream(path, std::ios::binary) << text;
  BadRecords bad(BadRecords::Policy::kSkip);
  ForeignOptions options;
  options.annotations = format.name == "vqa" ? path : "";
  options.qrels = path;
  const auto written_again = [](const Example& example) {
    if (parse_example(parse_json(to_record(example).dump(), "again")).answers != example.answers)
      std::abort();
  };
  try {
    read_foreign_examples(
        format.name, path, options, bad,
        [&](const std::string&, const Example& example) { written_again(example); },
        [](const std::string&, const Document& document) { to_record(document).dump(); });
  } catch (const DataError&) {  // UTF-16, no list, a header that is none
  }
  try {
    if (!format.documents.empty()) {
      read_foreign_documents(
          format.name, path, bad,
          [](const std::string&, const Document& document) { to_record(document).dump(); });
    }
    read_predictions(path, bad);
  } catch (const DataError&) {
  }
  try {
    internal::parse_python_list(text);
  } catch (const DataError&) {
  }
  return 0;
}
