// Counts the bytes of CPU tensors that a thread has made: those alive, and the most that ever were.
#pragma once
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdlib>
#include <memory>

namespace contexture {

struct Allocations {
  std::atomic<int64_t> live{0}, peak{0};
  void add(int64_t bytes) {
    const int64_t now = live += bytes;
    int64_t most = peak;
    while (now > most && !peak.compare_exchange_weak(most, now)) {
    }
  }
  void forget_peak() { peak = live.load(); }
};

// From its construction on, this thread's tensors count; wherever they are freed.
class CountAllocations {
 public:
  CountAllocations() : before_(counter()) {
    install();
    counter() = std::make_shared<Allocations>();
  }
  ~CountAllocations() { counter() = before_; }
  CountAllocations(const CountAllocations&) = delete;
  CountAllocations& operator=(const CountAllocations&) = delete;
  Allocations& operator*() const { return *counter(); }
  Allocations* operator->() const { return counter().get(); }

 private:
  struct Header {
    std::shared_ptr<Allocations> counter;  // of the thread that made it
    int64_t bytes;
  };
  static constexpr size_t kRoom = 64;  // keeps the data aligned as LibTorch's own allocator does
  static_assert(sizeof(Header) <= kRoom);

  static std::shared_ptr<Allocations>& counter() {
    thread_local std::shared_ptr<Allocations> mine;
    return mine;
  }
  static void release(void* data) {
    if (data == nullptr) return;
    auto* header = reinterpret_cast<Header*>(static_cast<char*>(data) - kRoom);
    if (header->counter) header->counter->add(-header->bytes);
    header->~Header();
    std::free(header);
  }
  class Allocator : public c10::Allocator {
   public:
    c10::DataPtr allocate(size_t bytes) override {
      void* all = nullptr;
      if (posix_memalign(&all, kRoom, bytes + kRoom) != 0) throw std::bad_alloc();
      const auto* header = new (all) Header{counter(), static_cast<int64_t>(bytes)};
      if (header->counter) header->counter->add(header->bytes);
      void* data = static_cast<char*>(all) + kRoom;
      return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void* to, const void* from, size_t bytes) const override {
      default_copy_data(to, from, bytes);
    }
  };
  static void install() {
    static Allocator allocator;
    static const bool once = (c10::SetCPUAllocator(&allocator, /*priority=*/100), true);
    (void)once;
  }
  std::shared_ptr<Allocations> before_;
};

}  // namespace contexture
