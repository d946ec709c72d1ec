// What is said of a model before it runs is what it then does.
#include "train/model_trace.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "core/files.h"
#include "parallel/checkpoint.h"
#include "prepared.h"
#include "tiny_world.h"

namespace contexture::train {
namespace {

class ModelTrace : public testing::TestWithParam<const char*> {};

TEST_P(ModelTrace, BlocksWriteTheShapesThatTheyAnnounce) {
  const TinyWorld world;
  RunConfig config = world.config("bf16");
  config.model.fusion = GetParam();
  Prepared made(config);
  model::Microbatch batch = made.assembled().batches[0];
  batch.inputs[1].documents.clear();  // one input without documents
  const parallel::Feeds feeds =
      model::make_feeds(config.model, batch, made.session.model().dtype(), at::kCPU);
  const parallel::Pass pass(feeds);
  const parallel::Executor executor(made.session.model().blocks());
  const parallel::ForwardPass forward = executor.forward(pass, /*grad=*/false);
  for (const auto& block : made.session.model().blocks()) {
    const std::vector<parallel::WireShape> shapes = block->shapes(pass);
    ASSERT_EQ(shapes.size(), block->outputs().size()) << block->name();
    for (size_t o = 0; o < shapes.size(); ++o) {
      const at::Tensor& value = forward.wire(block->outputs()[o]);
      EXPECT_EQ(value.sizes(), at::IntArrayRef(shapes[o].sizes)) << block->outputs()[o];
      EXPECT_EQ(value.scalar_type(), shapes[o].dtype) << block->outputs()[o];
    }
  }
}

TEST_P(ModelTrace, CountsEveryParameterAndWireOnce) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.model.fusion = GetParam();
  const model::Model model(config.model);
  const parallel::Trace trace = trace_model(config, model);
  parallel::check_trace(trace, "here");
  EXPECT_EQ(trace.blocks.size(), model.blocks().size());
  EXPECT_EQ(trace.wires.size(), parallel::wires_of(model.blocks()).size());
  int64_t bytes = 0;
  for (const parallel::TraceParameter& p : trace.parameters) bytes += p.bytes;
  EXPECT_EQ(bytes, 4 * model.parameters().num_elements());
  EXPECT_EQ(parallel::trace_tree(trace).parameter_bytes, bytes);
}

TEST_P(ModelTrace, GivesWiresTheShapesThatBlocksAnnounce) {
  const TinyWorld world;
  RunConfig config = world.config("bf16");
  config.model.fusion = GetParam();
  model::Model model(config.model);
  model.materialise(at::kBFloat16, at::kCPU, 1);  // blocks announce their parameters' dtype
  const parallel::Trace trace = trace_model(config, model);
  const parallel::Feeds feeds =
      model::make_feeds(config.model, typical_microbatch(config), at::kBFloat16, at::kCPU);
  const parallel::Pass pass(feeds, /*training=*/true);
  std::map<std::string, parallel::WireShape> announced;
  for (const auto& block : model.blocks()) {
    const std::vector<parallel::WireShape> shapes = block->shapes(pass);
    for (size_t o = 0; o < shapes.size(); ++o) announced[block->outputs()[o]] = shapes[o];
  }
  int of_documents = 0;
  for (const parallel::TraceWire& wire : trace.wires) {
    EXPECT_EQ(wire.shape, announced.at(wire.name).sizes) << wire.name;
    EXPECT_EQ(wire.dtype, dtype_name(parallel::stored_dtype(announced.at(wire.name).dtype)));
    of_documents += wire.sharing == parallel::Sharing::kDocument ? 1 : 0;
  }
  EXPECT_GT(of_documents, 0);  // whose bytes count slots, and shapes distinct documents
}

INSTANTIATE_TEST_SUITE_P(Modes, ModelTrace, testing::Values("memory", "fid", "prefix"));

// Times are measured once: what is read again is the same to the last bit.
TEST(TimedTrace, IsKeptForTheNextTime) {
  const TinyWorld world;
  const TempDir cache;
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string restored = before != nullptr ? before : "";
  setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  RunConfig config = world.config("fp32");
  const model::Model model(config.model);
  const parallel::Trace first = trace_model(config, model, /*timed=*/true);
  const parallel::Trace again = trace_model(config, model, /*timed=*/true);
  EXPECT_EQ(again.blocks, first.blocks);
  EXPECT_TRUE(again.timed);
  const auto kept = [&] {
    std::set<std::filesystem::path> out;
    for (const auto& entry :
         std::filesystem::directory_iterator(cache.path() / "contexture" / "traces"))
      out.insert(entry.path());
    return out;
  };
  EXPECT_EQ(kept().size(), 1u);
  for (const parallel::TraceBlock& block : first.blocks)
    EXPECT_GE(block.peak_bytes, block.activation_bytes) << block.name;
  for (const std::filesystem::path& path : kept()) write_file_atomic(path, "{\"format\":");
  const parallel::Trace anew = trace_model(config, model, /*timed=*/true);
  EXPECT_TRUE(anew.timed);
  EXPECT_EQ(parallel::read_trace(kept().begin()->string()).blocks, anew.blocks);
  config.train.batch_size *= 2;  // other work
  trace_model(config, model, /*timed=*/true);
  EXPECT_EQ(kept().size(), 2u);
  restored.empty() ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", restored.c_str(), 1);
}

TEST(Flops, OfAnEncoderLayerAreThoseCountedByHand) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.model.closed_pictures = false;
  const model::Model model(config.model);
  const std::vector<int64_t> lengths{5, 9};
  std::vector<model::Sequence> sequences;
  for (const int64_t n : lengths)
    sequences.push_back({std::vector<int32_t>(static_cast<size_t>(n), 7), nullptr, 0});
  parallel::Feeds feeds;
  model::add_tower_feeds(config.model, "doc", {&sequences[0], &sequences[1]}, false, at::kFloat,
                         at::kCPU, feeds);
  const parallel::Pass pass(feeds);
  const auto layer = std::find_if(model.blocks().begin(), model.blocks().end(),
                                  [](const auto& b) { return b->name() == "doc.layer.0"; });
  ASSERT_NE(layer, model.blocks().end());
  const model::ModelConfig& c = config.model;
  const auto D = static_cast<double>(c.width), q = static_cast<double>(c.heads * c.head_width),
             kv = static_cast<double>(c.kv_heads * c.head_width),
             F = static_cast<double>(c.ffn_width);
  const double products = 14.0 * (D * (q + 2 * kv) + q * D + D * 2 * F + F * D);
  const double attention = (5.0 * 5.0 + 9.0 * 9.0) * 2 * q;  // scores, then values
  EXPECT_DOUBLE_EQ((*layer)->forward_flops(pass), 2.0 * (products + attention));
}

}  // namespace
}  // namespace contexture::train
