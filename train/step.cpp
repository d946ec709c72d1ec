// B inputs of the step, U documents (once per microbatch that reads them), E embedding width.
#include "train/step.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>

#include "parallel/device.h"
#include "parallel/slice.h"

namespace contexture::train {

bool encodes_documents(const parallel::Block& block) { return block.name().rfind("doc.", 0) == 0; }

Share share_of(const RunConfig& config, const parallel::Groups& groups) {
  return {groups.dp_rank(), groups.dp_size(), config.parallel.microbatches};
}

Share prepared_share(const RunConfig& config, const parallel::Groups& groups) {
  const Share share = share_of(config, groups);
  return config.data.assembly == "grouped" ? Share{0, 1, share.total()} : share;
}

namespace {

// The contrastive loss sees each distinct document of the step once: the first microbatch that
// encodes it receives its gradient, so that the sum is the same however the step is cut. Picture
// pairs are candidates of their own.
struct Candidate {
  int64_t row;  // of the corpus; negative: no document
  bool pair;    // a pair's picture, perhaps of a made-up identity
  size_t microbatch;
  int64_t index;  // among the microbatch's documents
};

// group: microbatches whose documents the first of them lists.
std::vector<Candidate> candidates_of(const std::vector<std::vector<int64_t>>& rows,
                                     const PreparedStep& step, size_t group) {
  std::map<int64_t, Candidate>
      read;  // in row order: the order of summation does not depend on the cut
  for (size_t m = 0; m < rows.size(); ++m) {
    for (size_t u = 0; u < rows[m].size(); ++u)
      read.emplace(rows[m][u], Candidate{rows[m][u], false, m, static_cast<int64_t>(u)});
  }
  std::vector<Candidate> out;
  for (const auto& [row, candidate] : read) out.push_back(candidate);
  std::vector<int64_t> next;
  for (const auto& m : rows) next.push_back(static_cast<int64_t>(m.size()));
  for (size_t p = 0; p < step.pairs.size(); ++p) {
    const size_t m = p % rows.size() / group * group;
    out.push_back({step.pairs[p].row, true, m, next[m]++});
  }
  return out;
}

// Queries of the global batch in microbatch order: each microbatch's inputs, then its pairs.
struct Query {
  std::vector<int64_t> gold;
  int64_t pair;  // index of the step's pair, or -1
  size_t input;  // of the step, where it is no pair
};

std::vector<Query> queries_of(const PreparedStep& step, size_t microbatches) {
  std::vector<Query> out;
  for (size_t m = 0; m < microbatches; ++m) {
    const auto [begin, end] =
        Share::run(step.inputs.size(), static_cast<int64_t>(m), static_cast<int64_t>(microbatches));
    for (size_t i = begin; i < end; ++i) out.push_back({step.inputs[i].gold, -1, i});
    for (size_t p = m; p < step.pairs.size(); p += microbatches)
      out.push_back({{step.pairs[p].row}, static_cast<int64_t>(p), 0});
  }
  return out;
}

// Embeddings of all microbatches to gradients at their embedding wires.
struct ContrastiveGradients {
  double loss = 0.0;
  std::vector<at::Tensor> query, doc;  // per microbatch
};

ContrastiveGradients contrast(const RunConfig& config, const PreparedStep& step,
                              const Assembled& assembled,
                              const std::vector<std::vector<int64_t>>& rows,
                              const std::vector<at::Tensor>& query,
                              const std::vector<at::Tensor>& doc) {
  const size_t group = config.parallel.encode_once == "replica"
                           ? static_cast<size_t>(config.parallel.microbatches)
                           : 1;
  const std::vector<Candidate> candidates = candidates_of(rows, step, group);
  const size_t first_pair = candidates.size() - step.pairs.size();
  std::vector<at::Tensor> picked;
  for (const Candidate& c : candidates) picked.push_back(doc[c.microbatch].select(0, c.index));
  std::vector<std::vector<int64_t>> positives, masked;
  for (const Query& q : queries_of(step, rows.size())) {
    positives.emplace_back();
    masked.emplace_back();
    for (size_t c = 0; c < candidates.size(); ++c) {
      const bool same = std::find(q.gold.begin(), q.gold.end(), candidates[c].row) != q.gold.end();
      const bool positive =
          q.pair < 0 ? same && !candidates[c].pair : c == first_pair + static_cast<size_t>(q.pair);
      if (positive) {
        positives.back().push_back(static_cast<int64_t>(c));
      } else if (same || (assembled.holds_answer && q.pair < 0 && candidates[c].row >= 0 &&
                          assembled.holds_answer(q.input, candidates[c].row))) {
        masked.back().push_back(
            static_cast<int64_t>(c));  // the same identity in another guise is no negative
      }
    }
  }
  const auto result =
      retriever::contrastive(at::cat(query), at::stack(picked), positives, masked,
                             config.model.score_temperature, config.retriever.contrastive_weight());
  ContrastiveGradients out;
  out.loss = result.loss;
  int64_t begin = 0;
  for (size_t m = 0; m < rows.size(); ++m) {
    out.query.push_back(result.query_grad_BE.narrow(0, begin, query[m].size(0)));
    begin += query[m].size(0);
    out.doc.push_back(at::zeros_like(doc[m]));
  }
  for (size_t c = 0; c < candidates.size(); ++c) {
    out.doc[candidates[c].microbatch]
        .select(0, candidates[c].index)
        .copy_(result.doc_grad_UE.select(0, static_cast<int64_t>(c)));
  }
  return out;
}

// What all replicas' microbatches came to in phase one, in global order.
struct Gathered {
  std::vector<std::vector<int64_t>> rows;
  std::vector<at::Tensor> query, doc;
};

Gathered gather(const parallel::Engine& engine, const Assembled& assembled,
                const std::vector<at::Tensor>& query, const std::vector<at::Tensor>& doc) {
  if (engine.groups().dp == nullptr) return {assembled.rows, query, doc};
  std::vector<int64_t> counts, rows;
  for (size_t m = 0; m < assembled.rows.size(); ++m) {
    for (const int64_t n :
         {static_cast<int64_t>(assembled.rows[m].size()), query[m].size(0), doc[m].size(0)})
      counts.push_back(n);
    rows.insert(rows.end(), assembled.rows[m].begin(), assembled.rows[m].end());
  }
  const auto column = [](const std::vector<int64_t>& v) {
    return at::tensor(at::ArrayRef<int64_t>(v), at::kLong).view({-1, 1});
  };
  const at::Tensor all_counts = engine.gather_rows(column(counts)),
                   all_rows = engine.gather_rows(column(rows));
  const at::Tensor all_query = engine.gather_rows(at::cat(query)),
                   all_doc = engine.gather_rows(at::cat(doc));
  Gathered out;
  int64_t row = 0, q = 0, d = 0;
  for (int64_t m = 0; m < all_counts.size(0) / 3; ++m) {
    const auto count = [&](int64_t which) { return all_counts[3 * m + which].item<int64_t>(); };
    out.rows.emplace_back();
    for (int64_t r = 0; r < count(0); ++r)
      out.rows.back().push_back(all_rows[row + r].item<int64_t>());
    out.query.push_back(all_query.narrow(0, q, count(1)));
    out.doc.push_back(all_doc.narrow(0, d, count(2)));
    row += count(0);
    q += count(1);
    d += count(2);
  }
  return out;
}

// Messages between pipeline ranks since the start, as this rank's counters have them.
int64_t bytes_sent(const parallel::Groups& groups) {
  if (groups.pp == nullptr) return 0;
  const auto traffic = groups.pp->traffic();
  const auto sends = traffic.find("send");
  return sends == traffic.end() ? 0 : sends->second.bytes;
}

// Sums of what each rank counted, on every rank. Only one rank counts each thing.
void sum_stats(const parallel::Engine& engine, StepStats& stats) {
  if (engine.groups().world == nullptr) return;
  const at::Tensor sums = at::tensor(
      {stats.loss, static_cast<double>(stats.target_tokens), static_cast<double>(stats.rows),
       static_cast<double>(stats.slots), static_cast<double>(stats.distinct),
       static_cast<double>(stats.encoded), static_cast<double>(stats.sent_bytes),
       static_cast<double>(stats.first_hits), stats.flops},
      at::kDouble);
  engine.groups().world->all_reduce(sums).wait();
  const double* s = sums.data_ptr<double>();
  const auto whole = [](double v) { return static_cast<int64_t>(std::llround(v)); };
  stats.loss = s[0];
  stats.target_tokens = whole(s[1]);
  stats.rows = whole(s[2]);
  stats.slots = whole(s[3]);
  stats.distinct = whole(s[4]);
  stats.encoded = whole(s[5]);
  stats.sent_bytes = whole(s[6]);
  stats.first_hits = whole(s[7]);
  stats.flops = s[8];
}

// Each microbatch's token slices, or the microbatches of a replica that encodes its documents once.
// Not movable: passes point at the rest.
struct Slices {
  std::deque<parallel::Feeds> feeds;
  std::deque<parallel::Slice> slices;
  std::deque<parallel::Pass> passes;
  std::vector<parallel::Pipeline::Passes> of;  // [microbatch]

  Slices() = default;
  Slices(const Slices&) = delete;
  Slices& operator=(const Slices&) = delete;
  void cut(const parallel::Feeds& whole, const parallel::Pass& pass,
           const std::vector<int64_t>& cuts) {
    const auto memory = std::make_shared<parallel::SliceMemory>();
    of.emplace_back();
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      feeds.push_back(model::slice_feeds(whole, cuts[i], cuts[i + 1]));
      add(feeds.back(), pass, {memory, static_cast<int64_t>(i), cuts[i], cuts[i + 1], cuts.back()});
    }
  }
  void join(const std::vector<parallel::Feeds>& microbatches, const parallel::Pass& pass) {
    const auto memory = std::make_shared<parallel::SliceMemory>();
    of.emplace_back();
    for (size_t m = 0; m < microbatches.size(); ++m) {
      const int64_t rows = microbatches[m].at("dec.token").numel();
      add(microbatches[m], pass, {memory, static_cast<int64_t>(m), 0, rows, rows, /*whole=*/true});
    }
  }

 private:
  void add(const parallel::Feeds& mine, const parallel::Pass& like, parallel::Slice which) {
    slices.push_back(std::move(which));
    parallel::Pass& pass = passes.emplace_back(mine, like.training, like.seed, like.step);
    pass.device = like.device;
    pass.slice = &slices.back();
    of.back().push_back(&pass);
  }
};

// How many keys each decoder row attends to in its own sequence, per microbatch.
std::vector<std::vector<int64_t>> keys_of(const std::vector<parallel::Feeds>& feeds) {
  std::vector<std::vector<int64_t>> out;
  for (const parallel::Feeds& f : feeds) {
    const at::Tensor keys = f.at("dec.position").cpu() + 1;
    out.emplace_back(keys.data_ptr<int64_t>(), keys.data_ptr<int64_t>() + keys.numel());
  }
  return out;
}

}  // namespace

StepStats forward_backward(const RunConfig& config, const model::Model& model,
                           parallel::Engine& engine, const PreparedStep& step,
                           const Assembled& assembled, const Lookup* lookup, double loss_scale) {
  StepStats stats;
  const auto& batches = assembled.batches;
  const parallel::Groups& groups = engine.groups();
  const int64_t sent_before = bytes_sent(groups);
  engine.sharding().begin_step();
  std::vector<parallel::Feeds> feeds;
  std::vector<parallel::Pass> passes;
  std::vector<const parallel::Pass*> pass_pointers;
  for (const model::Microbatch& batch : batches)
    feeds.push_back(model::make_feeds(config.model, batch, model.dtype(), model.device()));
  passes.reserve(feeds.size());
  for (const parallel::Feeds& f : feeds) {
    passes.emplace_back(f, /*training=*/true, config.run.seed, step.step).device = model.device();
    pass_pointers.push_back(&passes.back());
  }
  const bool once = config.parallel.encode_once == "replica" && batches.size() > 1;
  Slices slices;
  if (once) {
    for (size_t m = 1; m < feeds.size(); ++m) {  // the same documents: one copy of them is enough
      for (const auto& [name, feed] : feeds[0]) {
        if (name.rfind("doc.", 0) == 0) feeds[m][name] = feed;
      }
    }
    slices.join(feeds, passes[0]);
  }
  for (size_t m = 0; m < feeds.size() && engine.slicer().count() > 1; ++m) {
    slices.cut(feeds[m], passes[m], engine.slicer().cuts(feeds[m].at("dec.token").numel()));
  }
  const bool contrastive = config.retriever.contrastive_weight() > 0 &&
                           (config.retriever.documents > 0 || !step.pairs.empty());
  const double reader_weight = config.retriever.weight("reader");
  const std::vector<std::string> objectives = model.objectives().used();
  // Sums over microbatches stay on the device until the step is done.
  const auto doubles = at::TensorOptions().dtype(at::kDouble).device(model.device());
  at::Tensor objective_sums = at::zeros({static_cast<int64_t>(objectives.size())}, doubles);
  const at::Tensor loss_sum = at::zeros({}, doubles);
  ContrastiveGradients gradients;
  // A step of one microbatch in one process takes the embeddings from its own forward pass.
  const bool at_once = contrastive && assembled.share.total() == 1 && groups.pp == nullptr;
  if (contrastive && !at_once) {
    std::vector<at::Tensor> query, doc;
    const auto embed = [&](const parallel::Pipeline::Passes& which,
                           const std::vector<std::string>& wires) {
      for (parallel::WireValues& values : engine.pipeline().forward(which, wires)) {
        for (const std::string& wire : wires)
          (wire == "doc.embedding" ? doc : query).push_back(values.at(wire).cpu());
      }
    };
    if (once) {
      embed(pass_pointers, {"query.embedding"});
      embed({pass_pointers[0]}, {"doc.embedding"});
      doc.resize(batches.size(), doc[0].narrow(0, 0, 0));
    } else {
      embed(pass_pointers, {"query.embedding", "doc.embedding"});
    }
    const Gathered all = gather(engine, assembled, query, doc);
    gradients = contrast(config, step, assembled, all.rows, all.query, all.doc);
  }
  const auto roots = [&](int m, const parallel::ForwardPass& forward) {
    parallel::WireValues out;
    if (forward.has("loss.reader")) {
      if (groups.tp_rank() == 0) loss_sum.add_(forward.wire("loss.reader"));
      if (reader_weight > 0) out["loss.reader"] = at::full({}, reader_weight * loss_scale, doubles);
    }
    if (forward.has("loss.objectives")) {
      if (groups.tp_rank() == 0) objective_sums.add_(forward.wire("objective.values"));
      out["loss.objectives"] = at::full({}, loss_scale, doubles);
    }
    if (!contrastive) return out;
    if (at_once) {
      gradients =
          contrast(config, step, assembled, assembled.rows, {forward.wire("query.embedding").cpu()},
                   {forward.wire("doc.embedding").cpu()});
    }
    const auto scaled = [&](const at::Tensor& gradient) {
      return parallel::to_device(loss_scale == 1.0 ? gradient : gradient * loss_scale,
                                 model.device());
    };
    if (forward.has("query.embedding"))
      out["query.embedding"] = scaled(gradients.query.at(assembled.share.first() + m));
    if (forward.has("doc.embedding"))
      out["doc.embedding"] = scaled(gradients.doc.at(assembled.share.first() + m));
    return out;
  };
  engine.pipeline().set_exact_times(engine.slicer().measuring() ||
                                    step.step + 1 == config.parallel.timeline_step);
  engine.pipeline().forward_backward(
      once ? parallel::Pipeline::Passes{pass_pointers[0]} : pass_pointers, roots, slices.of);
  if (engine.slicer().measuring())
    engine.slicer().observe(engine.pipeline().timeline(), keys_of(feeds));
  if (groups.world) groups.world->set_phase("all-reduce");
  engine.sharding().finish();
  stats.loss = loss_sum.item<double>();
  objective_sums = objective_sums.cpu();
  stats.sent_bytes = bytes_sent(groups) - sent_before;
  if (groups.first_of_replica()) {
    std::set<int64_t> distinct;
    for (const auto& rows : assembled.rows) distinct.insert(rows.begin(), rows.end());
    stats.distinct = static_cast<int64_t>(distinct.size());
    for (size_t m = 0; m < batches.size(); ++m) {
      stats.target_tokens += batches[m].target_tokens();
      stats.rows += batches[m].rows(config.model);
      for (const char* feed : {"doc.token", "doc.text.token"}) {
        if (once && m > 0 && feeds[0].count(feed) != 0) stats.rows -= feeds[0].at(feed).numel();
      }
      stats.encoded += static_cast<int64_t>(assembled.rows[m].size());
      for (const auto& block : model.blocks()) {
        if (!once || m == 0 || !encodes_documents(*block))
          stats.flops += 3 * block->forward_flops(once ? *slices.of[0][m] : passes[m]);
      }
      for (const model::Input& in : batches[m].inputs)
        stats.slots += static_cast<int64_t>(in.documents.size());
    }
    for (size_t i = 0; lookup != nullptr && i < step.inputs.size(); ++i) {
      const auto& gold = step.inputs[i].gold;
      const auto& ranking = lookup->rankings[i];
      stats.first_hits +=
          !ranking.empty() && std::find(gold.begin(), gold.end(), ranking[0]) != gold.end() ? 1 : 0;
    }
  }
  sum_stats(engine, stats);
  if (groups.world != nullptr && !objectives.empty())
    groups.world->all_reduce(objective_sums).wait();
  for (size_t o = 0; o < objectives.size(); ++o)
    stats.objectives[objectives[o]] = objective_sums.data_ptr<double>()[o];
  // Without a reader of all documents at once, the reader's loss is that of the marginals.
  for (const char* name : {"realm", "rag_sequence", "rag_token"}) {
    if (reader_weight == 0 && stats.objectives.count(name) != 0)
      stats.loss = stats.objectives.at(name);
  }
  stats.contrastive = gradients.loss;
  return stats;
}

}  // namespace contexture::train
