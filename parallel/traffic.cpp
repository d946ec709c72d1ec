#include "parallel/traffic.h"

#include <algorithm>
#include <set>

#include "parallel/executor.h"

namespace contexture::parallel {

std::map<std::pair<int, int>, Traffic> pipeline_traffic(const BlockList& blocks,
                                                        const Placement& placement,
                                                        const std::vector<const Pass*>& passes) {
  const Executor whole(blocks);  // knows which wires have gradients; runs nothing
  std::map<std::pair<int, int>, Traffic> out;
  const auto add = [&](int from, int to, int64_t bytes) {
    Traffic& traffic = out[{from, to}];
    ++traffic.calls;
    ++traffic.messages;
    traffic.bytes += bytes;
  };
  for (const Wire& wire : whole.wires()) {
    const Block& producer = *blocks[wire.producer];
    const int writer = placement.graph.rank_of[placement.stage_of[wire.producer]];
    std::set<int> readers;
    for (const int reader : wire.readers)
      readers.insert(placement.graph.rank_of[placement.stage_of[reader]]);
    readers.erase(writer);
    if (readers.empty()) continue;
    const auto output = std::find(producer.outputs().begin(), producer.outputs().end(), wire.name) -
                        producer.outputs().begin();
    for (const Pass* pass : passes) {
      const WireShape shape = producer.shapes(*pass)[output];
      const int64_t bytes =
          c10::multiply_integers(shape.sizes) * static_cast<int64_t>(c10::elementSize(shape.dtype));
      if (bytes == 0) continue;
      for (const int reader : readers) {
        add(writer, reader, bytes);
        if (whole.wants_grad(wire.name) && at::isFloatingType(shape.dtype))
          add(reader, writer, bytes);
      }
    }
  }
  return out;
}

}  // namespace contexture::parallel
