// Any bytes are either refused with a DataError or decode to a picture of the size that their
// header claims, within the pixel limit, or to a smaller one where that is allowed.
#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "data/image.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contexture;
  using namespace contexture::data;
  constexpr int64_t kLimit = 1 << 20;
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const Image image = decode_image(bytes, {.max_pixels = kLimit}, "fuzz");
    const ImageInfo info = probe_image(bytes, "fuzz");
    const int64_t pixels = int64_t{image.height} * image.width;
    if (pixels > kLimit || pixels != info.height * info.width) std::abort();
    if (image.rgb.size() != static_cast<size_t>(pixels) * 3) std::abort();
    resize_padded(image, 16, 16);
    const Image quick = decode_image(bytes, {.max_pixels = kLimit, .shrunk_to = 4}, "fuzz");
    if (quick.height > image.height || quick.width > image.width) std::abort();
  } catch (const DataError&) {
  }
  return 0;
}
