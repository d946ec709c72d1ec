// The shadow device's memory and streams: who has touched which block, and whether that was in
// order.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>

namespace contexture::shadow {

constexpr int kMaxStreams = 64;
using Clock = std::array<uint64_t, kMaxStreams>;  // how far each stream's work is known to be done

c10::Allocator* allocator();

// Where the device's pointer really leads.
void* host(void* device_pointer);
inline const void* host(const void* p) { return host(const_cast<void*>(p)); }

int current_stream();
int exchange_stream(int stream);
int new_stream();
Clock record(int stream);  // an event
void wait_for(int stream, const Clock& event);

// The current stream's next operation reads or writes the block that this pointer lies in. Throws
// on a race, naming `what`.
void touch(const void* device_pointer, bool writes, const char* what);
// The block must not go to another use before the stream is done with it.
void keep_for(const void* device_pointer, int stream);

}  // namespace contexture::shadow
