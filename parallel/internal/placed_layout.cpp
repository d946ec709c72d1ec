#include "parallel/internal/placed_layout.h"

namespace contexture::parallel {

PlacedLayout::PlacedLayout(const PlannedModel& model, const Cluster& cluster, const Layout& layout,
                           const Plan& cut, const MeshLinks& links, const LayoutTrace& traced,
                           int64_t inputs)
    : model(model),
      cluster(cluster),
      layout(layout),
      cut(cut),
      links(links),
      traced(traced),
      trace(traced.trace),
      inputs(inputs),
      m(static_cast<double>(layout.microbatches)),
      runs(m * layout.dp),
      own_bytes(trace.blocks.size(), 0.0),
      block_bytes(trace.blocks.size(), 0.0),
      rank_bytes(layout.pp, 0.0) {
  std::vector<std::set<int>> seen(layout.pp);
  for (size_t b = 0; b < trace.blocks.size(); ++b) {
    const int rank = rank_of_block(b);
    for (const int p : trace.blocks[b].parameters) {
      const auto bytes = static_cast<double>(trace.parameters[p].bytes);
      block_bytes[b] += bytes;
      if (seen[rank].insert(p).second) own_bytes[b] += bytes;
    }
    rank_bytes[rank] += own_bytes[b];
  }
}

double PlacedLayout::gather_s(size_t block) const {
  return layout.zero == 3 && block_bytes[block] > 0 ? all_gather_s(links.data, block_bytes[block])
                                                    : 0.0;
}

namespace {

class TrafficCount {
 public:
  TrafficCount(const PlacedLayout& placed, double slices) : placed_(placed), slices_(slices) {}

  LayoutTraffic count() {
    pipeline();
    tensor();
    data();
    return out_;
  }

 private:
  void add(double LinkBytes::*kind, double bytes, double crossing) {
    out_.across.*kind += bytes * crossing;
    out_.inside.*kind += bytes * (1.0 - crossing);
  }
  double crosses(int a, int b) const { return placed_.links.crosses[a][b] ? 1.0 : 0.0; }

  void pipeline() {
    for (const TraceWire& wire : placed_.trace.wires) {
      const int home = placed_.rank_of_block(wire.producer);
      std::set<int> ranks;
      for (const int reader : wire.readers) ranks.insert(placed_.rank_of_block(reader));
      ranks.erase(home);
      for (const int to : ranks)
        add(&LinkBytes::pipeline,
            (wire.forward_bytes() + wire.backward_bytes()) * placed_.runs * placed_.layout.tp,
            crosses(home, to));
    }
  }

  void tensor() {
    double bytes = 0.0;
    for (const double of_block : placed_.traced.tensor_bytes) bytes += of_block;
    add(&LinkBytes::tensor, bytes * placed_.runs * placed_.layout.tp, placed_.links.tensor_hops);
  }

  void data() {
    const Layout& l = placed_.layout;
    const double half = (l.dp - 1.0) / l.dp, m = placed_.m;
    for (int r = 0; r < l.pp; ++r) {
      double bytes = (l.zero == 0   ? 2.0
                      : l.zero == 1 ? 1.0
                                    : m) *
                     placed_.wide(placed_.rank_bytes[r]);
      if (l.zero == 1 || l.zero == 2) bytes += placed_.rank_bytes[r];
      for (size_t b = 0; l.zero == 3 && b < placed_.trace.blocks.size(); ++b) {
        const bool sliced = placed_.trace.blocks[b].rows > 0;
        if (placed_.rank_of_block(b) == r)
          bytes += m * 2 * placed_.block_bytes[b] * (sliced ? slices_ : 1.0);
      }
      add(&LinkBytes::data, half * bytes * l.dp * l.tp, placed_.links.data_hops);
    }
    placed_.for_each_shared([&](double bytes, const std::vector<int>& ranks) {
      const double n = static_cast<double>(ranks.size());
      add(&LinkBytes::data,
          2 * (n - 1) * placed_.wide(bytes) / (l.zero >= 1 ? l.dp : 1) * l.dp * l.tp,
          crosses(ranks.front(), ranks.back()));
    });
  }

  const PlacedLayout& placed_;
  const double slices_;
  LayoutTraffic out_;
};

}  // namespace

LayoutTraffic traffic_of(const PlacedLayout& placed, size_t slices) {
  return TrafficCount(placed, static_cast<double>(slices)).count();
}

}  // namespace contexture::parallel
