// Small traced graphs for partition tests, and the ten nodes of the planner's golden table.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "parallel/trace.h"

namespace contexture::parallel {

// A block of so many seconds, all of them forward.
inline TraceBlock small_block(const std::string& name, double seconds,
                              int64_t activation_bytes = 0) {
  TraceBlock block;
  block.name = name;
  block.forward_s = seconds;
  block.activation_bytes = activation_bytes;
  return block;
}

inline TraceWire small_wire(const std::string& name, int64_t bytes, int producer,
                            std::vector<int> readers) {
  TraceWire wire;
  wire.name = name;
  wire.bytes = bytes;
  wire.producer = producer;
  wire.readers = std::move(readers);
  return wire;
}

// Blocks one after another, named by their path.
inline Trace small_chain(const std::vector<std::pair<std::string, double>>& blocks,
                         int64_t wire_bytes = 1) {
  Trace trace;
  trace.timed = true;
  for (const auto& [name, seconds] : blocks) {
    const int b = static_cast<int>(trace.blocks.size());
    trace.blocks.push_back(small_block(name, seconds));
    if (b > 0) trace.wires.push_back(small_wire(name + ".in", wire_bytes, b - 1, {b}));
  }
  return trace;
}

// Q(1) P(4) R(1) L1..L6(2 each) H(1); Q->R 1, R->H 1, Li->Li+1 4, L6->H 4, and P's 100 bytes to R
// and the layers of cross-attention.
inline Trace ten_nodes(const std::vector<int>& cross_attention_layers) {
  Trace trace;
  trace.timed = true;
  trace.blocks = {small_block("Q", 1), small_block("P", 4), small_block("R", 1)};
  for (int i = 1; i <= 6; ++i) trace.blocks.push_back(small_block(concat("L", i), 2));
  trace.blocks.push_back(small_block("H", 1));
  std::vector<int> readers = {2};
  for (const int layer : cross_attention_layers) readers.push_back(2 + layer);
  trace.wires = {small_wire("queries", 1, 0, {2}), small_wire("contexts", 100, 1, readers),
                 small_wire("scores", 1, 2, {9})};
  for (int i = 1; i <= 6; ++i)
    trace.wires.push_back(small_wire(concat("hidden", i), 4, 2 + i, {3 + i}));
  return trace;
}

}  // namespace contexture::parallel
