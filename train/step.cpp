// B inputs of the step, U documents (once per microbatch that reads them), E embedding width.
#include "train/step.h"

#include <algorithm>
#include <map>

#include "core/error.h"

namespace contexture::train {

Lookup look_up(const RunConfig& config, const model::Model& model, const retriever::Retriever& retriever,
               const PreparedStep& step) {
  Lookup out;
  std::vector<const model::Sequence*> queries;
  for (const PreparedInput& input : step.inputs) queries.push_back(&input.query);
  out.query_BE = model.embed("query", queries);
  const int64_t k = config.retriever.documents;
  int64_t most_gold = 0;
  for (const PreparedInput& input : step.inputs) most_gold = std::max<int64_t>(most_gold, static_cast<int64_t>(input.gold.size()));
  // Some more where held-out documents are passed over.
  const int64_t spare = step.held_out == nullptr ? 0 : std::min<int64_t>(8, static_cast<int64_t>(step.held_out->size()));
  out.rankings = retriever.search(out.query_BE, k == 0 ? 0 : k + most_gold + spare);
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    const std::vector<int64_t>& gold = step.inputs[i].gold;
    std::vector<int64_t> rows;
    if (config.retriever.gold && !gold.empty() && k > 0) rows.push_back(gold[0]);
    const size_t asked = config.retriever.group_lookup ? i - i % static_cast<size_t>(config.data.group_size) : i;
    for (const retriever::Hit& hit : out.rankings[asked]) {
      if (static_cast<int64_t>(rows.size()) >= k) break;
      if (step.held_out != nullptr && step.held_out->count(hit.row) != 0) continue;
      if (std::find(rows.begin(), rows.end(), hit.row) == rows.end()) rows.push_back(hit.row);
    }
    out.documents.push_back(std::move(rows));
  }
  return out;
}

double recall_at_1(const PreparedStep& step, const Lookup& lookup) {
  int64_t hits = 0;
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    if (lookup.rankings[i].empty()) continue;
    const auto& gold = step.inputs[i].gold;
    hits += std::find(gold.begin(), gold.end(), lookup.rankings[i][0].row) != gold.end() ? 1 : 0;
  }
  return static_cast<double>(hits) / static_cast<double>(std::max<size_t>(1, step.inputs.size()));
}

Assembled assemble(const RunConfig& config, const retriever::Documents& documents, const PreparedStep& step, const Lookup& lookup) {
  const size_t count = static_cast<size_t>(config.train.microbatches);
  const size_t each = step.inputs.size() / count;
  int64_t target_tokens = 0;
  for (const PreparedInput& input : step.inputs) target_tokens += static_cast<int64_t>(input.target.size());
  Assembled assembled{std::vector<model::Microbatch>(count), std::vector<std::vector<int64_t>>(count)};
  std::vector<model::Microbatch>& out = assembled.batches;
  for (size_t m = 0; m < count; ++m) {
    std::map<int64_t, int32_t> place;
    for (size_t i = m * each; i < (m + 1) * each; ++i) {
      const PreparedInput& prepared = step.inputs[i];
      model::Input input{prepared.query, prepared.prompt, prepared.target, {}};
      for (const int64_t row : lookup.documents[i]) {
        const auto [it, fresh] = place.emplace(row, static_cast<int32_t>(out[m].documents.size()));
        if (fresh) {
          const auto edited = step.edited.find(row);
          out[m].documents.push_back(edited != step.edited.end() ? edited->second : documents.sequence(row));
          assembled.rows[m].push_back(row);
        }
        input.documents.push_back(it->second);
      }
      out[m].inputs.push_back(std::move(input));
    }
    for (size_t p = m; p < step.pairs.size(); p += count) {
      out[m].documents.push_back(step.pairs[p].document);
      out[m].extra_queries.push_back(step.pairs[p].query);
    }
    out[m].global_target_tokens = std::max<int64_t>(1, target_tokens);
    out[m].attentive_weight = config.retriever.frozen ? 0.0 : config.retriever.attentive_weight;
  }
  return assembled;
}

namespace {

// The contrastive loss sees each distinct document of the step once: the first microbatch that encodes it receives its
// gradient, so that the sum is the same however the step is cut. Picture pairs are candidates of their own.
struct Candidate {
  int64_t row;       // of the corpus; negative: no document
  bool pair;         // a pair's picture, perhaps of a made-up identity
  size_t microbatch;
  int64_t index;     // among the microbatch's documents
};

std::vector<Candidate> candidates_of(const std::vector<std::vector<int64_t>>& rows, const PreparedStep& step) {
  std::map<int64_t, Candidate> read;  // in row order: the order of summation does not depend on the cut
  for (size_t m = 0; m < rows.size(); ++m) {
    for (size_t u = 0; u < rows[m].size(); ++u) read.emplace(rows[m][u], Candidate{rows[m][u], false, m, static_cast<int64_t>(u)});
  }
  std::vector<Candidate> out;
  for (const auto& [row, candidate] : read) out.push_back(candidate);
  std::vector<int64_t> next;
  for (const auto& m : rows) next.push_back(static_cast<int64_t>(m.size()));
  for (size_t p = 0; p < step.pairs.size(); ++p) {
    const size_t m = p % rows.size();
    out.push_back({step.pairs[p].row, true, m, next[m]++});
  }
  return out;
}

// Queries of the global batch in microbatch order: each microbatch's inputs, then its pairs.
struct Query {
  std::vector<int64_t> gold;
  int64_t pair;  // index of the step's pair, or -1
};

std::vector<Query> queries_of(const PreparedStep& step, size_t microbatches) {
  std::vector<Query> out;
  const size_t each = step.inputs.size() / microbatches;
  for (size_t m = 0; m < microbatches; ++m) {
    for (size_t i = m * each; i < (m + 1) * each; ++i) out.push_back({step.inputs[i].gold, -1});
    for (size_t p = m; p < step.pairs.size(); p += microbatches) out.push_back({{step.pairs[p].row}, static_cast<int64_t>(p)});
  }
  return out;
}

// Embeddings of all microbatches to gradients at their embedding wires.
struct ContrastiveGradients {
  double loss = 0.0;
  std::vector<at::Tensor> query, doc;  // per microbatch
};

ContrastiveGradients contrast(const RunConfig& config, const PreparedStep& step, const std::vector<std::vector<int64_t>>& rows,
                              const std::vector<at::Tensor>& query, const std::vector<at::Tensor>& doc) {
  const std::vector<Candidate> candidates = candidates_of(rows, step);
  const size_t first_pair = candidates.size() - step.pairs.size();
  std::vector<at::Tensor> picked;
  for (const Candidate& c : candidates) picked.push_back(doc[c.microbatch].select(0, c.index));
  std::vector<std::vector<int64_t>> positives, masked;
  for (const Query& q : queries_of(step, rows.size())) {
    positives.emplace_back();
    masked.emplace_back();
    for (size_t c = 0; c < candidates.size(); ++c) {
      const bool same = std::find(q.gold.begin(), q.gold.end(), candidates[c].row) != q.gold.end();
      const bool positive = q.pair < 0 ? same && !candidates[c].pair : c == first_pair + static_cast<size_t>(q.pair);
      if (positive) {
        positives.back().push_back(static_cast<int64_t>(c));
      } else if (same) {
        masked.back().push_back(static_cast<int64_t>(c));  // the same identity in another guise is no negative
      }
    }
  }
  const auto result = retriever::contrastive(at::cat(query), at::stack(picked), positives, masked, config.model.score_temperature,
                                             config.retriever.contrastive_weight);
  ContrastiveGradients out;
  out.loss = result.loss;
  int64_t begin = 0;
  for (size_t m = 0; m < rows.size(); ++m) {
    out.query.push_back(result.query_grad_BE.narrow(0, begin, query[m].size(0)));
    begin += query[m].size(0);
    out.doc.push_back(at::zeros_like(doc[m]));
  }
  for (size_t c = 0; c < candidates.size(); ++c) {
    out.doc[candidates[c].microbatch].select(0, candidates[c].index).copy_(result.doc_grad_UE.select(0, static_cast<int64_t>(c)));
  }
  return out;
}

}  // namespace

StepStats forward_backward(const RunConfig& config, const model::Model& model, const parallel::Executor& executor,
                           const PreparedStep& step, const Assembled& assembled) {
  StepStats stats;
  const auto& [batches, rows] = assembled;
  const bool contrastive = config.retriever.contrastive_weight > 0 && !config.retriever.frozen &&
                           std::any_of(batches.begin(), batches.end(), [](const model::Microbatch& b) { return !b.documents.empty(); });
  ContrastiveGradients gradients;
  if (contrastive && batches.size() > 1) {
    std::vector<at::Tensor> query, doc;
    for (const model::Microbatch& batch : batches) {
      std::vector<const model::Sequence*> queries, sequences;
      for (const model::Input& input : batch.inputs) queries.push_back(&input.query);
      for (const model::Sequence& s : batch.extra_queries) queries.push_back(&s);
      for (const model::Sequence& s : batch.documents) sequences.push_back(&s);
      query.push_back(model.embed("query", queries));
      doc.push_back(model.embed("doc", sequences));
    }
    gradients = contrast(config, step, rows, query, doc);
  }
  for (size_t m = 0; m < batches.size(); ++m) {
    const parallel::Feeds feeds = model::make_feeds(config.model, batches[m], model.dtype(), model.device());
    const parallel::Pass pass(feeds, /*training=*/true, config.run.seed, step.step);
    parallel::ForwardPass forward = executor.forward(pass, /*grad=*/true);
    stats.loss += forward.wire("loss.reader").item<double>();
    std::map<std::string, at::Tensor> roots{{"loss.reader", at::ones({}, at::kDouble).to(model.device())}};
    if (contrastive) {
      if (batches.size() == 1) {
        gradients = contrast(config, step, rows, {forward.wire("query.embedding").cpu()}, {forward.wire("doc.embedding").cpu()});
      }
      roots["query.embedding"] = gradients.query[m].to(model.device());
      roots["doc.embedding"] = gradients.doc[m].to(model.device());
    }
    executor.backward(std::move(forward), std::move(roots));
    stats.target_tokens += batches[m].target_tokens();
    stats.rows += batches[m].rows(config.model);
    stats.distinct += static_cast<int64_t>(rows[m].size());
    stats.flops += 3 * model.forward_flops(batches[m]);
    for (const model::Input& in : batches[m].inputs) stats.slots += static_cast<int64_t>(in.documents.size());
  }
  stats.contrastive = gradients.loss;
  return stats;
}

}  // namespace contexture::train
