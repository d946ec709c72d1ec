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

using Replica = std::pair<int, int>;  // dp and tp coordinate: whose pipeline it is

struct Sent {
  std::map<Replica, Links> predicted, counted;
  // Over replicas, by world rank: bytes of gradients handed in, by operation.
  std::map<int, std::map<std::string, int64_t>> predicted_gradients, counted_gradients;
  double loss = 0.0;
};

std::map<std::string, int64_t> bytes_of(const std::shared_ptr<parallel::Communicator>& group) {
  std::map<std::string, int64_t> out;
  if (!group) return out;
  for (const auto& [operation, traffic] : group->traffic()) out[operation] = traffic.bytes;
  return out;
}

// What a rank hands in of the parameters it has: all of them once a step, or, where gradients are
// kept in shares (ZeRO 2), once a microbatch; in shares of equal size, the last one filled up.
std::map<std::string, int64_t> gradients_of(const parallel::ParallelConfig& layout,
                                            const parallel::Engine& engine) {
  int64_t bytes = 0;
  for (const auto& p : engine.store().all()) {
    if (!p->trainable || !engine.owned(*p)) continue;
    const int64_t wide =
        static_cast<int64_t>(c10::elementSize(parallel::wide_dtype(p->value.scalar_type())));
    const int64_t share = (p->value.numel() + layout.dp - 1) / layout.dp;
    bytes += wide * (layout.zero == 0 ? p->value.numel() : share * layout.dp);
  }
  if (layout.zero == 0) return {{"all_reduce", bytes}};
  return {{"reduce_scatter", bytes * (layout.zero == 2 ? layout.microbatches : 1)}};
}

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
    const std::map<std::string, int64_t> reduced = bytes_of(groups.dp);
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
    if (groups.dp) {
      std::map<std::string, int64_t>& counted = out.counted_gradients[groups.rank()];
      for (const auto& [operation, bytes] : bytes_of(groups.dp)) {
        const auto known = reduced.find(operation);
        const int64_t start = known == reduced.end() ? 0 : known->second;
        if (bytes > start) counted[operation] = bytes - start;
      }
      out.predicted_gradients[groups.rank()] = gradients_of(config.parallel, session.engine());
    }
    if (!groups.pp) return;
    const Replica replica{groups.dp_rank(), groups.tp_rank()};
    for (const auto& [peer, after] : groups.pp->links()) {
      const auto known = before.find(peer);
      const Traffic start = known == before.end() ? Traffic() : known->second;
      if (after.messages > start.messages) {
        out.counted[replica][{groups.pp_rank(), peer}] = {
            after.calls - start.calls, after.messages - start.messages, after.bytes - start.bytes};
      }
    }
    out.predicted[replica] = parallel::pipeline_traffic(
        session.model().blocks(), placement_of(config, session.model(), groups), pointers);
  });
  return out;
}

std::string text(const std::map<Replica, Links>& replicas) {
  std::string out;
  for (const auto& [replica, links] : replicas) {
    out += concat("dp ", replica.first, " tp ", replica.second, ": ");
    for (const auto& [ranks, traffic] : links) {
      out += concat(ranks.first, "->", ranks.second, ": ", traffic.messages, " messages of ",
                    traffic.bytes, " bytes; ");
    }
  }
  return out;
}

// Every replica's pipeline, and in tensor parallelism each of its ranks'.
void expect_predicted(const Sent& sent, const parallel::ParallelConfig& layout) {
  ASSERT_EQ(sent.predicted.size(), static_cast<size_t>(layout.dp * layout.tp));
  for (const auto& [replica, links] : sent.predicted) EXPECT_GT(links.size(), 1u);
  EXPECT_EQ(text(sent.predicted), text(sent.counted));
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
        expect_predicted(sent, config.parallel);
        if (want_loss.count(fusion) == 0) want_loss[fusion] = sent.loss;
        EXPECT_NEAR(sent.loss, want_loss[fusion], 1e-10 * sent.loss);  // fp64 sums in another order
      }
    }
  }
}

TEST(GradientTraffic, OverReplicasIsPredictedToTheByte) {
  const TinyWorld world;
  for (const int64_t zero : {0, 1, 2}) {
    for (const std::string precision : {"fp64", "bf16"}) {
      for (const auto& [dp, pp, tp] :
           std::vector<std::array<int64_t, 3>>{{2, 1, 1}, {3, 1, 1}, {2, 2, 1}, {2, 1, 2}}) {
        SCOPED_TRACE(concat("ZeRO ", zero, " ", precision, " dp ", dp, " pp ", pp, " tp ", tp));
        RunConfig config = tiny(world, precision);
        config.parallel.dp = dp;
        config.parallel.pp = pp;
        config.parallel.tp = tp;
        config.parallel.zero = zero;
        config.parallel.microbatches = 2;
        const Sent sent = one_step(config);
        EXPECT_EQ(sent.counted_gradients.size(), static_cast<size_t>(dp * pp * tp));
        EXPECT_EQ(sent.predicted_gradients, sent.counted_gradients);
      }
    }
  }
}

// What is sent depends on where blocks are, not on the order of work.
TEST(PipelineTraffic, IsThatOfThePlacementUnderEverySchedule) {
  const TinyWorld world;
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zb_h1", "list"}) {
    for (const auto& [dp, pp, tp] : std::vector<std::array<int64_t, 3>>{{2, 2, 1}, {1, 4, 1}}) {
      SCOPED_TRACE(concat(schedule, " dp ", dp, " pp ", pp));
      RunConfig config = tiny(world);
      config.parallel.dp = dp;
      config.parallel.pp = pp;
      config.parallel.tp = tp;
      config.parallel.microbatches = 4;
      config.parallel.schedule = schedule;
      config.parallel.chunks = schedule == "interleaved" ? 2 : 1;
      config.validate();
      expect_predicted(one_step(config), config.parallel);
    }
  }
}

}  // namespace
}  // namespace contexture::train
