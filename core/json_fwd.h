// The name Json alone, for headers that only pass one on. Include core/json.h to use it.
#pragma once
#include <nlohmann/json_fwd.hpp>

namespace contexture {
using Json = nlohmann::json;
}  // namespace contexture
