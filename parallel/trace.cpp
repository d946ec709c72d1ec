#include "parallel/trace.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "core/dtype.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"

namespace contexture::parallel {
namespace {

void require_amount(double value, const char* what, const std::string& name,
                    const std::string& where) {
  CONTEXTURE_DATA_REQUIRE(std::isfinite(value) && value >= 0.0, where, ": ", what, " of ", name,
                          " is ", value, ", but must be finite and not negative");
}

// Names are unique, and not empty.
template <typename Items>
void require_names(const Items& items, const char* what, const std::string& where) {
  std::set<std::string> seen;
  for (const auto& item : items) {
    CONTEXTURE_DATA_REQUIRE(!item.name.empty(), where, ": a ", what, " has no name");
    CONTEXTURE_DATA_REQUIRE(seen.insert(item.name).second, where, ": two ", what, "s are called '",
                            item.name, "'");
  }
}

// Every amount of a block by its name in the file: for checking, writing and reading alike.
template <typename Block, typename Visit>
void for_each_amount(Block& block, Visit&& visit) {
  visit("forward_s", block.forward_s);
  visit("input_grad_s", block.input_grad_s);
  visit("weight_grad_s", block.weight_grad_s);
  visit("forward_flops", block.forward_flops);
  visit("input_grad_flops", block.input_grad_flops);
  visit("weight_grad_flops", block.weight_grad_flops);
  visit("activation_bytes", block.activation_bytes);
  visit("peak_bytes", block.peak_bytes);
  visit("resident_bytes", block.resident_bytes);
  visit("split_work", block.split_work);
  visit("split_activations", block.split_activations);
  visit("forward_sums", block.forward_sums);
  visit("forward_sum_bytes", block.forward_sum_bytes);
  visit("backward_sums", block.backward_sums);
  visit("backward_sum_bytes", block.backward_sum_bytes);
  visit("rows", block.rows);
  visit("pair_work", block.pair_work);
}

void check_block(const Trace& trace, const TraceBlock& block, const std::string& where) {
  for_each_amount(block, [&](const char* what, auto value) {
    require_amount(static_cast<double>(value), what, "block '" + block.name + "'", where);
  });
  CONTEXTURE_DATA_REQUIRE(
      block.split_work <= 1.0 && block.split_activations <= 1.0 && block.pair_work <= 1.0, where,
      ": split_work, split_activations and pair_work of block '", block.name,
      "' are shares, at most 1");
  int last = -1;
  for (const int p : block.parameters) {
    CONTEXTURE_DATA_REQUIRE(p > last && p < static_cast<int>(trace.parameters.size()), where,
                            ": block '", block.name, "' names parameter number ", p,
                            " out of range or order");
    last = p;
  }
}

void check_wire(const Trace& trace, const TraceWire& wire, const std::string& where) {
  const int num_blocks = static_cast<int>(trace.blocks.size());
  require_amount(static_cast<double>(wire.bytes), "bytes", "wire '" + wire.name + "'", where);
  CONTEXTURE_DATA_REQUIRE(wire.producer >= 0 && wire.producer < num_blocks, where, ": wire '",
                          wire.name, "' has no producer");
  int last = wire.producer;
  for (const int reader : wire.readers) {
    CONTEXTURE_DATA_REQUIRE(
        reader > last && reader < num_blocks, where, ": wire '", wire.name,
        "' must be written before it is read, and readers come in the order of blocks");
    last = reader;
  }
  CONTEXTURE_DATA_REQUIRE(wire.distinct_ratio > 0.0 && wire.distinct_ratio <= 1.0, where,
                          ": distinct_ratio of wire '", wire.name, "' is ", wire.distinct_ratio,
                          ", but must lie in (0, 1]");
  CONTEXTURE_DATA_REQUIRE(wire.sharing == Sharing::kDocument || wire.distinct_ratio == 1.0, where,
                          ": wire '", wire.name,
                          "' is shared per input, so its distinct_ratio must be 1");
  if (!wire.dtype.empty()) {
    const std::optional<DType> dtype = dtype_from_name(wire.dtype);
    CONTEXTURE_DATA_REQUIRE(dtype, where, ": wire '", wire.name, "' has dtype '", wire.dtype,
                            "', which safetensors lack");
    double bytes = dtype_bits(*dtype) / 8.0;
    for (const int64_t size : wire.shape) bytes *= static_cast<double>(size);
    CONTEXTURE_DATA_REQUIRE(std::abs(bytes - wire.forward_bytes()) <= 1.0, where, ": wire '",
                            wire.name, "' has a shape of ", bytes, " bytes, but sends ",
                            wire.forward_bytes());
  }
}

TraceNode leaf(const Trace& trace, int index, const std::vector<int>& owner) {
  const TraceBlock& block = trace.blocks[index];
  TraceNode node{.path = block.name, .blocks = {index}};
  for (const int p : block.parameters) {
    if (owner[p] == index) node.parameter_bytes += trace.parameters[p].bytes;
  }
  node.activation_bytes = block.activation_bytes;
  node.resident_bytes = block.resident_bytes;
  node.forward_s = block.forward_s;
  node.input_grad_s = block.input_grad_s;
  node.weight_grad_s = block.weight_grad_s;
  node.flops = block.forward_flops + block.input_grad_flops + block.weight_grad_flops;
  return node;
}

// `prefix`: where the rest of the block's path starts below the parent; npos: the parent has the
// block's own path.
void insert(TraceNode& parent, const TraceNode& block, size_t prefix) {
  parent.blocks.push_back(block.blocks.front());
  parent.parameter_bytes += block.parameter_bytes;
  parent.activation_bytes += block.activation_bytes;
  parent.resident_bytes += block.resident_bytes;
  parent.forward_s += block.forward_s;
  parent.input_grad_s += block.input_grad_s;
  parent.weight_grad_s += block.weight_grad_s;
  parent.flops += block.flops;
  if (prefix == std::string::npos) {
    parent.children.push_back(block);
    return;
  }
  const size_t dot = block.path.find('.', prefix);
  const std::string path = block.path.substr(0, dot);
  const auto found = std::find_if(parent.children.begin(), parent.children.end(),
                                  [&](const TraceNode& child) { return child.path == path; });
  if (found == parent.children.end() && dot == std::string::npos) {
    parent.children.push_back(block);
  } else if (found == parent.children.end()) {
    parent.children.push_back({.path = path});
    insert(parent.children.back(), block, dot + 1);
  } else {
    if (found->children
            .empty()) {  // a block that is a module, too: it becomes a child of that module
      const TraceNode self = *found;
      found->children.push_back(self);
    }
    insert(*found, block, dot == std::string::npos ? std::string::npos : dot + 1);
  }
}

Json names_of(const Trace& trace, const std::vector<int>& blocks) {
  Json names = Json::array();
  for (const int b : blocks) names.push_back(trace.blocks[b].name);
  return names;
}

Json node_to_json(const TraceNode& node) {
  Json json = {{"path", node.path},
               {"parameter_bytes", node.parameter_bytes},
               {"activation_bytes", node.activation_bytes},
               {"resident_bytes", node.resident_bytes},
               {"forward_s", node.forward_s},
               {"input_grad_s", node.input_grad_s},
               {"weight_grad_s", node.weight_grad_s},
               {"flops", node.flops}};
  if (!node.children.empty()) {
    json["children"] = Json::array();
    for (const TraceNode& child : node.children) json["children"].push_back(node_to_json(child));
  }
  return json;
}

// Index by name in items; DataError when there is none.
template <typename Items>
int index_of(const Items& items, const std::string& name, const char* what,
             const std::string& where) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].name == name) return static_cast<int>(i);
  }
  throw DataError(concat(where, ": there is no ", what, " '", name, "'"));
}

const Json& array_member(const Json& json, const std::string& key, const std::string& where) {
  CONTEXTURE_DATA_REQUIRE(json.is_object() && json.contains(key) && json[key].is_array(), where,
                          ": '", key, "' must be a list");
  return json[key];
}

void require_sums(const TraceNode& node, const Json& json, const std::string& where) {
  const std::string here = where + ": module '" + node.path + "'";
  const auto same = [&](const char* key, double value) {
    const double stated = json_get<double>(json, key, here);
    CONTEXTURE_DATA_REQUIRE(std::abs(stated - value) <= 1e-9 * std::max(std::abs(value), 1e-300),
                            here, ": ", key, " is ", stated, ", but its blocks sum to ", value);
  };
  CONTEXTURE_DATA_REQUIRE(json_get<std::string>(json, "path", here) == node.path, here,
                          ": the tree has path ", json_excerpt(json["path"]), " here");
  same("parameter_bytes", static_cast<double>(node.parameter_bytes));
  same("activation_bytes", static_cast<double>(node.activation_bytes));
  same("resident_bytes", static_cast<double>(node.resident_bytes));
  same("forward_s", node.forward_s);
  same("input_grad_s", node.input_grad_s);
  same("weight_grad_s", node.weight_grad_s);
  same("flops", node.flops);
  const size_t stated = json.contains("children") ? array_member(json, "children", here).size() : 0;
  CONTEXTURE_DATA_REQUIRE(stated == node.children.size(), here, " has ", node.children.size(),
                          " children, the tree says ", stated);
  for (size_t i = 0; i < node.children.size(); ++i)
    require_sums(node.children[i], json["children"][i], where);
}

TraceBlock block_from_json(const Json& json, const Trace& trace, const std::string& where) {
  TraceBlock block;
  block.name = json_get<std::string>(json, "name", where);
  const std::string here = where + ": block '" + block.name + "'";
  for (const auto& name : json_get_or<std::vector<std::string>>(json, "parameters", {}, here)) {
    block.parameters.push_back(index_of(trace.parameters, name, "parameter", here));
  }
  for_each_amount(block, [&](const char* what, auto& value) {
    value = json_get_or<std::remove_reference_t<decltype(value)>>(json, what, 0, here);
  });
  block.recompute = json_get_or<bool>(json, "recompute", false, here);
  return block;
}

TraceWire wire_from_json(const Json& json, const Trace& trace, const std::string& where) {
  TraceWire wire;
  wire.name = json_get<std::string>(json, "name", where);
  const std::string here = where + ": wire '" + wire.name + "'";
  wire.bytes = json_get<int64_t>(json, "bytes", here);
  wire.shape = json_get_or<std::vector<int64_t>>(json, "shape", {}, here);
  wire.dtype = json_get_or<std::string>(json, "dtype", "", here);
  wire.producer =
      index_of(trace.blocks, json_get<std::string>(json, "producer", here), "block", here);
  for (const auto& name : json_get_or<std::vector<std::string>>(json, "readers", {}, here)) {
    wire.readers.push_back(index_of(trace.blocks, name, "block", here));
  }
  const auto sharing = json_get_or<std::string>(json, "sharing", "input", here);
  CONTEXTURE_DATA_REQUIRE(sharing == "input" || sharing == "document", here, ": sharing is '",
                          sharing, "', but must be input or document");
  wire.sharing = sharing == "input" ? Sharing::kInput : Sharing::kDocument;
  wire.distinct_ratio = json_get_or<double>(json, "distinct_ratio", 1.0, here);
  wire.gradient = json_get_or<bool>(json, "gradient", true, here);
  return wire;
}

}  // namespace

void check_trace(const Trace& trace, const std::string& where) {
  CONTEXTURE_DATA_REQUIRE(!trace.blocks.empty(), where, ": a trace needs at least one block");
  CONTEXTURE_DATA_REQUIRE(std::isfinite(trace.inputs) && trace.inputs > 0, where, ": inputs is ",
                          trace.inputs, ", but must be positive");
  CONTEXTURE_DATA_REQUIRE(trace.distinct_ratio >= 0.0 && trace.distinct_ratio <= 1.0, where,
                          ": the data's ratio of distinct documents is ", trace.distinct_ratio,
                          ", but must lie in [0, 1]");
  require_names(trace.parameters, "parameter", where);
  require_names(trace.blocks, "block", where);
  require_names(trace.wires, "wire", where);
  for (const TraceParameter& parameter : trace.parameters) {
    require_amount(static_cast<double>(parameter.bytes), "bytes",
                   "parameter '" + parameter.name + "'", where);
  }
  for (const TraceBlock& block : trace.blocks) check_block(trace, block, where);
  for (const TraceWire& wire : trace.wires) check_wire(trace, wire, where);
}

TraceNode trace_tree(const Trace& trace) {
  std::vector<int> owner(trace.parameters.size(), -1);
  TraceNode root;
  for (size_t b = 0; b < trace.blocks.size(); ++b) {
    for (const int p : trace.blocks[b].parameters) {
      if (owner[p] < 0) owner[p] = static_cast<int>(b);
    }
    insert(root, leaf(trace, static_cast<int>(b), owner), 0);
  }
  return root;
}

void set_times(Trace& trace, double flops_per_s) {
  CONTEXTURE_REQUIRE(flops_per_s > 0, "a device's FLOP/s must be positive, not ", flops_per_s);
  for (TraceBlock& block : trace.blocks) {
    block.forward_s = block.forward_flops / flops_per_s;
    block.input_grad_s = block.input_grad_flops / flops_per_s;
    block.weight_grad_s = block.weight_grad_flops / flops_per_s;
  }
  trace.timed = true;
}

double backward_s(const TraceBlock& block) {
  return block.input_grad_s + block.weight_grad_s + (block.recompute ? block.forward_s : 0.0);
}

double step_s(const TraceBlock& block) { return block.forward_s + backward_s(block); }

Json to_json(const Trace& trace) {
  Json json = {{"format", "contexture-trace"},
               {"version", 1},
               {"model", trace.model},
               {"inputs", trace.inputs},
               {"timed", trace.timed},
               {"distinct", {{"ratio", trace.distinct_ratio}, {"source", trace.distinct_source}}},
               {"parameters", Json::array()},
               {"blocks", Json::array()},
               {"wires", Json::array()},
               {"tree", node_to_json(trace_tree(trace))}};
  for (const TraceParameter& parameter : trace.parameters) {
    json["parameters"].push_back(
        {{"name", parameter.name}, {"bytes", parameter.bytes}, {"split", parameter.split}});
  }
  for (const TraceBlock& block : trace.blocks) {
    Json names = Json::array();
    for (const int p : block.parameters) names.push_back(trace.parameters[p].name);
    Json out{{"name", block.name}, {"parameters", names}, {"recompute", block.recompute}};
    for_each_amount(block, [&](const char* what, auto value) { out[what] = value; });
    json["blocks"].push_back(std::move(out));
  }
  for (const TraceWire& wire : trace.wires) {
    json["wires"].push_back({{"name", wire.name},
                             {"bytes", wire.bytes},
                             {"shape", wire.shape},
                             {"dtype", wire.dtype},
                             {"producer", trace.blocks[wire.producer].name},
                             {"readers", names_of(trace, wire.readers)},
                             {"sharing", wire.sharing == Sharing::kInput ? "input" : "document"},
                             {"distinct_ratio", wire.distinct_ratio},
                             {"gradient", wire.gradient}});
  }
  return json;
}

Trace trace_from_json(const Json& json, const std::string& where) {
  CONTEXTURE_DATA_REQUIRE(json_get<std::string>(json, "format", where) == "contexture-trace", where,
                          ": this is no trace (format is ", json_excerpt(json["format"]), ")");
  const int version = json_get<int>(json, "version", where);
  CONTEXTURE_DATA_REQUIRE(version == 1, where, ": trace version ", version,
                          ", but this program reads version 1");
  Trace trace;
  trace.model = json_get_or<std::string>(json, "model", "", where);
  trace.inputs = json_get_or<double>(json, "inputs", 1.0, where);
  trace.timed = json_get_or<bool>(json, "timed", false, where);
  if (json.contains("distinct")) {
    trace.distinct_ratio = json_get_or<double>(json["distinct"], "ratio", 0.0, where);
    trace.distinct_source = json_get_or<std::string>(json["distinct"], "source", "", where);
  }
  for (const Json& parameter : array_member(json, "parameters", where)) {
    trace.parameters.push_back({json_get<std::string>(parameter, "name", where),
                                json_get<int64_t>(parameter, "bytes", where),
                                json_get_or<bool>(parameter, "split", false, where)});
  }
  for (const Json& block : array_member(json, "blocks", where)) {
    trace.blocks.push_back(block_from_json(block, trace, where));
  }
  for (const Json& wire : array_member(json, "wires", where))
    trace.wires.push_back(wire_from_json(wire, trace, where));
  check_trace(trace, where);
  if (json.contains("tree")) require_sums(trace_tree(trace), json["tree"], where);
  return trace;
}

void write_trace(const Trace& trace, const std::string& path) {
  check_trace(trace, path);
  write_file_atomic(path, to_json(trace).dump(1) + "\n");
}

Trace read_trace(const std::string& path) { return trace_from_json(read_json_file(path), path); }

}  // namespace contexture::parallel
