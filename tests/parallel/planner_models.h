// Small models and clusters for the planner's tests.
#pragma once
#include <string>

#include "parallel/planner.h"
#include "small_graphs.h"

namespace contexture::parallel {

// Blocks in a chain, each of one second forward, one for the gradient of its inputs and one for
// that of its weights, per input.
struct Shape {
  int blocks = 8;
  int64_t parameter_bytes = 0, activation_bytes = 0, wire_bytes = 0;
};

inline PlannedModel chain_of(const Shape& shape, int64_t batch_size) {
  PlannedModel model;
  model.batch_size = batch_size;
  model.trace = [shape](int64_t n) {
    Trace trace;
    trace.timed = true;
    trace.inputs = static_cast<double>(n);
    for (int b = 0; b < shape.blocks; ++b) {
      TraceBlock block =
          small_block(concat("layer.", b), static_cast<double>(n), n * shape.activation_bytes);
      block.input_grad_s = block.weight_grad_s = static_cast<double>(n);
      block.forward_flops = block.input_grad_flops = block.weight_grad_flops =
          1e12 * static_cast<double>(n);
      if (shape.parameter_bytes > 0) {
        block.parameters = {b};
        trace.parameters.push_back({concat("w.", b), shape.parameter_bytes});
      }
      trace.blocks.push_back(block);
      if (b > 0)
        trace.wires.push_back(small_wire(concat("h.", b), n * shape.wire_bytes, b - 1, {b}));
    }
    return trace;
  };
  return model;
}

inline Cluster machines(int nodes, int gpus_per_node, double memory_bytes = 1e15) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.gpus_per_node = gpus_per_node;
  cluster.memory_bytes = memory_bytes;
  cluster.peak_flops_per_s = {{"bf16", 1e12}};
  return cluster;  // links take no time
}

inline bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

}  // namespace contexture::parallel
