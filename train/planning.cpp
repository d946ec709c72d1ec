// n inputs of a microbatch, in g = ceil(n / group size) groups.
#include "train/planning.h"

#include <cctype>
#include <cmath>

#include "core/error.h"
#include "train/model_trace.h"

namespace contexture::train {
namespace {

using parallel::Trace;
using parallel::TraceBlock;

RunConfig with_inputs(RunConfig config, int64_t n) {
  config.train.batch_size = n;
  config.parallel.dp = config.parallel.microbatches = 1;
  config.parallel.recompute.clear();
  return config;
}

// amount(n, g) = x n + y g, from amount(1, 1) and amount(group, 1).
class Interpolation {
 public:
  Interpolation(int64_t n, int64_t group)
      : n_(static_cast<double>(n)),
        g_(static_cast<double>((n + group - 1) / group)),
        group_(static_cast<double>(group)) {}
  double operator()(double one, double whole_group) const {
    if (group_ == 1.0) return one * n_;
    const double x = (whole_group - one) / (group_ - 1.0);
    return x * n_ + (one - x) * g_;
  }

 private:
  double n_, g_, group_;
};

Trace scaled(const Trace& one, const Trace& whole_group, int64_t n, int64_t group) {
  const Interpolation at(n, group);
  Trace out = one;
  out.inputs = static_cast<double>(n);
  for (size_t b = 0; b < out.blocks.size(); ++b) {
    for (double TraceBlock::*amount :
         {&TraceBlock::forward_s, &TraceBlock::input_grad_s, &TraceBlock::weight_grad_s,
          &TraceBlock::forward_flops, &TraceBlock::input_grad_flops,
          &TraceBlock::weight_grad_flops}) {
      out.blocks[b].*amount = std::max(
          0.0,
          at(one.blocks[b].*amount, whole_group.blocks[b].*amount));  // measured ones have noise
    }
    for (int64_t TraceBlock::*amount :
         {&TraceBlock::activation_bytes, &TraceBlock::peak_bytes, &TraceBlock::forward_sum_bytes,
          &TraceBlock::backward_sum_bytes}) {
      out.blocks[b].*amount = std::llround(at(static_cast<double>(one.blocks[b].*amount),
                                              static_cast<double>(whole_group.blocks[b].*amount)));
    }
  }
  for (size_t w = 0; w < out.wires.size(); ++w) {
    parallel::TraceWire& wire = out.wires[w];
    const double distinct = at(one.wires[w].forward_bytes(), whole_group.wires[w].forward_bytes());
    if (wire.sharing == parallel::Sharing::kDocument)
      wire.distinct_ratio = static_cast<double>((n + group - 1) / group) / static_cast<double>(n);
    wire.bytes = std::llround(distinct / wire.distinct_ratio);
    wire.shape.clear();  // which dimension has grown is not known here
    wire.dtype.clear();
  }
  return out;
}

std::vector<parallel::ForwardWork> forward_work_of(const RunConfig& config, int64_t documents,
                                                   double embedding_bytes) {
  std::vector<parallel::ForwardWork> out;
  const RunConfig& c = config;
  if (c.retriever.documents > 0) out.push_back({.name = "lookup", .wires = {"query.embedding"}});
  if (c.retriever.contrastive_weight() > 0 && c.retriever.documents > 0) {
    out.push_back({.name = "contrastive",
                   .wires = {"query.embedding", "doc.embedding"},
                   .only_when_cut = true});
  }
  if (c.retriever.refresh_every > 0 && documents > 0) {
    out.push_back({.name = "refresh",
                   .wires = {"doc.embedding"},
                   .bytes_per_step = static_cast<double>(documents) * embedding_bytes /
                                     static_cast<double>(c.retriever.refresh_every)});
  }
  return out;
}

}  // namespace

double index_bytes_per_vector(const std::string& factory, int64_t width) {
  const auto E = static_cast<double>(width);
  constexpr double kId = 8.0;
  if (factory == "Flat") return 4 * E + kId;
  double code = 4 * E;
  if (factory.find("SQ8") != std::string::npos) code = E;
  if (factory.find("SQ4") != std::string::npos) code = E / 2;
  if (factory.find("SQfp16") != std::string::npos) code = 2 * E;
  if (const size_t at = factory.rfind(",PQ");
      at != std::string::npos && at + 3 < factory.size() && std::isdigit(factory[at + 3]) != 0) {
    code = std::stod(factory.substr(at + 3));  // a byte for each of so many parts
  }
  return code + kId + 4 * E;  // what a compressing index keeps beside its codes, so that it can be
                              // rebuilt and saved
}

parallel::PlannedModel planned_model(const RunConfig& config, const PlanningFacts& facts) {
  const auto shapes = std::make_shared<const model::Model>(config.model);
  const int64_t group = std::max<int64_t>(1, config.data.group_size);
  const RunConfig alone = with_inputs(config, 1), grouped = with_inputs(config, group);
  const auto one = std::make_shared<const Trace>(trace_model(alone, *shapes, facts.timed));
  const auto whole_group =
      group == 1 ? one : std::make_shared<const Trace>(trace_model(grouped, *shapes, facts.timed));
  const at::ScalarType dtype = precision_of(config.train.precision);
  parallel::PlannedModel out;
  out.trace = [one, whole_group, group](int64_t n) { return scaled(*one, *whole_group, n, group); };
  out.refuses = [config](int dp, int tp) -> std::string {
    try {
      config.model.validate_split(tp);
    } catch (const UsageError& error) {
      return error.what();
    }
    const int64_t whole = config.data.group_size * dp;
    if (!config.retriever.group_lookup || dp == 1 || config.train.batch_size % whole == 0)
      return "";
    return concat("retriever.group_lookup needs whole groups of data.group_size=",
                  config.data.group_size, " in each of parallel.dp=", dp,
                  " replicas, but train.batch_size=", config.train.batch_size, ".");
  };
  out.dtype = dtype == at::kBFloat16 ? "bf16" : dtype == at::kFloat ? "fp32" : "fp64";
  out.weight_bytes = static_cast<double>(c10::elementSize(dtype));
  out.wide_bytes = static_cast<double>(c10::elementSize(parallel::wide_dtype(dtype)));
  out.batch_size = config.train.batch_size;
  out.steps = config.train.steps;
  out.whole_inputs = group;
  for (const TraceBlock& block : one->blocks)
    out.logical_flops_per_input +=
        block.forward_flops + block.input_grad_flops + block.weight_grad_flops;
  const parallel::Feeds feeds =
      model::make_feeds(config.model, typical_microbatch(grouped), dtype, at::kCPU);
  for (const auto& [name, feed] : feeds)
    out.input_bytes += static_cast<double>(feed.nbytes()) / static_cast<double>(group);
  out.index_bytes =
      static_cast<double>(facts.documents) *
      index_bytes_per_vector(config.retriever.factory, config.model.retrieval_width());
  out.index_sharded = config.retriever.sharded;
  out.search_s = facts.search_s;
  out.forward_work =
      forward_work_of(config, facts.documents,
                      static_cast<double>(config.model.retrieval_width()) * out.wide_bytes);
  out.order = config.parallel.order;
  out.sequence = config.parallel.sequence;
  out.offload = config.parallel.offload != "device";
  out.bucket_bytes = static_cast<double>(config.parallel.bucket_mb) * 1024.0 * 1024.0;
  out.recompute = {{}};
  if (!config.parallel.recompute.empty()) {
    parallel::chosen_blocks(config.parallel.recompute, shapes->blocks());  // refuses unknown names
    out.recompute.push_back(config.parallel.recompute);
  }
  if (config.parallel.recompute != std::vector<std::string>{"all"})
    out.recompute.push_back({"all"});
  return out;
}

std::vector<parallel::Variant> halved_variants(const RunConfig& config, const PlanningFacts& facts,
                                               const parallel::Cluster& cluster,
                                               const parallel::SearchOptions& options,
                                               const parallel::Layout& layout) {
  std::vector<parallel::Variant> out;
  const auto add = [&](const std::string& change, const RunConfig& changed,
                       const parallel::Layout& with) {
    parallel::Planner planner(planned_model(changed, facts), cluster, options);
    const parallel::LayoutPlan plan = planner.price(with);
    double activations = 0.0;
    for (const parallel::MemoryParts& parts : plan.memory)
      activations = std::max(activations, parts.activations);
    out.push_back({change, plan.memory_bytes, activations});
  };
  RunConfig batch = config;
  parallel::Layout with = layout;
  batch.train.batch_size /= 2;
  if (batch.train.batch_size < layout.dp * layout.microbatches)
    with.microbatches = std::max<int64_t>(1, with.microbatches / 2);
  if (batch.train.batch_size >= with.dp * with.microbatches)
    add(concat("halving train.batch_size to ", batch.train.batch_size), batch, with);
  RunConfig image = config;
  image.model.image_size =
      config.model.image_size / 2 / config.model.patch_size * config.model.patch_size;
  if (config.model.pooling == "patches")
    image.model.embedding_width = image.model.num_patches() * config.model.patch_projection;
  if (image.model.image_size > 0)
    add(concat("halving model.image_size to ", image.model.image_size), image, layout);
  RunConfig text = config;
  for (int64_t* tokens : {&text.data.max_document_tokens, &text.data.max_question_tokens,
                          &text.data.max_answer_tokens})
    *tokens = std::max<int64_t>(2, *tokens / 2);
  add("halving the texts (data.max_document_tokens, max_question_tokens, max_answer_tokens)", text,
      layout);
  return out;
}

}  // namespace contexture::train
