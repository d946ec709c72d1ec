#include "parallel/link_timing.h"

#include "core/timing.h"

namespace contexture::parallel {

double one_way_s(Communicator& world, int a, int b, int64_t bytes, int64_t repeats) {
  const at::Tensor message = at::zeros({bytes}, at::kByte);
  std::vector<double> times;
  for (int64_t i = -2; i < repeats; ++i) {
    const double start = now_s();
    if (world.rank() == a) {
      world.send(message, b, 0).wait();
      world.receive(message, b, 1).wait();
    } else {
      world.receive(message, a, 0).wait();
      world.send(message, a, 1).wait();
    }
    if (i >= 0) times.push_back((now_s() - start) / 2);
  }
  return median(times);
}

}  // namespace contexture::parallel
