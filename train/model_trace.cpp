#include "train/model_trace.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cmath>
#include <typeinfo>

#include "core/error.h"
#include "core/timing.h"

namespace contexture::train {
namespace {

using parallel::Trace;

int64_t bytes_of(const parallel::WireShape& shape) {
  int64_t n = static_cast<int64_t>(c10::elementSize(shape.dtype));
  for (const int64_t s : shape.sizes) n *= s;
  return n;
}

// Every matrix saves its input and its output feeds something that saves it: close to what fused layers keep.
int64_t estimated_activations(const parallel::Block& block, const parallel::WireShape& out) {
  const int64_t rows = out.sizes.empty() ? 1 : out.sizes[0];
  int64_t numbers = 0;
  for (const parallel::Parameter* p : block.parameters()) {
    if (p->shape.size() == 2 && p->name.find("embed.token") == std::string::npos) numbers += p->shape[0] + p->shape[1];
  }
  return std::max(bytes_of(out), rows * numbers * static_cast<int64_t>(c10::elementSize(out.dtype)));
}

// Counts bytes that the CPU allocator hands out and gets back on this thread.
class Meter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { held_ += size; }
  void reportOutOfMemory(int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return true; }
  int64_t held() const { return held_; }

 private:
  int64_t held_ = 0;
};

struct Measured {
  double forward_s = 0.0, input_grad_s = 0.0, weight_grad_s = 0.0;
  int64_t activation_bytes = 0;
};

// One block on made-up inputs. The store's other parameters stay without memory.
Measured measure(model::Model& model, int index, const parallel::Pass& pass, const std::map<std::string, parallel::WireShape>& shapes) {
  const parallel::Block& block = *model.blocks()[index];
  const at::ScalarType dtype = model.dtype();
  model.materialise(dtype, at::kCPU, 1, [&](const parallel::Parameter& p) {
    return std::find(block.parameters().begin(), block.parameters().end(), &p) != block.parameters().end();
  });
  parallel::WireValues given, gradients;
  for (const std::string& name : block.inputs()) given[name] = at::randn(shapes.at(name).sizes, at::kDouble).mul_(0.1).to(shapes.at(name).dtype);
  const parallel::Executor executor(model.blocks(), {}, {index});
  for (const std::string& name : block.outputs()) {
    if (executor.wants_grad(name) && at::isFloatingType(shapes.at(name).dtype)) gradients[name] = at::ones(shapes.at(name).sizes, shapes.at(name).dtype);
  }
  std::vector<Measured> tries;
  for (int t = 0; t < 4; ++t) {  // the first warms up
    Measured m;
    const auto meter = std::make_shared<Meter>();
    double start = now_s();
    parallel::ForwardPass forward;
    {
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
      forward = executor.forward(pass, /*grad=*/true, block.outputs(), given);
    }
    m.forward_s = now_s() - start;
    m.activation_bytes = meter->held();
    parallel::Deferred deferred;
    start = now_s();
    executor.backward(std::move(forward), gradients, &deferred);
    m.input_grad_s = now_s() - start;
    start = now_s();
    executor.finish(deferred);
    m.weight_grad_s = now_s() - start;
    if (t > 0) tries.push_back(m);
  }
  const auto median_of = [&](double Measured::*field) {
    std::vector<double> values;
    for (const Measured& t : tries) values.push_back(t.*field);
    return median(std::move(values));
  };
  return {median_of(&Measured::forward_s), median_of(&Measured::input_grad_s), median_of(&Measured::weight_grad_s), tries[0].activation_bytes};
}

}  // namespace

model::Microbatch typical_microbatch(const RunConfig& config) {
  const int64_t replicas = std::max<int64_t>(1, config.parallel.dp);
  const int64_t inputs = std::max<int64_t>(1, config.train.batch_size / (replicas * config.parallel.microbatches));
  const auto text = [](int64_t n) { return std::vector<int32_t>(static_cast<size_t>(n), 7); };
  const auto picture = std::make_shared<const std::vector<float>>(static_cast<size_t>(config.model.num_patches() * config.model.patch_width()), 0.0f);
  model::Microbatch out;
  const int64_t k = config.retriever.documents, groups = (inputs + config.data.group_size - 1) / config.data.group_size;
  for (int64_t d = 0; d < groups * k; ++d) out.documents.push_back({text(config.data.max_document_tokens), picture, static_cast<uint64_t>(d)});
  for (int64_t i = 0; i < inputs; ++i) {
    model::Input& input = out.inputs.emplace_back();
    input.query = {config.data.query == "picture" ? text(0) : text(config.data.max_question_tokens), config.data.query == "text" ? nullptr : picture, 1};
    input.prompt = {text(config.data.max_question_tokens), picture, 1};
    input.target = text(config.data.max_answer_tokens);
    for (int64_t s = 0; s < k; ++s) input.documents.push_back(static_cast<int32_t>(i / config.data.group_size * k + s));
  }
  out.global_target_tokens = out.target_tokens();
  out.readings = config.retriever.objective_options().readings();
  return out;
}

Trace trace_model(const RunConfig& config, const model::Model& shapes, bool timed) {
  const at::ScalarType dtype = precision_of(config.train.precision);
  const model::Microbatch microbatch = typical_microbatch(config);
  model::Model model(config.model, nullptr, false, shapes.objectives());  // of its own: blocks are given memory one by one
  model.materialise(dtype, at::kCPU, 1, [](const parallel::Parameter&) { return false; });
  const parallel::Feeds feeds = model::make_feeds(config.model, microbatch, dtype, at::kCPU);
  const parallel::Pass pass(feeds, /*training=*/true);
  const std::set<std::string> recomputed = parallel::chosen_blocks(config.parallel.recompute, shapes.blocks());
  Trace trace;
  trace.model = concat("width ", config.model.width, ", ", config.model.encoder_layers, " + ", config.model.decoder_layers, " layers, ", config.model.fusion);
  trace.inputs = static_cast<double>(microbatch.inputs.size());
  trace.timed = timed;
  std::map<const parallel::Parameter*, int> place;
  for (const auto& p : model.parameters().all()) {
    place[p.get()] = static_cast<int>(trace.parameters.size());
    trace.parameters.push_back({p->name, p->numel() * static_cast<int64_t>(c10::elementSize(dtype))});
  }
  std::map<std::string, parallel::WireShape> wire_shapes;
  std::map<std::string, Measured> known;  // by kind of block and the shapes around it
  for (size_t b = 0; b < model.blocks().size(); ++b) {
    const parallel::Block& block = *model.blocks()[b];
    const std::vector<parallel::WireShape> outputs = block.shapes(pass);
    for (size_t o = 0; o < outputs.size(); ++o) wire_shapes[block.outputs()[o]] = outputs[o];
    parallel::TraceBlock& row = trace.blocks.emplace_back();
    row.name = block.name();
    row.recompute = recomputed.count(block.name()) != 0;
    for (const parallel::Parameter* p : block.parameters()) row.parameters.push_back(place.at(p));
    std::sort(row.parameters.begin(), row.parameters.end());
    row.forward_flops = row.input_grad_flops = row.weight_grad_flops = block.forward_flops(pass);
    row.activation_bytes = estimated_activations(block, outputs.front());
    if (!timed) continue;
    std::string kind = typeid(block).name();
    for (const parallel::Parameter* p : block.parameters()) kind += concat(" ", at::IntArrayRef(p->shape));
    for (const std::string& name : block.inputs()) kind += concat(" <", at::IntArrayRef(wire_shapes.at(name).sizes));
    for (const parallel::WireShape& out : outputs) kind += concat(" >", at::IntArrayRef(out.sizes));
    if (known.count(kind) == 0) known[kind] = measure(model, static_cast<int>(b), pass, wire_shapes);
    const Measured& m = known.at(kind);
    row.forward_s = m.forward_s;
    row.input_grad_s = m.input_grad_s;
    row.weight_grad_s = m.weight_grad_s;
    row.activation_bytes = m.activation_bytes;
  }
  int64_t slots = 0;
  for (const model::Input& input : microbatch.inputs) slots += static_cast<int64_t>(input.documents.size());
  const double ratio = slots > 0 ? static_cast<double>(microbatch.documents.size()) / static_cast<double>(slots) : 1.0;
  const parallel::Executor executor(model.blocks());
  for (const parallel::Wire& wire : executor.wires()) {
    parallel::TraceWire& row = trace.wires.emplace_back();
    row.name = wire.name;
    row.producer = wire.producer;
    row.readers = wire.readers;
    row.gradient = executor.wants_grad(wire.name);
    row.bytes = bytes_of(wire_shapes.at(wire.name));
    if (wire.name.rfind("doc.", 0) != 0) continue;
    row.sharing = parallel::Sharing::kDocument;  // what is sent holds each distinct document once
    row.distinct_ratio = ratio;
    row.bytes = std::llround(static_cast<double>(row.bytes) / ratio);
  }
  return trace;
}

parallel::Plan partition_for(const RunConfig& config, const Trace& trace, const std::string& partitioner, int num_devices) {
  parallel::PartitionOptions options;
  options.partitioner = parallel::parse_partitioner(partitioner);
  options.num_devices = num_devices;
  options.microbatches = static_cast<int>(config.parallel.microbatches);
  options.shared = config.parallel.shared == "colocate" ? parallel::SharedRule::kTogether : parallel::SharedRule::kReplicated;
  return parallel::partition(trace, options);
}

parallel::Placement placement_of(const RunConfig& config, const model::Model& shapes, const parallel::Groups& groups) {
  const parallel::ParallelConfig& p = config.parallel;
  if (groups.pp == nullptr || p.partitioner == "uniform" || p.partitioner == "parameters") {
    return parallel::placement_for(p, shapes.blocks(), groups);
  }
  Trace trace = trace_model(config, shapes);
  parallel::set_times(trace, /*flops_per_s=*/1e12);  // only ratios matter: from FLOPs, every rank finds the same cut
  const parallel::Plan plan = partition_for(config, trace, p.partitioner, groups.pp_size());
  return parallel::place(shapes.blocks(), plan.stage_of_block, plan.device_of_stage, groups.pp_size());
}

}  // namespace contexture::train
