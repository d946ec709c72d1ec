#include <atomic>

#include "core/error.h"
#include "data/loader.h"

namespace contexture::data {
namespace {

int64_t size_of(const Image& image) {
  return static_cast<int64_t>(image.rgb.size() + sizeof(Image));
}

}  // namespace

ImageCache::ImageCache(std::shared_ptr<const ImageSource> source, const Options& options)
    : source_(std::move(source)), options_(options) {
  CONTEXTURE_REQUIRE(options.height > 0 && options.width > 0 && options.limit_bytes >= 0,
                     "a picture cache of ", options.width, " x ", options.height, " pixels and ",
                     options.limit_bytes, " bytes can't be.");
}

std::shared_ptr<const Image> ImageCache::get(const std::string& name) const {
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found != entries_.end()) {
      by_use_.erase(found->second.used);
      found->second.used = ++clock_;
      by_use_.emplace(clock_, name);
      return found->second.image;
    }
  }
  // Decoding is outside the lock; two threads may decode the same picture, to the same result.
  CONTEXTURE_DATA_REQUIRE(source_ != nullptr, "there is no source for picture '", name, "'.");
  const auto bytes = source_->read(name);
  auto image = std::make_shared<const Image>(
      resize_padded(decode_image(bytes, options_.decode, name), options_.height, options_.width,
                    options_.decode.background));
  const std::lock_guard lock(mutex_);
  ++decoded_;
  const int64_t size = size_of(*image);
  if (size > options_.limit_bytes || entries_.contains(name)) return image;
  evict_to(options_.limit_bytes - size);
  entries_.emplace(name, Entry{image, ++clock_});
  by_use_.emplace(clock_, name);
  bytes_ += size;
  return image;
}

void ImageCache::evict_to(int64_t limit) const {
  while (bytes_ > limit && !by_use_.empty()) {
    const auto oldest = by_use_.begin();
    const auto entry = entries_.find(oldest->second);
    bytes_ -= size_of(*entry->second.image);
    entries_.erase(entry);
    by_use_.erase(oldest);
  }
}

int64_t ImageCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

int64_t ImageCache::decoded() const {
  const std::lock_guard lock(mutex_);
  return decoded_;
}

void drop_unreadable_images(ExampleSet& set, const ImageCache& cache, BadRecords& bad,
                            int threads) {
  std::vector<std::string> reasons(set.examples.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < set.examples.size(); i = next++) {
      if (set.examples[i].image.empty()) continue;
      try {
        cache.get(set.examples[i].image);
      } catch (const UserError& error) {
        reasons[i] = error.what();
      }
    }
  };
  {
    std::vector<std::jthread> pool;
    for (int t = 1; t < threads; ++t) pool.emplace_back(work);
    work();
  }
  std::vector<Example> kept;
  kept.reserve(set.examples.size());
  for (size_t i = 0; i < set.examples.size(); ++i) {
    if (reasons[i].empty()) {
      kept.push_back(std::move(set.examples[i]));
    } else {
      bad.add(concat("example ", set.examples[i].id), "unreadable picture", reasons[i]);
    }
  }
  set.examples = std::move(kept);
}

}  // namespace contexture::data
