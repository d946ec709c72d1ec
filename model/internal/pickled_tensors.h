// The part of Python's pickle format that torch.save writes for a dictionary of tensors, as data:
// nothing is ever run. A stream that names any other class or function than those of a tensor is
// refused, whatever it would have done.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace contexture::model::internal {

// A view into a storage, which lies in the archive as the record "data/<storage>".
struct PickledTensor {
  std::string storage;
  DType dtype = DType::F32;
  int64_t storage_numel = 0;  // elements that the storage is said to hold
  int64_t offset = 0;         // first element
  std::vector<int64_t> shape, strides;
};

// The tensors of a pickled dict or OrderedDict by name; entries that are no tensors are left out.
// Throws DataError naming `source` and what it met: another class, a malformed stream, a view that
// leaves its storage.
std::map<std::string, PickledTensor> read_pickled_tensors(std::string_view pickle,
                                                          const std::string& source);

}  // namespace contexture::model::internal
