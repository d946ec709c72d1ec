#include "model/foreign_weights.h"

#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <type_traits>

#include "core/did_you_mean.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "model/internal/pickled_tensors.h"

namespace contexture::model {
namespace fs = std::filesystem;

struct ForeignWeights::Files {
  virtual ~Files() = default;
  virtual at::Tensor get(const std::string& name) const = 0;  // of its own type; may be a view
  std::set<std::string> names;
  std::string source, hash;
};

namespace {

at::ScalarType scalar_type(DType dtype, const std::string& name, const std::string& source) {
  switch (dtype) {
    case DType::F32:
      return at::kFloat;
    case DType::F64:
      return at::kDouble;
    case DType::F16:
      return at::kHalf;
    case DType::BF16:
      return at::kBFloat16;
    default:
      throw DataError(concat(source, ": the tensor '", name, "' is of type ", dtype_name(dtype),
                             ". Weights are read from F32, F64, F16 and BF16."));
  }
}

void refuse_lfs(std::string_view bytes, const fs::path& path) {
  CONTEXTURE_DATA_REQUIRE(
      !bytes.starts_with("version https://git-lfs"), path.string(),
      " is a Git LFS pointer, not the weights. Run 'git lfs pull' where it came from.");
}

class Safetensors : public ForeignWeights::Files {
 public:
  explicit Safetensors(const std::vector<fs::path>& paths) {
    Sha256 sum;
    for (const fs::path& path : paths) {
      const MappedFile& file = mapped_.emplace_back(path);
      const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                                  file.bytes().size());
      refuse_lfs(text.substr(0, 64), path);
      sum.update(file.bytes());
      readers_.emplace_back(file.bytes(), path.string());
      for (const std::string& name : readers_.back().names()) {
        names.insert(name);
        where_[name] = readers_.size() - 1;
      }
    }
    source = paths.front().string();
    hash = sum.finish_hex();
  }

  at::Tensor get(const std::string& name) const override {
    const TensorView& view = readers_[where_.at(name)].get(name);
    const at::Tensor out = at::empty(view.shape, scalar_type(view.dtype, name, source));
    std::memcpy(out.data_ptr(), view.bytes.data(), view.bytes.size());
    return out;
  }

 private:
  std::vector<MappedFile> mapped_;
  std::vector<SafetensorsReader> readers_;
  std::map<std::string, size_t> where_;
};

class TorchZip : public ForeignWeights::Files {
 public:
  explicit TorchZip(const fs::path& path) : file_(path) {
    source = path.string();
    const std::string_view text(reinterpret_cast<const char*>(file_.bytes().data()),
                                file_.bytes().size());
    refuse_lfs(text.substr(0, 64), path);
    CONTEXTURE_DATA_REQUIRE(text.starts_with("PK"), source,
                            " is not a zip: files of PyTorch before 1.6 are bare pickles. Save it "
                            "again as safetensors.");
    hash = sha256_hex(file_.bytes());
    reader_ = guarded([&] {
      return std::make_unique<caffe2::serialize::PyTorchStreamReader>(
          std::make_shared<Bytes>(file_.bytes()));
    });
    const auto [bytes, size] = record("data.pkl");
    tensors_ =
        internal::read_pickled_tensors({static_cast<const char*>(bytes.get()), size}, source);
    for (const auto& [name, tensor] : tensors_) names.insert(name);
  }

  at::Tensor get(const std::string& name) const override {
    const internal::PickledTensor& tensor = tensors_.at(name);
    const at::ScalarType type = scalar_type(tensor.dtype, name, source);
    const auto [bytes, size] = record("data/" + tensor.storage);
    CONTEXTURE_DATA_REQUIRE(
        size / at::elementSize(type) >= static_cast<size_t>(tensor.storage_numel), source,
        ": the storage of '", name, "' has ", size, " bytes, fewer than its ", tensor.storage_numel,
        " elements need. It is damaged.");
    return at::from_blob(bytes.get(), {tensor.storage_numel}, type)
        .as_strided(tensor.shape, tensor.strides, tensor.offset)
        .clone();
  }

 private:
  struct Bytes : caffe2::serialize::ReadAdapterInterface {
    explicit Bytes(std::span<const std::byte> bytes) : bytes(bytes) {}
    size_t size() const override { return bytes.size(); }
    size_t read(uint64_t at, void* out, size_t n, const char*) const override {
      n = at < bytes.size() ? std::min<size_t>(n, bytes.size() - at) : 0;
      std::memcpy(out, bytes.data() + at, n);
      return n;
    }
    std::span<const std::byte> bytes;
  };

  template <typename Body>
  std::invoke_result_t<Body> guarded(const Body& body) const {
    try {
      return body();
    } catch (const c10::Error& error) {
      throw DataError(concat(source, ": PyTorch's zip reader: ", error.what_without_backtrace(),
                             " It is cut short or damaged."));
    }
  }

  // A record's bytes; none is larger than the file, for torch.save does not compress.
  std::pair<at::DataPtr, size_t> record(const std::string& name) const {
    return guarded([&] {
      CONTEXTURE_DATA_REQUIRE(reader_->hasRecord(name), source, " has no record '", name,
                              "'. It is not what torch.save writes.");
      const size_t size = reader_->getRecordSize(name);
      CONTEXTURE_DATA_REQUIRE(size <= file_.bytes().size(), source, ": the record '", name,
                              "' claims ", size, " bytes, more than the file's ",
                              file_.bytes().size(), ". It is damaged.");
      auto [data, read] = reader_->getRecord(name);
      return std::pair{std::move(data), read};
    });
  }

  MappedFile file_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  std::map<std::string, internal::PickledTensor> tensors_;
};

// The files that a sharded model's index names; all must be there, with all that it promises.
std::unique_ptr<ForeignWeights::Files> open_sharded(const fs::path& folder, const fs::path& index) {
  const Json json = read_json_file(index.string());
  CONTEXTURE_DATA_REQUIRE(
      json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
      index.string(), ": has no weight_map.");
  std::set<std::string> files;
  for (const auto& [name, file] : json["weight_map"].items()) {
    CONTEXTURE_DATA_REQUIRE(
        file.is_string() && fs::path(file.get<std::string>()).filename() == file.get<std::string>(),
        index.string(), ": weight_map of '", name, "' must name a file beside it.");
    files.insert(file.get<std::string>());
  }
  std::vector<fs::path> paths;
  std::string missing;
  for (const std::string& file : files) {
    paths.push_back(folder / file);
    if (!fs::exists(paths.back())) missing += " " + file;
  }
  CONTEXTURE_DATA_REQUIRE(missing.empty() && !paths.empty(), index.string(),
                          " names files that are not there:", missing, ".");
  auto opened = std::make_unique<Safetensors>(paths);
  for (const auto& [name, file] : json["weight_map"].items()) {
    CONTEXTURE_DATA_REQUIRE(opened->names.contains(name), index.string(), " promises the tensor '",
                            name, "' in ", file.get<std::string>(), ", which does not have it.");
  }
  return opened;
}

}  // namespace

ForeignWeights::ForeignWeights(std::unique_ptr<Files> files) : files_(std::move(files)) {}
ForeignWeights::ForeignWeights(ForeignWeights&&) noexcept = default;
ForeignWeights& ForeignWeights::operator=(ForeignWeights&&) noexcept = default;
ForeignWeights::~ForeignWeights() = default;

ForeignWeights ForeignWeights::open(const fs::path& folder) {
  const fs::path single = folder / "model.safetensors",
                 index = folder / "model.safetensors.index.json",
                 zip = folder / "pytorch_model.bin";
  if (fs::exists(single)) return ForeignWeights(std::make_unique<Safetensors>(std::vector{single}));
  if (fs::exists(index)) return ForeignWeights(open_sharded(folder, index));
  if (fs::exists(zip)) return ForeignWeights(std::make_unique<TorchZip>(zip));
  throw DataError(
      concat(folder.string(),
             " has no weights: looked for model.safetensors, model.safetensors.index.json and "
             "pytorch_model.bin."));
}

std::vector<std::string> ForeignWeights::names() const {
  return {files_->names.begin(), files_->names.end()};
}
bool ForeignWeights::contains(const std::string& name) const {
  return files_->names.contains(name);
}
const std::string& ForeignWeights::hash() const { return files_->hash; }

at::Tensor ForeignWeights::get(const std::string& name, at::IntArrayRef shape) const {
  CONTEXTURE_DATA_REQUIRE(contains(name), files_->source, " has no tensor '", name, "'.",
                          did_you_mean_hint(name, names()), " Is config.json another model's?");
  const at::Tensor found = files_->get(name).to(at::kFloat).contiguous();
  CONTEXTURE_DATA_REQUIRE(found.sizes() == shape, files_->source, ": the tensor '", name,
                          "' has shape ", found.sizes(), ", where config.json asks for ", shape,
                          ".");
  CONTEXTURE_DATA_REQUIRE(at::isfinite(found).all().item<bool>(), files_->source, ": the tensor '",
                          name, "' holds a NaN or an infinity. It is damaged.");
  return found;
}

}  // namespace contexture::model
