// What token slices gain (docs/parallel.md): measures slices of real decoder layers on one core,
// cuts where the dynamic program says, and runs a pipeline of as many ranks as asked whose stages
// sleep as long. --real: the layers themselves on ranks that are threads, one core each.
#include <ATen/Parallel.h>

#include <algorithm>
#include <deque>
#include <iostream>
#include <map>

#include "core/error.h"
#include "core/format.h"
#include "core/timing.h"
#include "model/model.h"
#include "sliced_sleepers.h"

namespace contexture {
namespace {

using parallel::Feeds;
using parallel::Pass;
using parallel::Pipeline;
using Cuts = std::vector<int64_t>;

struct Options {
  int64_t tokens = 2048, width = 256, layers = 12, ranks = 4, repeats = 3;
  bool real = false;
};

model::ModelConfig config_of(const Options& o, int64_t layers) {
  model::ModelConfig c;
  c.fusion = "prefix";
  c.width = o.width;
  c.heads = o.width / 32;
  c.kv_heads = std::max<int64_t>(1, c.heads / 2);
  c.head_width = 32;
  c.ffn_width = o.width * 8 / 3;
  c.encoder_layers = 1;
  c.decoder_layers = layers;
  c.pooling = "mean";
  c.image_size = 16;
  return c;
}

// One input over eight documents: `tokens` decoder rows, one causal sequence.
model::Microbatch one_input(const Options& o) {
  constexpr int64_t kDocuments = 8, kPrompt = 32,
                    kTarget = 33;  // whose last token is only predicted
  const auto text = [](int64_t length, int64_t from) {
    std::vector<int32_t> out;
    for (int64_t i = 0; i < length; ++i)
      out.push_back(static_cast<int32_t>(8 + (from + 7 * i) % 1000));
    return out;
  };
  model::Microbatch out;
  model::Input input{
      {text(kPrompt, 1), nullptr, 100}, {text(kPrompt, 2), nullptr, 101}, text(kTarget, 3), {}};
  const int64_t rows = o.tokens - kPrompt - kTarget + 1;
  for (int64_t d = 0; d < kDocuments; ++d) {
    out.documents.push_back({text((d + 1) * rows / kDocuments - d * rows / kDocuments, 5 + d),
                             nullptr, static_cast<uint64_t>(d)});
    input.documents.push_back(static_cast<int32_t>(d));
  }
  out.inputs.push_back(std::move(input));
  return out;
}

// A step's passes, cut or (two cuts) whole. Not movable: passes point at the rest.
struct Passes {
  Passes(const Feeds& whole, const Cuts& cuts) : pass(whole, true) {
    const auto memory = std::make_shared<parallel::SliceMemory>();
    for (size_t i = 0; i + 1 < cuts.size() && cuts.size() > 2; ++i) {
      if (i == 0) of.emplace_back();
      feeds.push_back(model::slice_feeds(whole, cuts[i], cuts[i + 1]));
      slices.push_back({memory, static_cast<int64_t>(i), cuts[i], cuts[i + 1], cuts.back()});
      passes.emplace_back(feeds.back(), true).slice = &slices.back();
      of.back().push_back(&passes.back());
    }
  }
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;
  Pass pass;
  std::deque<Feeds> feeds;
  std::deque<parallel::Slice> slices;
  std::deque<Pass> passes;
  std::vector<Pipeline::Passes> of;
};

void step(Pipeline& pipeline, const Passes& passes) {
  pipeline.forward_backward(
      {&passes.pass},
      [](int, const parallel::ForwardPass& forward) {
        return forward.has("loss.reader")
                   ? parallel::WireValues{{"loss.reader", at::ones({}, at::kDouble)}}
                   : parallel::WireValues();
      },
      passes.of);
}

// Encoders, scores and the decoder's embedding are with the first layers, head and loss with the
// last.
parallel::Placement decoder_in_equal_parts(const model::Model& model, int64_t layers, int ranks) {
  std::vector<int> stage_of, rank_of;
  int stage = 0;
  for (const auto& block : model.blocks()) {
    if (block->name().rfind("dec.layer.", 0) == 0)
      stage = static_cast<int>(std::stoll(block->name().substr(10)) * ranks / layers);
    stage_of.push_back(stage);
  }
  for (int r = 0; r < ranks; ++r) rank_of.push_back(r);
  return parallel::place(model.blocks(), std::move(stage_of), std::move(rank_of), ranks);
}

// The shortest of some runs of each slice of one rank's layers, forward and backward.
parallel::testing::StageTime measured_stage(const Options& o, const Feeds& whole) {
  at::set_num_threads(1);
  const int64_t layers = o.layers / o.ranks;
  model::Model model(config_of(o, layers));
  model.materialise(at::kFloat, at::kCPU, 1);
  Pipeline pipeline(model.blocks(), decoder_in_equal_parts(model, layers, 1), "1f1b", nullptr);
  std::vector<parallel::SliceTime> both;
  double forward_s = 0.0, all_s = 0.0;
  for (const int64_t slices : {2, 3, 4, 8, 16, 32}) {
    const Cuts cuts = parallel::testing::equal_cuts(o.tokens, slices);
    std::map<int, std::pair<double, double>> least;  // by slice
    for (int64_t r = 0; r <= o.repeats; ++r) {
      step(pipeline, Passes(whole, cuts));
      for (const parallel::TimedAction& timed : pipeline.timeline()) {
        if (!timed.sliced || r == 0) continue;
        auto& [forward, backward] =
            least.emplace(timed.action.microbatch, std::pair{1e9, 1e9}).first->second;
        double& which = timed.action.work == parallel::Work::kForward ? forward : backward;
        which = std::min(which, timed.end_s - timed.start_s);
      }
    }
    for (const auto& [i, time] : least) {
      both.push_back(
          {cuts[i + 1] - cuts[i], static_cast<double>(cuts[i]), time.first + time.second});
      forward_s += time.first;
      all_s += time.first + time.second;
    }
  }
  const parallel::testing::StageTime out{parallel::fit_slice_model(both), forward_s / all_s};
  for (const parallel::SliceTime& m : both) {
    if (m.context == 0 ||
        m.context + static_cast<double>(m.tokens) == static_cast<double>(o.tokens)) {
      std::cout << format("  {:5} tokens after {:5.0f}: {:8.2f} ms, the model says {:8.2f}\n",
                          m.tokens, m.context, 1e3 * m.seconds,
                          1e3 * out.both(m.tokens, m.context));
    }
  }
  std::cout << format(
      "{} layers: a {:.3g} s, b {:.3g} s a token, g {:.3g} s a pair; {:.0f} % of it forward\n",
      layers, out.both.a, out.both.b, out.both.g, 100 * out.forward_share);
  return out;
}

// Real layers, ranks that are threads. Each runs the step of each cut in turn, so that a machine
// that slows down does so for all.
std::vector<double> real_steps_s(const Options& o, const Feeds& whole,
                                 const std::vector<Cuts>& cuts) {
  std::vector<std::vector<double>> seconds(cuts.size());
  parallel::testing::on_ranks(
      static_cast<int>(o.ranks), [&](const std::shared_ptr<parallel::Communicator>& pp, int rank) {
        model::Model model(config_of(o, o.layers));
        parallel::Placement placement =
            decoder_in_equal_parts(model, o.layers, static_cast<int>(o.ranks));
        model.materialise(at::kFloat, at::kCPU, 1);
        Pipeline pipeline(model.blocks(), std::move(placement), "1f1b", pp);
        for (int64_t r = 0; r <= o.repeats; ++r) {
          for (size_t c = 0; c < cuts.size(); ++c) {
            const Passes passes(whole, cuts[c]);
            pp->barrier();
            const double start = now_s();
            step(pipeline, passes);
            pp->barrier();
            if (rank == 0 && r > 0) seconds[c].push_back(now_s() - start);
          }
        }
      });
  std::vector<double> out;
  for (const auto& of : seconds) out.push_back(median(of));
  return out;
}

int run(const Options& o) {
  CONTEXTURE_USAGE_REQUIRE(
      o.ranks > 1 && o.layers % o.ranks == 0 && o.width % 32 == 0 && o.tokens > 128,
      "--ranks must be two or more and divide --layers, 32 must divide ",
      "--width, and --tokens be more than 128.");
  const Feeds whole = model::make_feeds(config_of(o, o.layers), one_input(o), at::kFloat, at::kCPU);
  const int ranks = static_cast<int>(o.ranks);
  const parallel::testing::StageTime stage = measured_stage(o, whole);
  const parallel::SlicePlan plan = parallel::plan_token_slices(o.tokens, ranks, stage.both, 0.0,
                                                               std::max<int64_t>(1, o.tokens / 64));
  std::vector<std::pair<std::string, Cuts>> cuts{{"whole", {0, o.tokens}}};
  for (const int64_t n : {2, 4, 8, 16, 32})
    cuts.emplace_back(format("{} equal", n), parallel::testing::equal_cuts(o.tokens, n));
  cuts.emplace_back(format("{} planned", plan.lengths.size()), parallel::testing::cuts_of(plan));
  std::cout << "planned lengths:";
  for (const int64_t length : plan.lengths) std::cout << " " << length;
  std::cout << "\n";
  std::vector<Cuts> only;
  for (const auto& [name, c] : cuts) only.push_back(c);
  const std::vector<double> real = o.real ? real_steps_s(o, whole, only) : std::vector<double>();
  double first_s = 0.0, first_predicted_s = 0.0;
  for (size_t c = 0; c < cuts.size(); ++c) {
    const double predicted_s = parallel::testing::simulated_step_s(ranks, 1, cuts[c].second, stage);
    const double s =
        o.real ? real[c] : parallel::testing::slept_step_s(ranks, 1, cuts[c].second, stage);
    if (c == 0) {
      first_s = s;
      first_predicted_s = predicted_s;
    }
    std::cout << format(
        "{:<12} {:8.3f} s, {:5.2f} times as fast as whole; simulated {:8.3f} s, {:5.2f}\n",
        cuts[c].first, s, first_s / s, predicted_s, first_predicted_s / predicted_s);
  }
  return 0;
}

}  // namespace
}  // namespace contexture

int main(int argc, char** argv) {
  contexture::Options o;
  const std::map<std::string, int64_t*> numbers{{"--tokens", &o.tokens},
                                                {"--width", &o.width},
                                                {"--layers", &o.layers},
                                                {"--ranks", &o.ranks},
                                                {"--repeats", &o.repeats}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto number = numbers.find(name);
    if (name == "--real") {
      o.real = true;
    } else if (number != numbers.end() && i + 1 < argc) {
      *number->second = std::stoll(argv[++i]);
    } else {
      std::cerr << "usage: slices_bench [--tokens N] [--width N] [--layers N] [--ranks N] "
                   "[--repeats N] [--real]\n";
      return 2;
    }
  }
  try {
    return contexture::run(o);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
