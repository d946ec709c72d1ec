// What the planner says that a rank needs, against what its tensors take at most while the layout
// trains a batch of full-length sequences: weights, gradients, optimizer state, activations,
// messages and everything in between.
#include <gtest/gtest.h>

#include "allocations.h"
#include "core/config.h"
#include "core/format.h"
#include "layouts.h"
#include "train/model_trace.h"
#include "train/optimizer.h"
#include "train/planning.h"
#include "train/step.h"

namespace contexture::train {
namespace {

struct Choice {
  parallel::Layout layout;
  const char* precision = "fp32";
  const char* towers = "shared";
  bool sequence = false;
};

RunConfig model_of(const Choice& choice) {
  RunConfig c;
  c.model.vocab = 1000;
  c.model.width = 128;
  c.model.heads = c.model.kv_heads = 4;
  c.model.head_width = 32;
  c.model.ffn_width = 384;
  c.model.encoder_layers = c.model.decoder_layers = 4;
  c.model.image_size = 32;
  c.model.patch_size = 8;
  c.model.patch_projection = 8;
  c.model.embedding_width = 128;
  c.model.copy_width = 32;
  c.model.towers = choice.towers;
  c.data.group_size = 1;
  c.data.max_document_tokens = 48;
  c.data.max_question_tokens = 12;
  c.data.max_answer_tokens = 6;
  c.retriever.documents = 2;
  c.train.batch_size = 16;
  c.train.precision = choice.precision;
  c.parallel.sequence = choice.sequence;
  c.parallel.bucket_mb = 1;
  return c;
}

// A replica's microbatches as typical_microbatch() has them, their documents all different.
void fill(const RunConfig& config, const Share& share, PreparedStep& step, Assembled& assembled) {
  const model::Microbatch typical = typical_microbatch(config);
  const auto n = static_cast<int64_t>(typical.inputs.size()), k = config.retriever.documents;
  for (int64_t i = 0; i < n * share.total(); ++i) {
    PreparedInput& input = step.inputs.emplace_back();
    input.target = typical.inputs[0].target;
    input.gold = {i * k};
  }
  assembled.share = share;
  for (int64_t m = share.first(); m < share.first() + share.microbatches; ++m) {
    model::Microbatch& batch = assembled.batches.emplace_back(typical);
    batch.global_target_tokens = typical.target_tokens() * share.total();
    batch.global_inputs = n * share.total();
    std::vector<int64_t>& rows = assembled.rows.emplace_back();
    for (int64_t d = 0; d < n * k; ++d) rows.push_back(m * n * k + d);
  }
}

struct Bytes {
  double predicted = 0.0, measured = 0.0;
  parallel::MemoryParts parts;
};

std::vector<Bytes> run(const Choice& choice) {  // by pipeline rank
  RunConfig config = model_of(choice);
  parallel::Planner planner(planned_model(config, {}),
                            parallel::default_cluster(1, choice.layout.gpus()));
  const parallel::LayoutPlan plan = planner.price(choice.layout);
  for (const std::string& setting : parallel::settings_of(plan)) apply_set(config, setting);
  std::vector<Bytes> out(choice.layout.pp);
  for (int r = 0; r < choice.layout.pp; ++r) out[r] = {plan.memory[r].total(), 0.0, plan.memory[r]};
  std::vector<std::atomic<int64_t>> most(choice.layout.pp);
  on_threads(config.parallel, [&](const parallel::Groups& groups) {
    const CountAllocations count;
    model::Model model(config.model, groups.tp, config.parallel.sequence,
                       config.retriever.objective_options());
    parallel::Placement placement = placement_of(config, model, groups);
    model.materialise(
        precision_of(config.train.precision), at::kCPU, 1, [&](const parallel::Parameter& p) {
          return parallel::Engine::owns(placement, model.blocks(), p, groups.pp_rank());
        });
    apply_groups(config.optimizer, model.parameters());
    parallel::Engine engine(config.parallel, groups, std::move(placement), model.blocks(),
                            model.parameters());
    AdamW optimizer(config.optimizer, engine);
    PreparedStep step;
    Assembled assembled;
    fill(config, share_of(config, groups), step, assembled);
    for (int s = 0; s < 2; ++s) {
      groups.world ? groups.world->barrier() : void();
      count->forget_peak();
      forward_backward(config, model, engine, step, assembled);
      optimizer.clip();
      optimizer.step(1e-4);
    }
    int64_t before = most[groups.pp_rank()];
    while (before < count->peak &&
           !most[groups.pp_rank()].compare_exchange_weak(before, count->peak)) {
    }
  });
  for (int r = 0; r < choice.layout.pp; ++r) out[r].measured = static_cast<double>(most[r].load());
  return out;
}

TEST(MemoryPrediction, IsWithinATenthOfWhatTensorsTake) {
  using Layout = parallel::Layout;
  const std::vector<Choice> choices{
      {Layout{}},
      {Layout{.microbatches = 4}},
      {Layout{.microbatches = 4}, "bf16"},
      {Layout{.microbatches = 2, .recompute = {"all"}}},
      {Layout{.dp = 2}},
      {Layout{.dp = 2, .zero = 1}},
      {Layout{.dp = 2, .microbatches = 2, .zero = 2}, "bf16"},
      {Layout{.dp = 4, .zero = 3}},
      {Layout{.dp = 4, .microbatches = 2, .zero = 3}, "bf16"},
      {Layout{.tp = 2}},
      {Layout{.tp = 4, .microbatches = 2}, "bf16"},
      {Layout{.tp = 2, .microbatches = 2}, "fp32", "shared", true},
      {Layout{.pp = 2, .schedule = "gpipe", .microbatches = 4}},
      {Layout{.pp = 2, .microbatches = 4}, "fp32", "separate"},
      {Layout{.pp = 4, .microbatches = 8}, "fp32", "separate"},
      {Layout{.pp = 2, .microbatches = 4}, "bf16"},
      {Layout{.pp = 2, .schedule = "zb_h1", .microbatches = 4}},
      {Layout{.pp = 2, .schedule = "interleaved", .chunks = 2, .microbatches = 4}},
      {Layout{.dp = 2, .pp = 2, .microbatches = 4, .zero = 1}},
      {Layout{.pp = 2, .tp = 2, .microbatches = 4}, "bf16"},
      {Layout{.dp = 2, .pp = 2, .microbatches = 2, .zero = 3, .recompute = {"all"}}},
      {Layout{.dp = 2, .tp = 2, .microbatches = 2, .zero = 2}},
  };
  std::string table;
  for (const Choice& choice : choices) {
    const Layout& l = choice.layout;
    const std::vector<Bytes> ranks = run(choice);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const parallel::MemoryParts& p = ranks[r].parts;
      const double error = ranks[r].predicted / ranks[r].measured - 1;
      table += format(
          "{}x{}x{} {:<11} mb {} zero {} {:<3} {} {:<8} rank {}: {:6.2f} predicted (states {:.2f} "
          "activations {:.2f} working {:.2f} inputs {:.2f}), {:6.2f} measured, {:+.1f} %\n",
          l.dp, l.pp, l.tp, l.schedule, l.microbatches, l.zero, l.recompute.empty() ? "" : "all",
          choice.precision, choice.towers, r, ranks[r].predicted / 1e6, p.states() / 1e6,
          p.activations / 1e6, p.working / 1e6, p.inputs / 1e6, ranks[r].measured / 1e6,
          100 * error);
      // Half a megabyte: small tensors of a step that the model does not know of. It tells on a
      // rank that holds hardly anything.
      EXPECT_LT(std::abs(ranks[r].predicted - ranks[r].measured),
                std::max(0.1 * ranks[r].measured, 0.5e6))
          << table;
    }
  }
  std::cout << table;
}

}  // namespace
}  // namespace contexture::train
