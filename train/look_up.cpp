// What a step's inputs read: the documents that the index finds, and the microbatches made of both.
#include <algorithm>
#include <map>

#include "train/step.h"

namespace contexture::train {
namespace {

// Puts what the index proposed in the order of the present encoder's scores. Collective in the
// replica, alike on all its ranks.
void rank_anew(Session& session, const at::Tensor& query_BE, at::Tensor& found) {
  std::map<int64_t, int64_t> place;  // of a row among those embedded
  std::vector<const model::Sequence*> sequences;
  const auto cells = found.accessor<int64_t, 2>();
  for (int64_t i = 0; i < found.size(0); ++i) {
    for (int64_t r = 0; r < found.size(1); ++r) {
      if (cells[i][r] < 0 ||
          !place.emplace(cells[i][r], static_cast<int64_t>(sequences.size())).second)
        continue;
      sequences.push_back(&session.documents().sequence(cells[i][r]));
    }
  }
  const at::Tensor score_BU =
      query_BE.to(at::kDouble).mm(session.embed("doc", sequences).to(at::kDouble).t()).contiguous();
  for (int64_t i = 0; i < found.size(0); ++i) {
    std::vector<std::pair<double, int64_t>> order;  // minus the score, and the row
    for (int64_t r = 0; r < found.size(1) && cells[i][r] >= 0; ++r) {
      order.emplace_back(-score_BU.data_ptr<double>()[i * score_BU.size(1) + place.at(cells[i][r])],
                         cells[i][r]);
    }
    std::sort(order.begin(), order.end());
    for (size_t r = 0; r < order.size(); ++r) found[i][static_cast<int64_t>(r)] = order[r].second;
  }
}

}  // namespace

Lookup look_up(const RunConfig& config, Session& session, const PreparedStep& step) {
  const int64_t k = config.retriever.documents;
  const auto [begin, end] = share_of(config, session.engine().groups()).mine(step.inputs.size());
  std::vector<const model::Sequence*> queries;
  int64_t most_gold = 0;
  for (size_t i = begin; i < end; ++i) queries.push_back(&step.inputs[i].query);
  for (const PreparedInput& input : step.inputs)
    most_gold = std::max<int64_t>(most_gold, static_cast<int64_t>(input.gold.size()));
  // Some more where held-out documents are passed over.
  const int64_t spare = step.held_out == nullptr
                            ? 0
                            : std::min<int64_t>(8, static_cast<int64_t>(step.held_out->size()));
  const int64_t sources = std::any_of(step.inputs.begin(), step.inputs.end(),
                                      [](const PreparedInput& input) { return input.source >= 0; })
                              ? 1
                              : 0;
  const int64_t depth =
      k == 0 ? 0
             : std::max(config.retriever.overretrieve,
                        k + most_gold + spare + sources + config.retriever.hard_negatives);
  // Rows of the best documents, -1 where there are fewer: on the rank with the index, then on all
  // of the replica.
  at::Tensor found = at::full({static_cast<int64_t>(end - begin), depth}, -1, at::kLong);
  if (depth > 0) {
    const at::Tensor query_BE = session.embed("query", queries);
    if (session.retriever().holds_index()) {
      const int64_t asked = session.engine().groups().first_of_replica() ? query_BE.size(0) : 0;
      const std::vector<retriever::Ranking> rankings =
          session.retriever().look_up(query_BE.narrow(0, 0, asked), depth);
      for (size_t i = 0; i < rankings.size(); ++i) {
        for (size_t r = 0; r < rankings[i].size(); ++r) found[i][r] = rankings[i][r].row;
      }
    }
    if (found.numel() > 0) session.engine().share_in_replica(found);
    if (config.retriever.overretrieve > 0) rank_anew(session, query_BE, found);
    if (session.retriever().counts())
      session.retriever().count(
          session.engine().gather_rows(found.narrow(1, 0, std::min(k, depth))));
  }
  Lookup out{std::vector<std::vector<int64_t>>(step.inputs.size()),
             std::vector<std::vector<int64_t>>(step.inputs.size()),
             std::vector<std::vector<int64_t>>(step.inputs.size())};
  const auto cells = found.accessor<int64_t, 2>();
  for (size_t i = begin; i < end; ++i) {
    for (int64_t r = 0; r < depth && cells[i - begin][r] >= 0; ++r)
      out.rankings[i].push_back(cells[i - begin][r]);
  }
  for (size_t i = begin; i < end; ++i) {
    const std::vector<int64_t>& gold = step.inputs[i].gold;
    std::vector<int64_t>& rows = out.documents[i];
    const auto barred = [&](int64_t row) {
      return row == step.inputs[i].source ||
             (step.held_out != nullptr && step.held_out->count(row) != 0);
    };
    if (config.retriever.gold && !gold.empty() && k > 0) rows.push_back(gold[0]);
    const size_t asked =
        config.retriever.group_lookup ? i - i % static_cast<size_t>(config.data.group_size) : i;
    for (const int64_t row : out.rankings[asked]) {
      if (static_cast<int64_t>(rows.size()) >= k) break;
      if (barred(row)) continue;
      if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
    }
    std::vector<int64_t>& negatives = out.negatives[i];
    for (const int64_t row : out.rankings[i]) {
      if (static_cast<int64_t>(negatives.size()) >= config.retriever.hard_negatives) break;
      const auto among = [row](const std::vector<int64_t>& some) {
        return std::find(some.begin(), some.end(), row) != some.end();
      };
      if (among(gold) || among(rows) || barred(row)) continue;
      negatives.push_back(row);
    }
  }
  return out;
}

Assembled assemble(const RunConfig& config, const Share& share,
                   const retriever::Documents& documents, const PreparedStep& step,
                   const Lookup& lookup) {
  const auto count = static_cast<size_t>(share.microbatches),
             total = static_cast<size_t>(share.total());
  const model::Readings readings = config.retriever.objective_options().readings();
  int64_t target_tokens = 0;
  for (const PreparedInput& input : step.inputs)
    target_tokens += static_cast<int64_t>(input.target.size());
  Assembled assembled{share, std::vector<model::Microbatch>(count),
                      std::vector<std::vector<int64_t>>(count), nullptr};
  std::vector<model::Microbatch>& out = assembled.batches;
  const bool once = config.parallel.encode_once == "replica";
  std::map<int64_t, int32_t> place;
  const auto place_of = [&](size_t m, int64_t row) {
    const auto [it, fresh] = place.emplace(row, static_cast<int32_t>(out[m].documents.size()));
    if (fresh) {
      const auto edited = step.edited.find(row);
      const auto elsewhere = step.edited_elsewhere.find(row);
      out[m].documents.push_back(edited != step.edited.end() ? edited->second
                                 : elsewhere != step.edited_elsewhere.end()
                                     ? elsewhere->second()
                                     : documents.sequence(row));
      assembled.rows[m].push_back(row);
    }
    return it->second;
  };
  if (config.retriever.false_negatives == "answer") {
    assembled.holds_answer = [&step, &documents](size_t i, int64_t row) {
      const auto& answers = step.inputs[i].example->answers;
      const std::string& text = documents.corpus().document(row).text;
      return std::any_of(answers.begin(), answers.end(),
                         [&](const std::string& a) { return data::contains_words(text, a); });
    };
  }
  for (size_t m = 0; m < count; ++m) {
    const size_t run = static_cast<size_t>(share.first()) + m;
    if (!once) place.clear();
    const size_t group = once ? 0 : m;  // the microbatch that lists the documents
    const auto [begin, end] =
        Share::run(step.inputs.size(), static_cast<int64_t>(run), share.total());
    for (size_t i = begin; i < end; ++i) {
      const PreparedInput& prepared = step.inputs[i];
      model::Input input{prepared.query, prepared.prompt, prepared.target, {}};
      for (const int64_t row : lookup.documents[i]) input.documents.push_back(place_of(group, row));
      out[m].inputs.push_back(std::move(input));
    }
    for (size_t i = begin; i < end; ++i) {
      for (const int64_t row : lookup.negatives[i])
        place_of(group, row);  // embedded, read by nobody
    }
    for (size_t p = run; p < step.pairs.size(); p += total) {
      if (!once) out[m].documents.push_back(step.pairs[p].document);
      out[m].extra_queries.push_back(step.pairs[p].query);
    }
    out[m].global_target_tokens = std::max<int64_t>(1, target_tokens);
    out[m].global_inputs = static_cast<int64_t>(step.inputs.size());
    out[m].attentive_weight = config.retriever.attentive_weight();
    out[m].readings = readings;
  }
  for (size_t p = 0; once && p < step.pairs.size(); ++p) {
    if (share.has_pair(p)) out[0].documents.push_back(step.pairs[p].document);
  }
  for (size_t m = 1; once && m < count; ++m) out[m].documents = out[0].documents;
  return assembled;
}

}  // namespace contexture::train
