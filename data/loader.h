// Prefetching: items made on threads, delivered in step order. And a cache of decoded pictures.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/image.h"
#include "data/records.h"

namespace contexture::data {

struct LoaderOptions {
  int64_t first_step = 0;
  int64_t end_step = -1;  // exclusive; -1 = endless
  int threads = 1;        // 0 = make() runs inside next()
  int depth = 4;          // items made ahead at most
};

// Runs make(step) ahead of the caller, for step = first_step, first_step + 1, ... next() gives the
// items in that order whatever the number of threads. An exception of make(step) is thrown by the
// next() that would have given that step, and the loader goes on with the following one. make must
// be thread-safe when threads > 1. next() is for one caller. The destructor waits for the running
// make() calls only.
template <class T>
class Loader {
 public:
  Loader(std::function<T(int64_t)> make, const LoaderOptions& options)
      : make_(std::move(make)),
        options_(options),
        to_give_(options.first_step),
        to_make_(options.first_step) {
    for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Loader() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next step's item; nothing once end_step is reached.
  std::optional<T> next() {
    if (finished(to_give_)) return std::nullopt;
    if (threads_.empty()) return make_(to_give_++);
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return made_.contains(to_give_); });
    auto node = made_.extract(to_give_++);
    lock.unlock();
    room_.notify_all();
    if (node.mapped().error) std::rethrow_exception(node.mapped().error);
    return std::move(node.mapped().item);
  }
  int64_t next_step() const { return to_give_; }  // the step that next() will give

 private:
  struct Made {
    std::optional<T> item;
    std::exception_ptr error;
  };
  bool finished(int64_t step) const { return options_.end_step >= 0 && step >= options_.end_step; }
  bool may_make() const { return to_make_ < to_give_ + std::max(options_.depth, 1); }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      room_.wait(lock, [&] { return stopping_ || finished(to_make_) || may_make(); });
      if (stopping_ || finished(to_make_)) return;
      const int64_t step = to_make_++;
      lock.unlock();
      Made made;
      try {
        made.item.emplace(make_(step));
      } catch (...) {
        made.error = std::current_exception();
      }
      lock.lock();
      made_.emplace(step, std::move(made));
      ready_.notify_all();
    }
  }

  std::function<T(int64_t)> make_;
  LoaderOptions options_;
  std::mutex mutex_;
  std::condition_variable ready_, room_;
  std::map<int64_t, Made> made_;
  int64_t to_give_,
      to_make_;  // guarded by mutex_; to_give_ is written by the caller of next() alone
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Decoded pictures of one size, kept while they fit in `limit_bytes` (then the least recently used
// go). Thread-safe.
class ImageCache {
 public:
  struct Options {
    int height = 64;
    int width = 64;
    int64_t limit_bytes = int64_t{512} << 20;
    ImageOptions decode{};
  };
  ImageCache(std::shared_ptr<const ImageSource> source, const Options& options);

  // Decoded, fitted into height x width with the aspect kept. Throws DataError naming the picture.
  std::shared_ptr<const Image> get(const std::string& name) const;
  int64_t bytes() const;
  int64_t decoded() const;  // pictures decoded so far, repeats included

 private:
  struct Entry {
    std::shared_ptr<const Image> image;
    uint64_t used = 0;
  };
  void evict_to(int64_t limit) const;

  std::shared_ptr<const ImageSource> source_;
  Options options_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, Entry> entries_;
  mutable std::map<uint64_t, std::string> by_use_;
  mutable uint64_t clock_ = 0;
  mutable int64_t bytes_ = 0;
  mutable int64_t decoded_ = 0;
};

// Decodes every picture of the set on `threads` threads; examples whose picture is unreadable leave
// the set, named in `bad`. What remains keeps its order. (The pictures stay in the cache.)
void drop_unreadable_images(ExampleSet& set, const ImageCache& cache, BadRecords& bad,
                            int threads = 2);

}  // namespace contexture::data
