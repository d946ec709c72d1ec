// Weights as other projects publish them, read by name: a Hugging Face folder with
// model.safetensors (one file, or several under model.safetensors.index.json) or with
// pytorch_model.bin, PyTorch's zip. Nothing in a file is ever run: of the zip's pickle only
// dictionaries of tensors are understood (model/internal/pickled_tensors.h).
#pragma once
#include <ATen/ATen.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace contexture::model {

class ForeignWeights {
 public:
  // Throws DataError naming the file: none there, a Git LFS pointer, cut short, damaged, a missing
  // shard, a pickle that holds more than tensors.
  static ForeignWeights open(const std::filesystem::path& folder);
  ForeignWeights(ForeignWeights&&) noexcept;
  ForeignWeights& operator=(ForeignWeights&&) noexcept;
  ~ForeignWeights();

  std::vector<std::string> names() const;  // sorted
  bool contains(const std::string& name) const;
  // As fp32, contiguous, a copy; from fp32, fp64, fp16 or bf16. Throws DataError when it is
  // missing, of another shape or type, or holds a NaN or an infinity.
  at::Tensor get(const std::string& name, at::IntArrayRef shape) const;
  const std::string& hash() const;  // SHA-256 over the bytes of all its files

  struct Files;  // internal

 private:
  explicit ForeignWeights(std::unique_ptr<Files> files);
  std::unique_ptr<Files> files_;
};

}  // namespace contexture::model
