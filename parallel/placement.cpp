#include "parallel/placement.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "parallel/chain_planners.h"

namespace contexture::parallel {

std::vector<int> Placement::blocks_of(int stage) const {
  std::vector<int> out;
  for (size_t b = 0; b < stage_of.size(); ++b) {
    if (stage_of[b] == stage) out.push_back(static_cast<int>(b));
  }
  return out;
}

std::vector<int> Placement::owners(const BlockList& blocks, const Parameter& parameter) const {
  std::set<int> ranks;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto& used = blocks[b]->parameters();
    if (std::find(used.begin(), used.end(), &parameter) != used.end())
      ranks.insert(graph.rank_of[stage_of[b]]);
  }
  return {ranks.begin(), ranks.end()};
}

Placement place(const BlockList& blocks, std::vector<int> stage_of, std::vector<int> rank_of,
                int num_ranks) {
  CONTEXTURE_USAGE_REQUIRE(stage_of.size() == blocks.size(), "a placement of ", stage_of.size(),
                           " blocks for a model of ", blocks.size());
  Placement out{std::move(stage_of),
                {static_cast<int>(rank_of.size()), std::move(rank_of), {}, num_ranks}};
  std::vector<int> blocks_in(out.graph.num_stages, 0);
  for (const int s : out.stage_of) {
    CONTEXTURE_USAGE_REQUIRE(s >= 0 && s < out.graph.num_stages, "stage ", s, " of ",
                             out.graph.num_stages);
    ++blocks_in[s];
  }
  for (int s = 0; s < out.graph.num_stages; ++s) {
    CONTEXTURE_USAGE_REQUIRE(blocks_in[s] > 0, "stage ", s, " has no block");
    CONTEXTURE_USAGE_REQUIRE(out.graph.rank_of[s] >= 0 && out.graph.rank_of[s] < num_ranks,
                             "stage ", s, " is on rank ", out.graph.rank_of[s], " of ", num_ranks);
  }
  std::set<std::pair<int, int>> edges;
  for (const Wire& wire : wires_of(blocks)) {
    const int from = out.stage_of[wire.producer];
    for (const int reader : wire.readers) {
      const int to = out.stage_of[reader];
      CONTEXTURE_USAGE_REQUIRE(from <= to, "wire '", wire.name, "' goes from stage ", from,
                               " back to stage ", to,
                               ". Number the stages so that every wire goes forward.");
      if (from != to) edges.emplace(from, to);
    }
  }
  out.graph.edges.assign(edges.begin(), edges.end());
  return out;
}

namespace {

// Moves every block that uses an already placed parameter to that parameter's rank, and numbers the
// resulting runs of consecutive blocks on one rank as stages.
Placement colocated(const BlockList& blocks, std::vector<int> rank_of_block, int num_ranks) {
  std::map<const Parameter*, int> home;
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (const Parameter* p : blocks[b]->parameters()) {
      const auto known = home.find(p);
      if (known != home.end()) rank_of_block[b] = known->second;
    }
    for (const Parameter* p : blocks[b]->parameters()) home.emplace(p, rank_of_block[b]);
  }
  std::vector<int> stage_of, rank_of;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (b == 0 || rank_of_block[b] != rank_of_block[b - 1]) rank_of.push_back(rank_of_block[b]);
    stage_of.push_back(static_cast<int>(rank_of.size()) - 1);
  }
  return place(blocks, std::move(stage_of), std::move(rank_of), num_ranks);
}

}  // namespace

Placement place_in_order(const BlockList& blocks, const std::string& by, int num_ranks, int chunks,
                         bool colocate) {
  const int stages = num_ranks * chunks, n = static_cast<int>(blocks.size());
  CONTEXTURE_USAGE_REQUIRE(stages <= n, "parallel.pp=", num_ranks, " with parallel.chunks=", chunks,
                           " makes ", stages, " stages, but the model has only ", n,
                           " blocks. Use at most ", n / chunks, " pipeline ranks.");
  CONTEXTURE_USAGE_REQUIRE(by == "uniform" || by == "parameters", "parallel.partitioner=", by,
                           " is not known. Use uniform or parameters.");
  std::vector<double> weights(n, 1.0);
  if (by == "parameters") {
    std::set<const Parameter*> counted;
    for (int b = 0; b < n; ++b) {
      weights[b] = 0.0;
      for (const Parameter* p : blocks[b]->parameters()) {
        if (counted.insert(p).second) weights[b] += static_cast<double>(p->numel());
      }
    }
  }
  const std::vector<int> cuts = balance_chain(weights, stages);
  std::vector<int> stage_of;
  for (int s = 0; s < stages; ++s) stage_of.insert(stage_of.end(), cuts[s + 1] - cuts[s], s);
  if (colocate) {
    for (int& s : stage_of) s %= num_ranks;
    return colocated(blocks, std::move(stage_of), num_ranks);
  }
  std::vector<int> rank_of;
  for (int s = 0; s < stages; ++s) rank_of.push_back(s % num_ranks);
  return place(blocks, std::move(stage_of), std::move(rank_of), num_ranks);
}

}  // namespace contexture::parallel
