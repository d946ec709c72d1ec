// What an Index holds.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "retriever/index.h"
#include "retriever/internal/store.h"

namespace contexture::retriever {

struct Index::State {
  IndexOptions options;
  std::string built_factory;
  int64_t dim = 0;
  bool normalised = false;
  std::vector<std::string> ids;    // [size]
  std::vector<int64_t> by_id;      // rows in the order of their ids
  std::optional<MappedFile> file;  // what a mapped store reads; goes after it
  std::unique_ptr<internal::Store> store;

  // Throws, and changes nothing, when one is empty, not UTF-8, known, or there twice.
  void add_ids(std::vector<std::string> fresh);
  std::optional<int64_t> find(const std::string& id) const;

  // "The vector of 'x' (row 3)", for check_vectors.
  std::function<std::string(int64_t)> namer(const std::string& what) const {
    return [this, what](int64_t row) {
      return what + " of '" + ids[row] + "' (row " + std::to_string(row) + ")";
    };
  }

  std::vector<float> prepare(std::span<const float> vectors,
                             const std::function<std::string(int64_t)>& name_of) const;
  // Sets built_factory.
  std::unique_ptr<internal::Store> make_store(std::vector<float> prepared);
};

}  // namespace contexture::retriever
