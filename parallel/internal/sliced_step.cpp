#include "parallel/internal/sliced_step.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "parallel/token_slices.h"

namespace contexture::parallel {
namespace {

constexpr int64_t kPlaces = 32;  // where planned slices may be cut

// Share of the pairs among the first `rows` (a share, too).
double pairs_before(double rows, int64_t sequences) {
  const double n = static_cast<double>(sequences), at = std::min(n, rows * n),
               whole = std::floor(at);
  return (whole + (at - whole) * (at - whole)) / n;
}

TokenSlices slices_at(const std::vector<double>& cuts, int64_t sequences) {
  TokenSlices out;
  for (size_t i = 1; i < cuts.size(); ++i) {
    out.rows.push_back(cuts[i] - cuts[i - 1]);
    out.pairs.push_back(pairs_before(cuts[i], sequences) - pairs_before(cuts[i - 1], sequences));
  }
  return out;
}

void add(StageTimes& times, int stage, const BlockTimes& block) {
  times.forward[stage] += block.forward_s;
  times.input_grad[stage] += block.input_grad_s;
  times.weight_grad[stage] += block.weight_grad_s;
}

void resize(StageTimes& times, int stages) {
  times.forward.assign(stages, 0.0);
  times.input_grad = times.weight_grad = times.forward;
}

// A block's time with the collectives of ZeRO: its values gathered for each use, its gradients
// reduced once a microbatch, with the last of its slices to go back.
BlockTimes with_zero(const PlacedLayout& placed, size_t b, BlockTimes times, bool last_back) {
  const double gather = placed.gather_s(b);
  times.forward_s += gather;
  times.input_grad_s += gather;
  if (last_back && placed.layout.zero >= 2 && placed.own_bytes[b] > 0)
    times.weight_grad_s += reduce_scatter_s(placed.links.data, placed.wide(placed.own_bytes[b]));
  return times;
}

// Slice i of a block.
BlockTimes slice_times(const PlacedLayout& placed, size_t b, const TokenSlices& slices, size_t i) {
  BlockTimes out =
      with_zero(placed, b, block_times(placed.traced, b, slices.rows[i], slices.pairs[i]),
                /*last_back=*/i == 0);
  if (i == 0) return out;
  out.forward_s += placed.model.slice_s;
  out.input_grad_s += placed.model.slice_s;
  out.weight_grad_s += placed.model.slice_s;
  return out;
}

// Edges between ranks with the sum of their wires' times.
class Edges {
 public:
  void add(int from, int to, double seconds) { seconds_[{from, to}] += seconds; }
  void move_to(SimulatedStep& step) const {
    for (const auto& [edge, seconds] : seconds_) {
      step.graph.edges.push_back(edge);
      step.times.transfer.push_back(seconds);
    }
  }

 private:
  std::map<std::pair<int, int>, double> seconds_;
};

enum class Part { kBefore, kSliced, kAfter };

// Blocks that run before, in and after the slices, as the engine has it.
std::vector<Part> parts_of(const Trace& trace) {
  std::vector<Part> out(trace.blocks.size(), Part::kBefore);
  for (size_t b = 0; b < out.size(); ++b) {
    Part latest = Part::kBefore;
    for (const TraceWire& wire : trace.wires) {
      if (std::binary_search(wire.readers.begin(), wire.readers.end(), static_cast<int>(b)))
        latest = std::max(latest, out[wire.producer]);
    }
    out[b] = trace.blocks[b].rows > 0  ? Part::kSliced
             : latest == Part::kBefore ? Part::kBefore
                                       : Part::kAfter;
  }
  return out;
}

class SlicedSteps {
 public:
  SlicedSteps(const PlacedLayout& placed, const TokenSlices& slices)
      : placed_(placed),
        slices_(slices),
        n_(static_cast<int>(slices.rows.size())),
        part_of_(parts_of(placed.trace)) {}

  SimulatedStep run(const SimulatedStep& whole) {
    number_units(whole.graph);
    resize(step_.times, static_cast<int>(step_.graph.rank_of.size()));
    step_.graph.num_stages = static_cast<int>(step_.graph.rank_of.size());
    step_.graph.num_ranks = whole.graph.num_ranks;
    for (size_t b = 0; b < part_of_.size(); ++b) {
      if (part_of_[b] != Part::kSliced) {
        add(step_.times, unit(b, 0),
            with_zero(placed_, b, block_times(placed_.traced, b, 1.0, 1.0),
                      /*last_back=*/true));
        continue;
      }
      for (int i = 0; i < n_; ++i)
        add(step_.times, unit(b, i), slice_times(placed_, b, slices_, i));
    }
    connect();
    for (const std::vector<Action>& actions : whole.schedule.by_rank)
      step_.schedule.by_rank.push_back(expanded(actions));
    return std::move(step_);
  }

 private:
  // Units before the slices first, then stage by stage the slices, then those after them: wires go
  // from lower to higher numbers.
  void number_units(const StageGraph& whole) {
    for (const Part part : {Part::kBefore, Part::kSliced, Part::kAfter}) {
      for (int s = 0; s < whole.num_stages; ++s) {
        const std::vector<int>& blocks = placed_.cut.stages[s].blocks;
        if (std::none_of(blocks.begin(), blocks.end(), [&](int b) { return part_of_[b] == part; }))
          continue;
        for (int i = 0; i < (part == Part::kSliced ? n_ : 1); ++i) {
          unit_of_[{s, part, i}] = static_cast<int>(step_.graph.rank_of.size());
          step_.graph.rank_of.push_back(whole.rank_of[s]);
          step_.stage_of.push_back(s);
          step_.slice_of.push_back(part == Part::kSliced ? i : -1);
        }
      }
    }
  }

  int unit(size_t block, int slice) const {
    const Part part = part_of_[block];
    return unit_of_.at(
        {placed_.cut.stage_of_block[block], part, part == Part::kSliced ? slice : 0});
  }

  void connect() {
    Edges edges;
    for (const TraceWire& wire : placed_.trace.wires) {
      const bool sliced = part_of_[wire.producer] == Part::kSliced;
      const int home = placed_.rank_of_block(wire.producer);
      std::set<std::pair<int, Part>> served;  // stages' parts: many blocks of one may read it
      for (const int reader : wire.readers) {
        const int to = placed_.rank_of_block(reader);
        if (to == home ||
            !served.insert({placed_.cut.stage_of_block[reader], part_of_[reader]}).second)
          continue;
        CONTEXTURE_INVARIANT(
            part_of_[reader] != Part::kSliced || part_of_[wire.producer] != Part::kAfter, "block '",
            placed_.trace.blocks[reader].name,
            "' runs in slices, but reads what needs all of them");
        const Link& link = placed_.link(home, to);
        // A wire that is whole at one end goes with the first slice, and its gradient with that
        // back.
        const bool slices_at_both = sliced && part_of_[reader] == Part::kSliced;
        for (int i = 0; i < (sliced || part_of_[reader] == Part::kSliced ? n_ : 1); ++i) {
          edges.add(unit(wire.producer, i), unit(reader, slices_at_both || !sliced ? i : 0),
                    link.seconds(wire.forward_bytes() * (sliced ? slices_.rows[i] : 1.0)));
        }
      }
    }
    edges.move_to(step_);
  }

  std::vector<Action> expanded(const std::vector<Action>& whole) const {
    std::vector<Action> out;
    for (const Action& action : whole) {
      const auto run = [&](Part part, int slice) {
        const auto known = unit_of_.find({action.stage, part, slice});
        if (known != unit_of_.end()) out.push_back({known->second, action.work, action.microbatch});
      };
      const bool forward = action.work == Work::kForward;
      run(forward ? Part::kBefore : Part::kAfter, 0);
      for (int i = 0; i < n_; ++i) run(Part::kSliced, forward ? i : n_ - 1 - i);
      run(forward ? Part::kAfter : Part::kBefore, 0);
    }
    return out;
  }

  const PlacedLayout& placed_;
  const TokenSlices& slices_;
  const int n_;
  const std::vector<Part> part_of_;
  std::map<std::tuple<int, Part, int>, int> unit_of_;
  SimulatedStep step_;
};

}  // namespace

std::pair<double, double> least_first_slice(int64_t count, int64_t sequences) {
  const double rows = 1.0 / static_cast<double>(count > 0 ? count : kPlaces);
  return {rows, pairs_before(rows, sequences)};
}

TokenSlices token_slices_of(const PlacedLayout& placed) {
  const int64_t count = placed.layout.token_slices;
  std::vector<double> cuts{0.0};
  for (int64_t i = 1; i <= count; ++i)
    cuts.push_back(static_cast<double>(i) / static_cast<double>(count));
  if (count > 0) return slices_at(cuts, placed.inputs);
  // By rank, of the blocks that are sliced: seconds that go with rows and with pairs, and those of
  // each slice.
  struct Pace {
    double rows_s = 0.0, pairs_s = 0.0, slice_s = 0.0;
  };
  std::vector<Pace> paces(placed.layout.pp);
  int64_t rows = 0;
  for (size_t b = 0; b < placed.trace.blocks.size(); ++b) {
    const TraceBlock& block = placed.trace.blocks[b];
    if (block.rows == 0) continue;
    rows = std::max(rows, block.rows * placed.inputs);
    Pace& pace = paces[placed.rank_of_block(b)];
    pace.rows_s += (1 - block.pair_work) * step_s(block);
    pace.pairs_s += block.pair_work * step_s(block);
    pace.slice_s += 3 * placed.model.slice_s;
  }
  const auto stages = std::count_if(paces.begin(), paces.end(), [](const Pace& p) {
    return p.slice_s + p.rows_s + p.pairs_s > 0;
  });
  const Pace& slowest = *std::max_element(
      paces.begin(), paces.end(),
      [](const Pace& a, const Pace& b) { return a.rows_s + a.pairs_s < b.rows_s + b.pairs_s; });
  const int fill = std::max(
      1, static_cast<int>(std::lround(1.0 + (static_cast<double>(stages) - 1.0) / placed.m)));
  const auto share = [&](int64_t n) { return static_cast<double>(n) / static_cast<double>(rows); };
  const auto cost = [&](int64_t tokens, int64_t context) {
    return slowest.slice_s + slowest.rows_s * share(tokens) +
           slowest.pairs_s * (pairs_before(share(context + tokens), placed.inputs) -
                              pairs_before(share(context), placed.inputs));
  };
  int64_t before = 0;
  for (const int64_t length :
       plan_token_slices(rows, fill, cost, /*gap=*/0.0, (rows + kPlaces - 1) / kPlaces).lengths)
    cuts.push_back(share(before += length));
  return slices_at(cuts, placed.inputs);
}

SimulatedStep whole_step(const PlacedLayout& placed) {
  SimulatedStep step;
  step.graph.num_stages = static_cast<int>(placed.cut.stages.size());
  step.graph.num_ranks = placed.layout.pp;
  step.graph.rank_of = placed.cut.device_of_stage;
  resize(step.times, step.graph.num_stages);
  for (size_t b = 0; b < placed.trace.blocks.size(); ++b)
    add(step.times, placed.cut.stage_of_block[b],
        with_zero(placed, b, block_times(placed.traced, b, 1.0, 1.0), /*last_back=*/true));
  Edges edges;
  for (const TraceWire& wire : placed.trace.wires) {
    const int from = placed.cut.stage_of_block[wire.producer];
    std::set<int> readers;
    for (const int reader : wire.readers) readers.insert(placed.cut.stage_of_block[reader]);
    readers.erase(from);
    for (const int to : readers) {
      const int home = placed.rank_of(from), there = placed.rank_of(to);
      edges.add(from, to,
                home == there ? 0.0 : placed.link(home, there).seconds(wire.forward_bytes()));
    }
  }
  edges.move_to(step);
  step.schedule = schedule_of(step.graph, placed.layout);
  for (int s = 0; s < step.graph.num_stages; ++s) step.stage_of.push_back(s);
  step.slice_of.assign(step.stage_of.size(), -1);
  return step;
}

SimulatedStep sliced_step(const PlacedLayout& placed, const SimulatedStep& whole,
                          const TokenSlices& slices) {
  return SlicedSteps(placed, slices).run(whole);
}

double tensor_s(const PlacedLayout& placed, const TokenSlices& slices) {
  std::vector<double> seconds(placed.layout.pp, 0.0);
  for (size_t b = 0; b < placed.trace.blocks.size(); ++b) {
    double& of_rank = seconds[placed.rank_of_block(b)];
    if (slices.rows.size() == 1 || placed.trace.blocks[b].rows == 0) {
      of_rank += placed.m * block_times(placed.traced, b, 1.0, 1.0).sums_s;
      continue;
    }
    for (size_t i = 0; i < slices.rows.size(); ++i)
      of_rank += placed.m * block_times(placed.traced, b, slices.rows[i], slices.pairs[i]).sums_s;
  }
  return *std::max_element(seconds.begin(), seconds.end());
}

}  // namespace contexture::parallel
