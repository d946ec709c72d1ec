// samples.json as the page reads it: every field there with the type that the page expects.
#pragma once

#include "core/json_fwd.h"
#include "eval/internal/picture_table.h"

namespace contexture::eval {

// raw: samples.json (docs/formats/metrics.md), untrusted. Pictures become numbers in the table.
// Members of a wrong type become empty, entries that are no objects are left out.
Json clean_samples(const Json& raw, PictureTable& pictures);
Json clean_edits(const Json& raw, PictureTable& pictures);

// Member `key` as a string; numbers are written out, anything else gives "".
std::string text_of(const Json& object, const char* key);

}  // namespace contexture::eval
