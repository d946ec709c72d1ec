#include "parallel/internal/layout_trace.h"

#include <algorithm>
#include <cmath>

namespace contexture::parallel {
namespace {

// All-reduces of equal size, one after another.
double sums_s(const RankGroup& ranks, int64_t count, double bytes) {
  if (ranks.size() == 1 || count == 0) return 0.0;
  const auto times = static_cast<double>(count);
  return times * all_reduce_s(ranks, bytes / times);
}

// Time in which nothing can hide an all-reduce of the backward: it travels while weight gradients
// are computed.
double exposed_s(double sums, double weight_grad_s, bool split_backward) {
  return split_backward ? sums : std::max(0.0, sums - weight_grad_s);
}

}  // namespace

bool is_chosen(const std::vector<std::string>& prefixes, const std::string& block) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& prefix) {
    return prefix == "all" || block.rfind(prefix, 0) == 0;
  });
}

LayoutTrace layout_trace(const Trace& whole, const TraceLayout& layout) {
  LayoutTrace out;
  out.trace = whole;
  out.layout = layout;
  Trace& trace = out.trace;
  for (const TraceBlock& block : trace.blocks) out.forward_flops.push_back(block.forward_flops);
  if (!trace.timed) set_times(trace, layout.flops_per_s);
  const double n = layout.tensor.size();
  for (TraceParameter& p : trace.parameters) {
    if (p.split) p.bytes = static_cast<int64_t>(std::ceil(static_cast<double>(p.bytes) / n));
  }
  std::vector<double> output_bytes(trace.blocks.size(), 0.0);
  const double rows =
      layout.sequence ? 1.0 / n : 1.0;  // of what a block writes, that it keeps itself
  for (const TraceWire& wire : trace.wires)
    output_bytes[wire.producer] += rows * wire.forward_bytes();
  for (size_t b = 0; b < trace.blocks.size(); ++b) {
    TraceBlock& block = trace.blocks[b];
    const double share = block.split_work / n + 1.0 - block.split_work;
    for (double* amount :
         {&block.forward_s, &block.input_grad_s, &block.weight_grad_s, &block.forward_flops,
          &block.input_grad_flops, &block.weight_grad_flops}) {
      *amount *= share;
    }
    // Row by row shared out, of what is not split, are the results of branches, not what enters
    // them: half.
    const double whole = 1.0 - block.split_activations,
                 kept = block.split_activations / n +
                        (layout.sequence ? whole * (1.0 + rows) / 2 : whole);
    const double activations =
        std::max(output_bytes[b], kept * static_cast<double>(block.activation_bytes));
    out.full_activations.push_back(activations);
    block.recompute = is_chosen(layout.recompute, block.name);
    block.activation_bytes = std::llround(block.recompute ? output_bytes[b] : activations);
    const double forward = sums_s(layout.tensor, block.forward_sums,
                                  static_cast<double>(block.forward_sum_bytes)),
                 backward = exposed_s(sums_s(layout.tensor, block.backward_sums,
                                             static_cast<double>(block.backward_sum_bytes)),
                                      block.weight_grad_s, layout.split_backward);
    block.forward_s += forward;
    block.input_grad_s += backward;
    out.forward_sums_s.push_back(forward);
    out.backward_sums_s.push_back(backward);
    const double forwards = block.recompute ? 2.0 : 1.0;
    out.tensor_bytes.push_back(2.0 * (n - 1.0) / n *
                               (forwards * static_cast<double>(block.forward_sum_bytes) +
                                static_cast<double>(block.backward_sum_bytes)));
  }
  out.path_s = critical_path_s(trace, layout.split_backward);
  return out;
}

Trace with_documents(const Trace& trace, double factor) {
  Trace out = trace;
  std::vector<std::string> wires;
  for (TraceWire& wire : out.wires) {
    if (wire.sharing != Sharing::kDocument) continue;
    wires.push_back(wire.name);
    wire.distinct_ratio = std::min(1.0, wire.distinct_ratio * factor);
  }
  const std::vector<bool> encodes = blocks_behind(trace, wires);
  for (size_t b = 0; b < out.blocks.size(); ++b) {
    if (!encodes[b]) continue;
    TraceBlock& block = out.blocks[b];
    for (double* amount :
         {&block.forward_s, &block.input_grad_s, &block.weight_grad_s, &block.forward_flops,
          &block.input_grad_flops, &block.weight_grad_flops}) {
      *amount *= factor;
    }
    for (int64_t* bytes :
         {&block.activation_bytes, &block.forward_sum_bytes, &block.backward_sum_bytes})
      *bytes = std::llround(factor * static_cast<double>(*bytes));
  }
  return out;
}

BlockTimes block_times(const LayoutTrace& traced, size_t b, double rows, double pairs) {
  const TraceBlock& block = traced.trace.blocks[b];
  const double share = (1.0 - block.pair_work) * rows + block.pair_work * pairs;
  const auto part = [&](int64_t bytes) { return rows * static_cast<double>(bytes); };
  const RankGroup& tensor = traced.layout.tensor;
  BlockTimes out;
  out.weight_grad_s = share * block.weight_grad_s;
  const double forward = sums_s(tensor, block.forward_sums, part(block.forward_sum_bytes)),
               backward =
                   exposed_s(sums_s(tensor, block.backward_sums, part(block.backward_sum_bytes)),
                             out.weight_grad_s, traced.layout.split_backward);
  out.forward_s = share * (block.forward_s - traced.forward_sums_s[b]) + forward;
  out.input_grad_s = share * (block.input_grad_s - traced.backward_sums_s[b]) + backward +
                     (block.recompute ? out.forward_s : 0.0);
  out.sums_s = (block.recompute ? 2.0 : 1.0) * forward + backward;
  return out;
}

std::vector<bool> blocks_behind(const Trace& trace, const std::vector<std::string>& wires) {
  std::vector<bool> behind(trace.blocks.size(), false);
  for (const TraceWire& wire : trace.wires) {
    if (std::find(wires.begin(), wires.end(), wire.name) != wires.end())
      behind[wire.producer] = true;
  }
  // Producers come before readers, so one sweep from the end reaches all.
  for (int b = static_cast<int>(trace.blocks.size()) - 1; b >= 0; --b) {
    for (const TraceWire& wire : trace.wires) {
      if (behind[b] && std::find(wire.readers.begin(), wire.readers.end(), b) != wire.readers.end())
        behind[wire.producer] = true;
    }
  }
  return behind;
}

double critical_path_s(const Trace& trace, bool split_backward, const std::vector<double>& share) {
  const auto weight = [&](size_t b) {
    const TraceBlock& block = trace.blocks[b];
    return (share.empty() ? 1.0 : share[b]) * (split_backward ? block.forward_s : step_s(block));
  };
  std::vector<double> until(trace.blocks.size(), 0.0);  // longest way to the start of a block
  double longest = 0.0;
  for (size_t b = 0; b < trace.blocks.size(); ++b) {
    for (const TraceWire& wire : trace.wires) {
      const bool reads = std::find(wire.readers.begin(), wire.readers.end(), static_cast<int>(b)) !=
                         wire.readers.end();
      if (reads && wire.gradient)
        until[b] = std::max(until[b], until[wire.producer] + weight(wire.producer));
    }
    longest = std::max(longest, until[b] + weight(b));
  }
  return longest;
}

}  // namespace contexture::parallel
