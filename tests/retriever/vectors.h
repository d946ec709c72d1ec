// Vectors and ids for the index tests, the same on every machine.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/rng.h"

namespace contexture::retriever::testing {

inline std::vector<float> random_vectors(int64_t n, int64_t dim, uint64_t seed) {
  Stream draws(seed, "index test vectors");
  std::vector<float> vectors(n * dim);
  for (float& value : vectors) value = static_cast<float>(draws.normal());
  return vectors;
}

inline std::vector<std::string> numbered_ids(int64_t n) {
  std::vector<std::string> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back("doc-" + std::to_string(i));
  return ids;
}

// The message of the exception that `body` throws, or "" when it throws none.
template <typename Error, typename Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace contexture::retriever::testing
