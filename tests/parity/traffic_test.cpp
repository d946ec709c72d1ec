// What a layout is predicted to send is what its communicators count, to the byte, and to within
// headers what the network carries.
#include "parallel/traffic.h"

#include <gtest/gtest.h>

#include "layouts.h"
#include "train/model_trace.h"
#include "train/prepared.h"

namespace contexture::train {
namespace {

using parallel::Traffic;
using Links = std::map<std::pair<int, int>, Traffic>;

struct Sent {
  Links predicted, counted;  // of the first replica's pipeline
  double loss = 0.0;
};

// One step's forward and backward of each microbatch, of real samples that read what the index
// found.
Sent one_step(const RunConfig& config) {
  Sent out;
  std::mutex mutex;
  on_threads(config.parallel, [&](const parallel::Groups& groups) {
    Prepared made(config, 0, groups);
    Session& session = made.session;
    const Assembled assembled = made.assembled();
    std::vector<parallel::Feeds> feeds;
    std::vector<parallel::Pass> passes;
    std::vector<const parallel::Pass*> pointers;
    for (const model::Microbatch& batch : assembled.batches) {
      feeds.push_back(model::make_feeds(config.model, batch, session.model().dtype(), at::kCPU));
    }
    for (const parallel::Feeds& f : feeds)
      passes.emplace_back(f, /*training=*/true, config.run.seed, made.step.step);
    for (const parallel::Pass& pass : passes) pointers.push_back(&pass);
    parallel::Pipeline& pipeline = session.engine().pipeline();
    const std::map<int, Traffic> before = groups.pp ? groups.pp->links() : std::map<int, Traffic>();
    double loss = 0.0;
    session.engine().sharding().begin_step();
    pipeline.forward_backward(pointers, [&](int, const parallel::ForwardPass& forward) {
      parallel::WireValues roots;
      if (forward.has("loss.reader")) {
        loss += forward.wire("loss.reader").item<double>();
        roots["loss.reader"] = at::ones({}, at::kDouble);
      }
      return roots;
    });
    session.engine().sharding().finish();
    const std::lock_guard lock(mutex);
    if (groups.tp_rank() == 0) out.loss += loss;
    if (groups.dp_rank() != 0 || groups.tp_rank() != 0 || !groups.pp) return;
    for (const auto& [peer, after] : groups.pp->links()) {
      const auto known = before.find(peer);
      const Traffic start = known == before.end() ? Traffic() : known->second;
      if (after.messages > start.messages) {
        out.counted[{groups.pp_rank(), peer}] = {
            after.calls - start.calls, after.messages - start.messages, after.bytes - start.bytes};
      }
    }
    out.predicted = parallel::pipeline_traffic(
        session.model().blocks(), placement_of(config, session.model(), groups), pointers);
  });
  return out;
}

std::string text(const Links& links) {
  std::string out;
  for (const auto& [ranks, traffic] : links) {
    out += concat(ranks.first, "->", ranks.second, ": ", traffic.messages, " messages of ",
                  traffic.bytes, " bytes; ");
  }
  return out;
}

TEST(PipelineTraffic, IsPredictedToTheByte) {
  const TinyWorld world;
  std::map<std::string, double> want_loss;
  for (const std::string fusion : {"memory", "fid", "prefix"}) {
    for (const std::string partitioner :
         {"uniform", "parameters", "exact", "linear", "tree", "pipedream"}) {
      for (const auto& [dp, pp, tp] :
           std::vector<std::array<int64_t, 3>>{{1, 2, 1}, {1, 4, 1}, {2, 2, 1}, {1, 2, 2}}) {
        SCOPED_TRACE(concat(fusion, " ", partitioner, " dp ", dp, " pp ", pp, " tp ", tp));
        RunConfig config = tiny(world);
        config.model.fusion = fusion;
        config.parallel.dp = dp;
        config.parallel.pp = pp;
        config.parallel.tp = tp;
        config.parallel.microbatches = 3;
        config.parallel.partitioner = partitioner;
        config.parallel.schedule = "list";
        const Sent sent = one_step(config);
        EXPECT_GT(sent.predicted.size(), 1u);
        EXPECT_EQ(text(sent.predicted), text(sent.counted));
        if (want_loss.count(fusion) == 0) want_loss[fusion] = sent.loss;
        EXPECT_NEAR(sent.loss, want_loss[fusion], 1e-10 * sent.loss);  // fp64 sums in another order
      }
    }
  }
}

}  // namespace
}  // namespace contexture::train
