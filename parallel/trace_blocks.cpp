#include "parallel/trace_blocks.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <typeinfo>

#include "core/error.h"
#include "core/timing.h"
#include "parallel/checkpoint.h"
#include "parallel/executor.h"

namespace contexture::parallel {
namespace {

int64_t bytes_of(const WireShape& shape) {
  int64_t n = static_cast<int64_t>(c10::elementSize(shape.dtype));
  for (const int64_t s : shape.sizes) n *= s;
  return n;
}

// Every matrix saves its input and its output feeds something that saves it: close to what fused
// layers keep.
void estimate_kept(const Block& block, const WireShapes& wires, int64_t element_bytes,
                   TraceBlock& row) {
  const std::vector<int64_t>& sizes = wires.at(block.outputs().front()).sizes;
  int64_t numbers = 0;
  for (const Parameter* p : block.parameters()) {
    if (p->shape.size() == 2) numbers += p->shape[0] + p->shape[1];
  }
  row.activation_bytes = (sizes.empty() ? 1 : sizes[0]) * numbers * element_bytes;
}

// Counts bytes that the CPU allocator hands out and gets back on this thread: now and at most.
class Meter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    held_ += size;
    peak_ = std::max(peak_, held_);
  }
  void reportOutOfMemory(int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return true; }
  int64_t held() const { return held_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t held_ = 0, peak_ = 0;
};

struct Measured {
  double forward_s = 0.0, input_grad_s = 0.0, weight_grad_s = 0.0;
  int64_t activation_bytes = 0, peak_bytes = 0;
};

// One block on made-up inputs. The store's other parameters stay without memory.
Measured measure(const BlockList& blocks, ParameterStore& store, at::ScalarType dtype, int index,
                 const Pass& pass, const WireShapes& shapes) {
  const Block& block = *blocks[index];
  store.materialise(dtype, at::kCPU, 1, [&](const Parameter& p) {
    return std::find(block.parameters().begin(), block.parameters().end(), &p) !=
           block.parameters().end();
  });
  WireValues given, gradients;
  for (const std::string& name : block.inputs())
    given[name] = at::randn(shapes.at(name).sizes, at::kDouble).mul_(0.1).to(shapes.at(name).dtype);
  const Executor executor(blocks, {}, {index});
  for (const std::string& name : block.outputs()) {
    if (executor.wants_grad(name) && at::isFloatingType(shapes.at(name).dtype))
      gradients[name] = at::ones(shapes.at(name).sizes, shapes.at(name).dtype);
  }
  // The fastest of a few, part by part: what else runs on the machine can only add. The first warms
  // up.
  std::optional<Measured> best;
  int64_t peak_bytes = 0;  // of all tries: the first one's weight gradients become the sum
  for (int t = 0; t < 6; ++t) {
    Measured m;
    const auto meter = std::make_shared<Meter>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    double start = now_s();
    ForwardPass forward = executor.forward(pass, /*grad=*/true, block.outputs(), given);
    m.forward_s = now_s() - start;
    m.activation_bytes = meter->held();
    Deferred deferred;
    start = now_s();
    executor.backward(std::move(forward), gradients, &deferred);
    m.input_grad_s = now_s() - start;
    start = now_s();
    executor.finish(deferred);
    m.weight_grad_s = now_s() - start;
    peak_bytes = std::max(peak_bytes, meter->peak());
    if (t == 0) continue;
    if (!best) best = m;
    for (double Measured::*field :
         {&Measured::forward_s, &Measured::input_grad_s, &Measured::weight_grad_s})
      (*best).*field = std::min((*best).*field, m.*field);
  }
  best->peak_bytes = peak_bytes;
  return *best;
}

}  // namespace

Trace trace_blocks(const BlockList& blocks, ParameterStore& store, const Pass& pass,
                   const TraceOptions& options) {
  store.materialise(options.dtype, at::kCPU, 1, [](const Parameter&) { return false; });
  Trace trace;
  trace.model = options.model;
  trace.inputs = options.inputs;
  trace.timed = options.timed;
  std::map<const Parameter*, int> place;
  for (const auto& p : store.all()) {
    place[p.get()] = static_cast<int>(trace.parameters.size());
    trace.parameters.push_back({p->name,
                                p->numel() * static_cast<int64_t>(c10::elementSize(options.dtype)),
                                p->split.dim >= 0});
  }
  WireShapes wire_shapes;
  std::map<std::string, Measured> known;  // by kind of block and the shapes around it
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Block& block = *blocks[b];
    const std::vector<WireShape> outputs = block.shapes(pass);
    for (size_t o = 0; o < outputs.size(); ++o) wire_shapes[block.outputs()[o]] = outputs[o];
    TraceBlock& row = trace.blocks.emplace_back();
    row.name = block.name();
    row.recompute = options.recompute.count(block.name()) != 0;
    for (const Parameter* p : block.parameters()) row.parameters.push_back(place.at(p));
    std::sort(row.parameters.begin(), row.parameters.end());
    row.forward_flops = row.input_grad_flops = row.weight_grad_flops = block.forward_flops(pass);
    if (block.by_rows() && !outputs.empty() && !outputs[0].sizes.empty()) {
      row.rows = std::llround(static_cast<double>(outputs[0].sizes[0]) / options.inputs);
      // What is not rows times matrices is attention. Where the block reads documents, their part
      // is in it, though later rows do not have more of that: later slices then look a little
      // longer than they are.
      if (row.forward_flops > 0)
        row.pair_work =
            std::clamp(1.0 - block.Block::forward_flops(pass) / row.forward_flops, 0.0, 1.0);
    }
    int64_t output_bytes = 0;
    for (const WireShape& out : outputs) output_bytes += bytes_of(out);
    if (options.estimate) {
      options.estimate(block, wire_shapes, row);
    } else {
      estimate_kept(block, wire_shapes, static_cast<int64_t>(c10::elementSize(options.dtype)), row);
    }
    row.activation_bytes =
        row.recompute ? output_bytes : std::max(output_bytes, row.activation_bytes);
    if (!options.timed) continue;
    std::string kind = typeid(block).name();
    for (const Parameter* p : block.parameters()) kind += concat(" ", at::IntArrayRef(p->shape));
    for (const std::string& name : block.inputs())
      kind += concat(" <", at::IntArrayRef(wire_shapes.at(name).sizes));
    for (const WireShape& out : outputs) kind += concat(" >", at::IntArrayRef(out.sizes));
    if (known.count(kind) == 0)
      known[kind] = measure(blocks, store, options.dtype, static_cast<int>(b), pass, wire_shapes);
    const Measured& m = known.at(kind);
    row.forward_s = m.forward_s;
    row.input_grad_s = m.input_grad_s;
    row.weight_grad_s = m.weight_grad_s;
    row.peak_bytes = m.peak_bytes;
    row.activation_bytes = row.recompute ? output_bytes : m.activation_bytes;
  }
  const Executor executor(blocks);
  for (const Wire& wire : executor.wires()) {
    TraceWire& row = trace.wires.emplace_back();
    row.name = wire.name;
    row.producer = wire.producer;
    row.readers = wire.readers;
    row.gradient = executor.wants_grad(wire.name);
    const WireShape& shape = wire_shapes.at(wire.name);
    row.shape = shape.sizes;
    row.dtype = dtype_name(stored_dtype(shape.dtype));
    row.bytes = bytes_of(shape);
    if (!options.distinct_ratio) continue;
    const double ratio = options.distinct_ratio(wire.name);
    if (ratio <= 0) continue;
    row.sharing = Sharing::kDocument;  // what is sent holds each distinct document once
    row.distinct_ratio = ratio;
    row.bytes = std::llround(static_cast<double>(row.bytes) / ratio);
  }
  return trace;
}

}  // namespace contexture::parallel
