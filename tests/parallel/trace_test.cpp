#include "parallel/trace.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "expect_error.h"
#include "small_graphs.h"

namespace contexture::parallel {
namespace {

// Two towers that share an embedding, one wire per document; "decoder" is a block and a module.
Trace two_towers() {
  Trace trace;
  trace.model = "two towers";
  trace.inputs = 8;
  trace.timed = true;
  trace.parameters = {{"embedding", 1000}, {"encoder.0.w", 40}, {"decoder.0.w", 60}};
  trace.blocks = {small_block("encoder.embed", 1, 10), small_block("encoder.0", 2, 20),
                  small_block("decoder", 3, 5), small_block("decoder.0", 4, 30)};
  trace.blocks[0].parameters = {0};
  trace.blocks[1].parameters = {1};
  trace.blocks[2].parameters = {0};
  trace.blocks[3].parameters = {2};
  trace.blocks[1].input_grad_s = 2.5;
  trace.blocks[1].weight_grad_s = 1.5;
  trace.blocks[1].recompute = true;
  trace.blocks[3].forward_flops = 1e9;
  trace.blocks[3].resident_bytes = 7;
  trace.wires = {small_wire("x", 64, 0, {1}), small_wire("states", 512, 1, {3}),
                 small_wire("y", 64, 2, {3})};
  trace.wires[1].sharing = Sharing::kDocument;
  trace.wires[1].distinct_ratio = 0.75;
  trace.wires[2].gradient = false;
  trace.wires[1].shape = {12, 16};  // of 16 slots' 512 bytes the distinct three quarters
  trace.wires[1].dtype = "BF16";
  trace.blocks[2].peak_bytes = 77;
  trace.distinct_ratio = 0.25;
  trace.distinct_source = "counted";
  return trace;
}

TEST(Trace, SurvivesJsonUnchanged) {
  const Trace trace = two_towers();
  const TempDir folder;
  const std::string path = folder.path() / "trace.json";
  write_trace(trace, path);
  const Trace back = read_trace(path);
  EXPECT_EQ(back.model, trace.model);
  EXPECT_EQ(back.inputs, trace.inputs);
  EXPECT_EQ(back.timed, trace.timed);
  EXPECT_EQ(back.distinct_ratio, trace.distinct_ratio);
  EXPECT_EQ(back.distinct_source, trace.distinct_source);
  EXPECT_EQ(back.blocks, trace.blocks);
  EXPECT_EQ(back.wires, trace.wires);
  EXPECT_EQ(to_json(back), to_json(trace));
}

void expect_sums(const TraceNode& node) {
  if (node.children.empty()) return;
  TraceNode sum;
  for (const TraceNode& child : node.children) {
    sum.parameter_bytes += child.parameter_bytes;
    sum.activation_bytes += child.activation_bytes;
    sum.resident_bytes += child.resident_bytes;
    sum.forward_s += child.forward_s;
    sum.input_grad_s += child.input_grad_s;
    sum.weight_grad_s += child.weight_grad_s;
    sum.flops += child.flops;
    sum.blocks.insert(sum.blocks.end(), child.blocks.begin(), child.blocks.end());
    expect_sums(child);
  }
  EXPECT_EQ(node.parameter_bytes, sum.parameter_bytes) << node.path;
  EXPECT_EQ(node.activation_bytes, sum.activation_bytes) << node.path;
  EXPECT_EQ(node.resident_bytes, sum.resident_bytes) << node.path;
  EXPECT_EQ(node.forward_s, sum.forward_s) << node.path;
  EXPECT_EQ(node.input_grad_s, sum.input_grad_s) << node.path;
  EXPECT_EQ(node.weight_grad_s, sum.weight_grad_s) << node.path;
  EXPECT_EQ(node.flops, sum.flops) << node.path;
  EXPECT_EQ(node.blocks, sum.blocks) << node.path;
}

TEST(TraceTree, ParentsEqualTheSumOfTheirChildren) {
  const TraceNode root = trace_tree(two_towers());
  expect_sums(root);
  ASSERT_EQ(root.children.size(), 2u);
  EXPECT_EQ(root.parameter_bytes, 1100);  // the shared embedding once
  EXPECT_EQ(root.children[0].path, "encoder");
  EXPECT_EQ(root.children[0].parameter_bytes, 1040);
  EXPECT_EQ(root.children[1].path, "decoder");
  ASSERT_EQ(root.children[1].children.size(), 2u);
  EXPECT_EQ(root.children[1].children[0].path, "decoder");  // the block of the module's own name
  EXPECT_EQ(root.forward_s, 10);
}

TEST(Trace, CountsWiresOncePerDistinctDocumentAndBackwardWithRecomputation) {
  const Trace trace = two_towers();
  EXPECT_EQ(trace.wires[1].forward_bytes(), 384);
  EXPECT_EQ(trace.wires[1].backward_bytes(), 384);
  EXPECT_EQ(trace.wires[2].backward_bytes(), 0);
  EXPECT_EQ(backward_s(trace.blocks[1]), 2.5 + 1.5 + 2);
  EXPECT_EQ(step_s(trace.blocks[1]), 8);
  Trace flops = trace;
  set_times(flops, 1e10);
  EXPECT_EQ(flops.blocks[3].forward_s, 0.1);
}

std::string refusal(const std::function<void(Json&)>& damage) {
  Json json = to_json(two_towers());
  damage(json);
  return message_of<DataError>([&] { trace_from_json(json, "t.json"); });
}

TEST(Trace, RefusesDamagedFilesByName) {
  EXPECT_EQ(refusal([](Json& json) { json["blocks"][1]["forward_s"] = -1; }),
            "t.json: forward_s of block 'encoder.0' is -1, but must be finite and not negative");
  EXPECT_EQ(refusal([](Json& json) { json["blocks"][1]["name"] = "decoder"; }),
            "t.json: wire 'x': there is no block 'encoder.0'");
  EXPECT_EQ(refusal([](Json& json) { json["blocks"][1]["parameters"] = {"nothing"}; }),
            "t.json: block 'encoder.0': there is no parameter 'nothing'");
  EXPECT_EQ(refusal([](Json& json) { json["wires"][0]["readers"] = {"encoder.embed"}; }),
            "t.json: wire 'x' must be written before it is read, and readers come in the order of "
            "blocks");
  EXPECT_EQ(refusal([](Json& json) { json["wires"][1]["distinct_ratio"] = 1.5; }),
            "t.json: distinct_ratio of wire 'states' is 1.5, but must lie in (0, 1]");
  EXPECT_EQ(refusal([](Json& json) { json["wires"][0]["distinct_ratio"] = 0.5; }),
            "t.json: wire 'x' is shared per input, so its distinct_ratio must be 1");
  EXPECT_EQ(refusal([](Json& json) {
              json["wires"][1]["shape"] = {12, 17};
            }),
            "t.json: wire 'states' has a shape of 408 bytes, but sends 384");
  EXPECT_EQ(refusal([](Json& json) { json["wires"][1]["dtype"] = "bfloat"; }),
            "t.json: wire 'states' has dtype 'bfloat', which safetensors lack");
  EXPECT_EQ(refusal([](Json& json) { json["blocks"][2]["peak_bytes"] = -1; }),
            "t.json: peak_bytes of block 'decoder' is -1, but must be finite and not negative");
  EXPECT_EQ(refusal([](Json& json) { json["distinct"]["ratio"] = 2; }),
            "t.json: the data's ratio of distinct documents is 2, but must lie in [0, 1]");
  EXPECT_EQ(refusal([](Json& json) { json["wires"][1]["sharing"] = "batch"; }),
            "t.json: wire 'states': sharing is 'batch', but must be input or document");
  EXPECT_EQ(refusal([](Json& json) { json["tree"]["children"][0]["forward_s"] = 4; }),
            "t.json: module 'encoder': forward_s is 4, but its blocks sum to 3");
  EXPECT_EQ(refusal([](Json& json) { json["version"] = 2; }),
            "t.json: trace version 2, but this program reads version 1");
  EXPECT_EQ(refusal([](Json& json) { json["format"] = "other"; }),
            "t.json: this is no trace (format is \"other\")");
  EXPECT_EQ(refusal([](Json& json) { json["wires"] = 3; }), "t.json: 'wires' must be a list");
  EXPECT_NE(refusal([](Json& json) { json["parameters"][1]["name"] = "embedding"; }), "no error");
}

}  // namespace
}  // namespace contexture::parallel
