#include "retriever/card.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/json.h"
#include "retriever/internal/flat_file.h"

namespace contexture::retriever {
namespace {

constexpr const char* kFormat = "contexture-index";

Json file_json(const CardFile& file) { return {{"bytes", file.bytes}, {"sha256", file.sha256}}; }

CardFile parse_file(const Json& card, const std::string& key, const std::string& source) {
  CONTEXTURE_DATA_REQUIRE(card.contains(key) && card[key].is_object(), source, ": '", key,
                          "' must be an object with bytes and sha256.");
  const std::string where = source + ": " + key;
  CardFile file;
  file.bytes = json_get<int64_t>(card[key], "bytes", where);
  file.sha256 = json_get<std::string>(card[key], "sha256", where);
  CONTEXTURE_DATA_REQUIRE(file.bytes >= 0, where, ".bytes: ", file.bytes, " is negative.");
  CONTEXTURE_DATA_REQUIRE(
      file.sha256.size() == 64 &&
          file.sha256.find_first_not_of("0123456789abcdef") == std::string::npos,
      where, ".sha256: '", file.sha256, "' is not 64 lower-case hexadecimal digits.");
  return file;
}

}  // namespace

const char* metric_name(Metric metric) {
  switch (metric) {
    case Metric::kInnerProduct:
      return "inner_product";
    case Metric::kCosine:
      return "cosine";
    case Metric::kL2:
      return "l2";
  }
  return "";
}

Metric parse_metric(const std::string& name) {
  for (const Metric metric : {Metric::kInnerProduct, Metric::kCosine, Metric::kL2}) {
    if (name == metric_name(metric)) return metric;
  }
  throw UsageError(concat("Unknown metric '", name, "'. Use inner_product, cosine or l2."));
}

std::string card_text(const IndexCard& card) {
  const Json json = {{"format", kFormat},
                     {"version", kIndexFormatVersion},
                     {"factory", card.options.factory},
                     {"built_factory", card.built_factory},
                     {"metric", metric_name(card.options.metric)},
                     {"normalised", card.normalised},
                     {"dim", card.dim},
                     {"count", card.count},
                     {"seed", card.options.seed},
                     {"search", card.options.search},
                     {"encoder_hash", card.options.encoder_hash},
                     {"index", file_json(card.index)},
                     {"ids", file_json(card.ids)}};
  return json.dump(2) + "\n";
}

IndexCard parse_card(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  CONTEXTURE_DATA_REQUIRE(json.is_object() && json.contains("format") && json["format"] == kFormat,
                          source, ": not the card of an index (format must be \"", kFormat, "\").");
  const int64_t version = json_get<int64_t>(json, "version", source);
  CONTEXTURE_DATA_REQUIRE(version >= 1, source, ": version ", version, " is not a format version.");
  CONTEXTURE_DATA_REQUIRE(version <= kIndexFormatVersion, source, ": written in format version ",
                          version, ", and this program reads up to version ", kIndexFormatVersion,
                          ". Update the program, or build the index again with it.");
  IndexCard card;
  card.options.factory = json_get<std::string>(json, "factory", source);
  card.built_factory = json_get<std::string>(json, "built_factory", source);
  const std::string metric = json_get<std::string>(json, "metric", source);
  try {
    card.options.metric = parse_metric(metric);
  } catch (const UsageError& error) {
    throw DataError(source + ": " + error.what());
  }
  card.normalised = json_get<bool>(json, "normalised", source);
  card.dim = json_get<int64_t>(json, "dim", source);
  card.count = json_get<int64_t>(json, "count", source);
  card.options.seed = json_get<uint64_t>(json, "seed", source);
  card.options.search = json_get<std::string>(json, "search", source);
  card.options.encoder_hash = json_get<std::string>(json, "encoder_hash", source);
  CONTEXTURE_DATA_REQUIRE(card.dim >= 1 && card.dim <= kMaxDim, source, ": dim ", card.dim,
                          " is outside 1..", kMaxDim, ".");
  CONTEXTURE_DATA_REQUIRE(card.count >= 0 && card.count <= kMaxCount, source, ": count ",
                          card.count, " is outside 0..", kMaxCount, ".");
  card.index = parse_file(json, "index", source);
  card.ids = parse_file(json, "ids", source);
  return card;
}

void check_index_header(std::string_view bytes, uint64_t file_bytes, const IndexCard& card,
                        const std::string& source) {
  CONTEXTURE_DATA_REQUIRE(
      !bytes.starts_with("version https://git-lfs"), source,
      " is a Git LFS pointer, not the index itself. Run 'git lfs pull' where it came from.");
  CONTEXTURE_DATA_REQUIRE(bytes.size() >= internal::kFaissHeaderBytes, source, " has ", file_bytes,
                          " bytes, fewer than the header of any index. It is cut short.");
  const internal::FaissHeader header = internal::parse_faiss_header(bytes);
  const bool letters = std::all_of(header.tag.begin(), header.tag.end(),
                                   [](unsigned char c) { return std::isalnum(c) != 0; });
  CONTEXTURE_DATA_REQUIRE(
      letters && header.tag[0] == 'I', source,
      " does not start with the tag of a FAISS index. It is another kind of file.");
  CONTEXTURE_DATA_REQUIRE(header.dim == card.dim && header.count == card.count, source,
                          ": its header says ", header.count, " vectors of ", header.dim,
                          " dimensions, its card says ", card.count, " of ", card.dim,
                          ". One of them is damaged or belongs to another index.");
  const int32_t metric = card.options.metric == Metric::kL2 ? 1 : 0;
  CONTEXTURE_DATA_REQUIRE(header.metric == metric, source, ": its header says metric ",
                          header.metric, ", its card '", metric_name(card.options.metric),
                          "', which is ", metric,
                          ". One of them is damaged or belongs to another index.");
  CONTEXTURE_DATA_REQUIRE(header.trained, source,
                          ": the index was saved before it was trained. Build it again.");
  const bool flat = card.built_factory == "Flat";
  CONTEXTURE_DATA_REQUIRE(flat == (header.tag == "IxFI" || header.tag == "IxF2"), source,
                          ": its tag is ", header.tag, ", which is not what factory '",
                          card.built_factory, "' on its card makes.");
}

}  // namespace contexture::retriever
