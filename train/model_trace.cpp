#include "train/model_trace.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "parallel/cluster.h"
#include "parallel/mesh.h"
#include "parallel/trace_blocks.h"
#include "train/planning.h"
#include "train/session.h"
#include "train/trace_cache.h"

namespace contexture::train {

using parallel::Trace;

namespace {

std::optional<parallel::Cluster> cluster_of(const RunConfig& config) {
  if (config.parallel.cluster.empty()) return std::nullopt;
  return parallel::read_cluster(config.parallel.cluster);
}

// As cluster files name it.
std::string precision_name(const RunConfig& config) {
  const at::ScalarType dtype = precision_of(config.train.precision);
  return dtype == at::kBFloat16 ? "bf16" : "fp32";
}

bool reads_documents(const parallel::Parameter& matrix) {
  return matrix.name.ends_with("cross.kv");
}

// Rows that a matrix of the block multiplies: those of its outputs, but keys and values of
// documents are made of the documents' rows, and patches are some of a tower's rows.
int64_t rows_through(const parallel::Block& block, const parallel::Parameter& matrix,
                     const parallel::WireShapes& wires, const parallel::Feeds& feeds) {
  if (reads_documents(matrix)) return wires.at(block.inputs()[1]).sizes[0];
  if (matrix.name == "embed.patch") {
    const std::string& out = block.outputs().front();
    return feeds.at(out.substr(0, out.find('.')) + ".patch_row").numel();
  }
  int64_t rows = 1;
  for (const std::string& name : block.outputs()) {
    const std::vector<int64_t>& sizes = wires.at(name).sizes;
    if (!sizes.empty()) rows = std::max(rows, sizes[0]);
  }
  return rows;
}

// Estimates of what a block's matrices keep and how tensor-parallel ranks share them. Every matrix
// saves its input and its output feeds something that saves it: close to what fused layers keep. An
// input that is a feed or another block's wire is there anyway; embeddings keep their sum besides.
// One that is split by rows has its input's gradient summed over the ranks, one split by columns
// its output, an embedding table what was looked up (once more where tokens mix in their
// predecessors).
void note_matrices(const parallel::Block& block, const parallel::WireShapes& wires,
                   const parallel::Feeds& feeds, int64_t element_bytes, parallel::TraceBlock& row) {
  const bool embeds = block.inputs().empty();
  double work = 0.0, split_work = 0.0, numbers = 0.0, split_numbers = 0.0;
  for (const parallel::Parameter* p : block.parameters()) {
    if (p->shape.size() != 2) continue;
    const int64_t rows = rows_through(block, *p, wires, feeds);
    if (embeds && p->split.dim == 0) {
      const bool shifted = std::any_of(block.parameters().begin(), block.parameters().end(),
                                       [](const parallel::Parameter* other) {
                                         return other->name.find(".shift") != std::string::npos;
                                       });
      row.forward_sums += shifted ? 2 : 1;
      row.forward_sum_bytes += (shifted ? 2 : 1) * rows * p->shape[1] * element_bytes;
      continue;
    }
    const auto multiplied = static_cast<double>(rows) * static_cast<double>(p->numel());
    work += multiplied;
    numbers += static_cast<double>(
        rows * (p->shape[0] + (embeds || reads_documents(*p) ? 0 : p->shape[1])));
    if (p->split.dim < 0) continue;
    split_work += multiplied;
    split_numbers += static_cast<double>(rows * p->shape[p->split.dim]);
    (p->split.dim == 1 ? row.forward_sums : row.backward_sums) += 1;
    (p->split.dim == 1 ? row.forward_sum_bytes : row.backward_sum_bytes) +=
        rows * p->shape[1 - p->split.dim] * element_bytes;
  }
  if (embeds) {
    const std::vector<int64_t>& sum = wires.at(block.outputs().front()).sizes;
    numbers += static_cast<double>(sum[0] * sum[1]);
  }
  row.split_work = work > 0.0 ? split_work / work : 0.0;
  row.split_activations = numbers > 0.0 ? split_numbers / numbers : 0.0;
  row.activation_bytes = static_cast<int64_t>(numbers) * element_bytes;
}

// What one of so many tensor-parallel ranks keeps.
Trace of_a_tensor_rank(Trace trace, int64_t ranks) {
  for (parallel::TraceParameter& p : trace.parameters) {
    if (p.split) p.bytes = (p.bytes + ranks - 1) / ranks;
  }
  for (parallel::TraceBlock& block : trace.blocks) {
    const double kept =
        block.split_activations / static_cast<double>(ranks) + 1.0 - block.split_activations;
    if (!block.recompute)  // those keep their outputs alone, and every rank has them whole
      block.activation_bytes = std::llround(kept * static_cast<double>(block.activation_bytes));
  }
  return trace;
}

// parallel.stages as a placement.
parallel::Placement given_placement(const parallel::ParallelConfig& config,
                                    const parallel::BlockList& blocks, int num_ranks) {
  const int64_t num_stages = num_ranks * config.chunks;
  CONTEXTURE_USAGE_REQUIRE(config.stages.size() == blocks.size(), "parallel.stages has ",
                           config.stages.size(), " numbers, but the model has ", blocks.size(),
                           " blocks (contexture trace lists them).");
  std::vector<int> stage_of, rank_of;
  for (const int64_t stage : config.stages) {
    CONTEXTURE_USAGE_REQUIRE(stage >= 0 && stage < num_stages, "parallel.stages names stage ",
                             stage, ", but parallel.pp=", num_ranks, " and chunks=", config.chunks,
                             " make stages 0 to ", num_stages - 1, ".");
    stage_of.push_back(static_cast<int>(stage));
  }
  for (int s = 0; s < num_stages; ++s) rank_of.push_back(s % num_ranks);
  return parallel::place(blocks, std::move(stage_of), std::move(rank_of), num_ranks);
}

}  // namespace

model::Microbatch typical_microbatch(const RunConfig& config) {
  const int64_t replicas = std::max<int64_t>(1, config.parallel.dp);
  const int64_t inputs =
      std::max<int64_t>(1, config.train.batch_size / (replicas * config.parallel.microbatches));
  const auto text = [](int64_t n) { return std::vector<int32_t>(static_cast<size_t>(n), 7); };
  const auto picture = std::make_shared<const std::vector<float>>(
      static_cast<size_t>(config.model.num_patches() * config.model.patch_width()), 0.0f);
  const auto words = [&](int64_t pieces) {  // about as many, and [CLS] and [SEP]
    return text(config.model.text ? std::min(config.model.text->max_tokens, pieces + 2) : 0);
  };
  model::Microbatch out;
  const int64_t k = config.retriever.documents,
                groups = (inputs + config.data.group_size - 1) / config.data.group_size;
  for (int64_t d = 0; d < groups * k; ++d)
    out.documents.push_back({text(config.data.max_document_tokens), picture,
                             static_cast<uint64_t>(d), words(config.data.max_document_tokens)});
  for (int64_t i = 0; i < inputs; ++i) {
    model::Input& input = out.inputs.emplace_back();
    input.query = {config.data.query == "picture" ? text(0) : text(config.data.max_question_tokens),
                   config.data.query == "text" ? nullptr : picture, 1,
                   words(config.data.max_question_tokens)};
    input.prompt = {text(config.data.max_question_tokens), picture, 1};
    input.target = text(config.data.max_answer_tokens);
    for (int64_t s = 0; s < k; ++s)
      input.documents.push_back(static_cast<int32_t>(i / config.data.group_size * k + s));
  }
  out.global_target_tokens = out.target_tokens();
  out.readings = config.retriever.objective_options().readings();
  return out;
}

Trace trace_model(const RunConfig& config, const model::Model& shapes, bool timed) {
  const model::Microbatch microbatch = typical_microbatch(config);
  model::Model model(config.model, nullptr, false,
                     shapes.objectives());  // of its own: blocks are given memory one by one
  parallel::TraceOptions options;
  options.model = concat("width ", config.model.width, ", ", config.model.encoder_layers, " + ",
                         config.model.decoder_layers, " layers, ", config.model.fusion);
  options.inputs = static_cast<double>(microbatch.inputs.size());
  options.dtype = precision_of(config.train.precision);
  options.recompute = parallel::chosen_blocks(config.parallel.recompute, shapes.blocks());
  const parallel::Feeds feeds =
      model::make_feeds(config.model, microbatch, options.dtype, at::kCPU);
  options.estimate = [&feeds, bytes = static_cast<int64_t>(c10::elementSize(options.dtype))](
                         const auto& block, const auto& wires, auto& row) {
    note_matrices(block, wires, feeds, bytes, row);
  };
  int64_t slots = 0;
  for (const model::Input& input : microbatch.inputs)
    slots += static_cast<int64_t>(input.documents.size());
  const double ratio =
      slots > 0 ? static_cast<double>(microbatch.documents.size()) / static_cast<double>(slots)
                : 1.0;
  options.distinct_ratio = [ratio](const std::string& wire) {
    return wire.rfind("doc.", 0) == 0 ? ratio : 0.0;
  };
  const auto trace = [&] {
    return parallel::trace_blocks(model.blocks(), model.parameters(),
                                  parallel::Pass(feeds, /*training=*/true), options);
  };
  Trace untimed = trace();
  if (!timed) return untimed;
  apply_threads(config.run);  // a block takes as long as in a rank of the run
  const TraceCache cache(untimed);
  if (std::optional<Trace> known = cache.read()) return std::move(*known);
  options.timed = true;
  Trace out = trace();
  cache.write(out);
  return out;
}

parallel::PartitionOptions partition_options(const RunConfig& config,
                                             const std::string& partitioner, int num_devices,
                                             int64_t documents) {
  const parallel::ParallelConfig& p = config.parallel;
  const auto size = [](int64_t n) { return static_cast<int>(std::max<int64_t>(1, n)); };
  const int dp = size(p.dp), tp = size(p.tp);
  const at::ScalarType dtype = precision_of(config.train.precision);
  const auto weight_bytes = static_cast<double>(c10::elementSize(dtype)),
             wide_bytes = static_cast<double>(c10::elementSize(parallel::wide_dtype(dtype)));
  parallel::PartitionOptions options;
  options.partitioner = parallel::parse_partitioner(partitioner);
  options.optimize = parallel::parse_optimize(p.optimize);
  options.memory_weight = p.memory_weight;
  options.num_devices = num_devices;
  options.microbatches = static_cast<int>(p.microbatches);
  options.shared = parallel::parse_shared_rule(p.shared);
  options.gradient_factor = wide_bytes / weight_bytes;
  options.state_factor = parallel::states_of(1.0, weight_bytes, wide_bytes,
                                             static_cast<int>(p.zero), dp, p.offload != "device")
                             .total() /
                         weight_bytes;
  if (p.schedule == "gpipe") options.in_flight.assign(num_devices, options.microbatches);
  const double index =
      static_cast<double>(documents) *
      index_bytes_per_vector(config.retriever.factory, config.model.retrieval_width());
  options.device_bytes.assign(num_devices,
                              config.retriever.sharded ? index / (dp * num_devices * tp) : 0.0);
  if (!config.retriever.sharded) options.device_bytes.front() = index;
  const auto cluster = cluster_of(config);
  if (cluster) {
    const parallel::MeshLayout mesh(dp * num_devices * tp, dp, num_devices, tp, p.order);
    options.ingress = {mesh.crosses_nodes(parallel::Axis::kPp, cluster->gpus_per_node)
                           ? cluster->across
                           : cluster->inside};
  }
  if (p.memory_gb > 0) {
    options.memory_caps = {1e9 * p.memory_gb};
  } else if (cluster && cluster->memory_bytes > 0) {
    options.memory_caps = {parallel::SearchOptions().usable_memory * cluster->memory_bytes};
  }
  return options;
}

parallel::Plan partition_for(const RunConfig& config, const Trace& trace,
                             const std::string& partitioner, int num_devices, int64_t documents) {
  const parallel::PartitionOptions options =
      partition_options(config, partitioner, num_devices, documents);
  parallel::Plan plan = parallel::partition(of_a_tensor_rank(trace, config.parallel.tp), options);
  // Cuts that know no caps are held against what the user says; exact and linear ones keep to it.
  const double most = *std::max_element(plan.device_memory.begin(), plan.device_memory.end());
  CONTEXTURE_REQUIRE(config.parallel.memory_gb == 0 || most <= options.memory_caps.front(),
                     "parallel.partitioner=", partitioner,
                     " knows no limit of memory: its fullest device needs ", most / 1e9,
                     " GB, and parallel.memory_gb=", config.parallel.memory_gb,
                     ". Use exact or linear.");
  return plan;
}

parallel::Placement placement_of(const RunConfig& config, const model::Model& shapes,
                                 const parallel::Groups& groups, int64_t documents) {
  const parallel::ParallelConfig& p = config.parallel;
  if (groups.pp != nullptr && !p.stages.empty())
    return given_placement(p, shapes.blocks(), groups.pp_size());
  if (groups.pp == nullptr || p.partitioner == "uniform" || p.partitioner == "parameters") {
    CONTEXTURE_USAGE_REQUIRE(
        groups.pp == nullptr || (p.memory_gb == 0 && p.optimize == "speed"),
        "parallel.memory_gb=", p.memory_gb, " and parallel.optimize=", p.optimize,
        " mean nothing to parallel.partitioner=", p.partitioner, ". Use exact or linear.");
    return parallel::placement_for(p, shapes.blocks(), groups);
  }
  Trace trace = trace_model(config, shapes);
  // From FLOPs, so that every rank finds the same cut. Without links only ratios matter.
  const auto cluster = cluster_of(config);
  parallel::set_times(trace, cluster ? cluster->peak(precision_name(config)) * cluster->efficiency /
                                           static_cast<double>(p.tp)
                                     : 1e12);
  const parallel::Plan plan =
      partition_for(config, trace, p.partitioner, groups.pp_size(), documents);
  return parallel::place(shapes.blocks(), plan.stage_of_block, plan.device_of_stage,
                         groups.pp_size());
}

}  // namespace contexture::train
