#include "data/kilt.h"

#include <algorithm>

#include "data/internal/fields.h"

namespace contexture::data {

std::vector<std::string> KiltRecord::answers() const {
  std::vector<std::string> out;
  for (const KiltOutput& output : outputs) {
    if (!output.answer.empty() && std::find(out.begin(), out.end(), output.answer) == out.end())
      out.push_back(output.answer);
  }
  return out;
}

KiltRecord parse_kilt(const Json& record) {
  KiltRecord kilt;
  kilt.id = internal::strip(internal::id_field(record, "id"));
  kilt.input = internal::text_field(record, "input", false);
  for (const Json& output : internal::list_field(record, "output")) {
    KiltOutput parsed;
    parsed.answer = internal::strip(internal::text_field(output, "answer", false));
    parsed.has_provenance = output.contains("provenance") && !output["provenance"].is_null();
    for (const Json& evidence : internal::list_field(output, "provenance")) {
      const std::string id(internal::strip(internal::id_field(evidence, "wikipedia_id", false)));
      if (id.empty()) continue;
      parsed.provenance.push_back({id, internal::text_field(evidence, "title", false),
                                   internal::text_field(evidence, "text", false)});
    }
    kilt.outputs.push_back(std::move(parsed));
  }
  if (const auto meta = record.find("meta"); meta != record.end() && meta->is_object())
    kilt.meta = *meta;
  return kilt;
}

}  // namespace contexture::data
