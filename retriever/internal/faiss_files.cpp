// FAISS's own file format, read through a reader that knows how much there is left to read.
#include <faiss/impl/FaissException.h>
#include <faiss/impl/io.h>
#include <faiss/index_io.h>
#include <faiss/invlists/InvertedListsIOHook.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <typeinfo>

#include "core/error.h"
#include "retriever/internal/faiss_store.h"

namespace contexture::retriever::internal {
namespace {

// FAISS reads a list as its length in eight bytes, allocates, then reads the items: by the time the
// file turns out to be too short the memory is gone. So any eight-byte number larger than what is
// left of the file (and than the fillers in the header) ends the reading. Lists kept in further
// files are refused: an index is one file.
class BoundedReader : public faiss::IOReader {
 public:
  BoundedReader(std::string_view bytes, const std::string& source) : bytes_(bytes) {
    name = source;
  }

  size_t operator()(void* out, size_t size, size_t count) override {
    CONTEXTURE_DATA_REQUIRE(size == 0 || count <= bytes_.size() / size, name, ": needs ", count,
                            " items of ", size, " bytes more, but ", bytes_.size(),
                            " bytes are left. "
                            "It is cut short or damaged: build it again.");
    std::memcpy(out, bytes_.data(), size * count);
    bytes_.remove_prefix(size * count);
    if (size == 8 && count == 1) {
      uint64_t value;
      std::memcpy(&value, out, sizeof(value));
      constexpr uint64_t kFiller = uint64_t{1} << 20;
      constexpr uint64_t kUnset =
          ~uint64_t{0};  // code size of packed lists; no list can be so long
      CONTEXTURE_DATA_REQUIRE(
          value <= std::max<uint64_t>(kFiller, bytes_.size()) || value == kUnset, name,
          ": states a size of ", value, " with ", bytes_.size(),
          " bytes left. It is damaged: build it again.");
    }
    if (size == 4 && count == 1) {
      CONTEXTURE_DATA_REQUIRE(
          std::memcmp(out, "ilod", 4) != 0, name,
          ": its lists are in another file, which is not supported. Build it again.");
    }
    return count;
  }

  size_t left() const { return bytes_.size(); }

  // The next `count` items of `size` bytes, where they lie.
  const uint8_t* skip(size_t count, size_t size) {
    CONTEXTURE_DATA_REQUIRE(size > 0 && count <= bytes_.size() / size, name, ": a list of ", count,
                            " items of ", size, " bytes does not fit the ", bytes_.size(),
                            " bytes that are left. It is cut short or damaged: build it again.");
    const auto* begin = reinterpret_cast<const uint8_t*>(bytes_.data());
    bytes_.remove_prefix(count * size);
    return begin;
  }

 private:
  std::string_view bytes_;
};

// Inverted lists that stay in the mapped file. Their addresses are not aligned: whoever reads ids
// copies them out, and FAISS's own scanners read them as x86 lets them.
class MappedLists : public faiss::ReadOnlyInvertedLists {
 public:
  MappedLists(BoundedReader& reader, size_t nlist, size_t code_size,
              const std::vector<size_t>& sizes)
      : ReadOnlyInvertedLists(nlist, code_size), sizes_(sizes) {
    for (const size_t size : sizes) {
      codes_.push_back(reader.skip(size, code_size));
      ids_.push_back(reader.skip(size, sizeof(idx_t)));
    }
  }

  size_t list_size(size_t list) const override { return sizes_.at(list); }
  const uint8_t* get_codes(size_t list) const override { return codes_.at(list); }
  const idx_t* get_ids(size_t list) const override {
    return reinterpret_cast<const idx_t*>(ids_.at(list));
  }

 private:
  std::vector<size_t> sizes_;
  std::vector<const uint8_t*> codes_, ids_;
};

// Tells FAISS's reader to make MappedLists of lists that it would copy.
struct MappedListsHook : faiss::InvertedListsIOHook {
  static constexpr int kFlags = faiss::IO_FLAG_SKIP_IVF_DATA | 'm' << 16 | 'm' << 24;

  MappedListsHook() : InvertedListsIOHook("ilmm", typeid(MappedLists).name()) {}
  void write(const faiss::InvertedLists*, faiss::IOWriter*) const override {
    CONTEXTURE_INVARIANT(false, "a mapped index is not written");
  }
  faiss::InvertedLists* read(faiss::IOReader*, int) const override {
    throw DataError("Lists of an unknown kind. Build the index again.");
  }
  faiss::InvertedLists* read_ArrayInvertedLists(faiss::IOReader* reader, int, size_t nlist,
                                                size_t code_size,
                                                const std::vector<size_t>& sizes) const override {
    auto* bounded = dynamic_cast<BoundedReader*>(reader);
    CONTEXTURE_INVARIANT(bounded != nullptr);
    return new MappedLists(*bounded, nlist, code_size, sizes);
  }
};

class SinkWriter : public faiss::IOWriter {
 public:
  explicit SinkWriter(const Sink& sink) : sink_(sink) { name = "index"; }

  size_t operator()(const void* data, size_t size, size_t count) override {
    sink_({static_cast<const std::byte*>(data), size * count});
    return count;
  }

 private:
  const Sink& sink_;
};

}  // namespace

void FaissStore::write(const Sink& sink) const {
  require_changeable();
  SinkWriter writer(sink);
  try {
    faiss::write_index(index_.get(), &writer);
  } catch (const faiss::FaissException& error) {
    throw UserError(
        concat("FAISS could not write an index '", options_.factory, "': ", error.what()));
  }
}

std::unique_ptr<Store> read_faiss_store(const IndexOptions& options, int64_t dim, int64_t count,
                                        std::string_view bytes, const std::string& source,
                                        bool mapped) {
  static std::once_flag hooked;
  std::call_once(hooked, [] {
    faiss::InvertedListsIOHook::add_callback(new MappedListsHook);
  });  // FAISS owns it
  BoundedReader reader(bytes, source);
  std::unique_ptr<faiss::Index> index;
  try {
    index.reset(faiss::read_index(&reader, mapped ? MappedListsHook::kFlags : 0));
  } catch (const faiss::FaissException& error) {
    throw DataError(concat(source, ": FAISS could not read it: ", error.what()));
  } catch (const std::bad_alloc&) {
    throw DataError(concat(source, ": reading it takes more memory than there is."));
  } catch (const std::length_error&) {
    throw DataError(concat(source, ": states an impossible size. It is damaged: build it again."));
  }
  CONTEXTURE_DATA_REQUIRE(reader.left() == 0, source, ": ", reader.left(),
                          " bytes follow the index. It is damaged: build it again.");
  CONTEXTURE_DATA_REQUIRE(index->d == dim && index->ntotal == count, source, " holds ",
                          index->ntotal, " vectors of ", index->d, ", its card says ", count,
                          " of ", dim, ".");
  return std::make_unique<FaissStore>(options, std::move(index), mapped);
}

}  // namespace contexture::retriever::internal
