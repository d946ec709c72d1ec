#include "shadow_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <mutex>
#include <vector>

#include "shadow_device.h"

namespace contexture::shadow {
namespace {

constexpr size_t kRoom = size_t{1} << 33;  // of addresses; pages come with use

struct Access {
  int stream = 0;
  uint64_t time = 0;
};

struct Block {
  size_t size = 0;
  int64_t counted = 0;  // what CUDA's allocator would: whole units of 512
  int owner = 0;        // the stream it was allocated for
  bool kept = false;
  Access write;
  std::vector<Access> reads;  // since the last write, one a stream
};

// Blocks are never merged nor given back: sizes are powers of two, and a stream's freed blocks
// serve that stream alone, with their history, as those of CUDA's caching allocator do.
struct State {
  std::mutex mutex;
  char* base = nullptr;
  size_t used = 0;
  std::map<const char*, Block> blocks;  // by begin
  std::map<std::pair<int, size_t>, std::vector<char*>> free;
  std::array<Clock, kMaxStreams> clocks{};
  int num_streams = 1;
  int64_t bytes = 0, peak = 0;
};

State& state() {
  static auto* all = new State;  // tensors may outlive static objects
  return *all;
}
thread_local int this_stream = 0;

Block& block_of(State& s, const void* pointer) {
  auto it = s.blocks.upper_bound(static_cast<const char*>(pointer));
  TORCH_CHECK(it != s.blocks.begin(), "no memory of the shadow device");
  return std::prev(it)->second;
}

bool is_before(const Access& access, const Clock& now) {
  return now[static_cast<size_t>(access.stream)] >= access.time;
}

void release(void* pointer) {
  if (pointer == nullptr) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Block& block = block_of(s, pointer);
  s.bytes -= block.counted;
  if (!block.kept) s.free[{block.owner, block.size}].push_back(static_cast<char*>(pointer));
}

class ShadowAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, device()};
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.base == nullptr) {
      void* room =
          mmap(nullptr, 2 * kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      TORCH_CHECK(room != MAP_FAILED, "no addresses for the shadow device");
      s.base = static_cast<char*>(room);
      TORCH_CHECK(mprotect(s.base + kRoom, kRoom, PROT_READ | PROT_WRITE) == 0,
                  "no memory for the shadow device");
    }
    const size_t size = std::bit_ceil(std::max<size_t>(bytes, 64));
    char* pointer = nullptr;
    if (auto& free = s.free[{this_stream, size}]; !free.empty()) {
      pointer = free.back();
      free.pop_back();
    } else {
      TORCH_CHECK(s.used + size <= kRoom, "the shadow device is full");
      pointer = s.base + s.used;
      s.used += size;
      s.blocks[pointer] = {size, 0, this_stream, false, {this_stream, 0}, {}};
    }
    Block& block = s.blocks.at(pointer);
    block.counted = static_cast<int64_t>((bytes + 511) / 512 * 512);
    s.bytes += block.counted;
    s.peak = std::max(s.peak, s.bytes);
    return {pointer, pointer, &release, device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(host(to), host(from), bytes);
  }
};

}  // namespace

c10::Allocator* allocator() {
  static auto* one = new ShadowAllocator;
  return one;
}

void* host(void* pointer) {
  return pointer == nullptr ? nullptr : static_cast<char*>(pointer) + kRoom;
}

int current_stream() { return this_stream; }
int exchange_stream(int stream) { return std::exchange(this_stream, stream); }
int new_stream() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  TORCH_CHECK(s.num_streams < kMaxStreams, "the shadow device has no more streams");
  return s.num_streams++;
}

Clock record(int stream) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.clocks[static_cast<size_t>(stream)];
}

void wait_for(int stream, const Clock& event) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Clock& clock = s.clocks[static_cast<size_t>(stream)];
  for (size_t i = 0; i < kMaxStreams; ++i) clock[i] = std::max(clock[i], event[i]);
}

void touch(const void* pointer, bool writes, const char* what) {
  if (pointer == nullptr) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Clock& now = s.clocks[static_cast<size_t>(this_stream)];
  const Access mine{this_stream, ++now[static_cast<size_t>(this_stream)]};
  Block& block = block_of(s, pointer);
  TORCH_CHECK(is_before(block.write, now), what, " on stream ", this_stream,
              " races with a write on stream ", block.write.stream);
  if (!writes) {
    std::erase_if(block.reads, [](const Access& read) { return read.stream == this_stream; });
    block.reads.push_back(mine);
    return;
  }
  for (const Access& read : block.reads) {
    TORCH_CHECK(is_before(read, now), what, " on stream ", this_stream, " writes what stream ",
                read.stream, " may still read");
  }
  block.write = mine;
  block.reads.clear();
}

void keep_for(const void* pointer, int stream) {
  if (pointer == nullptr) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Block& block = block_of(s, pointer);
  block.kept = block.kept || stream != block.owner;
}

int64_t bytes() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.bytes;
}
int64_t peak_bytes() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.peak;
}
void reset_peak() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.peak = s.bytes;
}

}  // namespace contexture::shadow
