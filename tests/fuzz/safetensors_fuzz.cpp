// Any bytes are either refused with a DataError or give views inside them that a written copy
// repeats.
#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "core/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contexture;
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const SafetensorsReader reader(bytes, "input");
    SafetensorsWriter writer(reader.metadata());
    uint64_t total = 0;
    for (const std::string& name : reader.names()) {
      const TensorView& view = reader.get(name);
      for (const std::byte byte : view.bytes) total += static_cast<uint8_t>(byte);
      writer.add(name, view.dtype, view.shape, view.bytes);  // a Bug here would be one
    }
    if (total > 255 * static_cast<uint64_t>(size)) std::abort();  // more bytes than there are
  } catch (const DataError&) {
  }
  return 0;
}
