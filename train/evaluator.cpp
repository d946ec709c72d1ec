#include "train/evaluator.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/rng.h"
#include "eval/answers.h"
#include "eval/bootstrap.h"
#include "eval/ranking.h"

namespace contexture::train {
namespace {

std::string data_uri(const data::Image& image) {
  static const char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::vector<std::byte> png = data::encode_png(image);
  std::string out = "data:image/png;base64,";
  for (size_t i = 0; i < png.size(); i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j)
      word = (word << 8) | (i + j < png.size() ? static_cast<uint32_t>(png[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j)
      out += i + j <= png.size() ? kDigits[(word >> (18 - 6 * j)) & 63] : '=';
  }
  return out;
}

std::vector<std::string> texts(const std::vector<Answered>& answered) {
  std::vector<std::string> out;
  for (const Answered& a : answered) out.push_back(a.answer);
  return out;
}

std::vector<std::vector<std::string>> references(
    const std::vector<const data::Example*>& examples) {
  std::vector<std::vector<std::string>> out;
  for (const data::Example* e : examples) out.push_back(e->answers);
  return out;
}

Json interval(const std::vector<double>& each) {
  const eval::Interval i = eval::bootstrap_mean(each);
  return Json::array({100 * i.low, 100 * i.high});
}

}  // namespace

int64_t Evaluator::documents_read() const {
  return config_->eval.documents > 0 ? config_->eval.documents : config_->retriever.documents;
}

std::vector<const data::Example*> Evaluator::choose(const PictureSet& set, int64_t count) {
  const int64_t n = static_cast<int64_t>(set.set.examples.size());
  const int64_t take = count <= 0 ? n : std::min(count, n);
  std::vector<const data::Example*> out;
  for (int64_t i = 0; i < take; ++i) out.push_back(&set.set.examples[i * n / take]);
  return out;
}

std::pair<int64_t, int64_t> Evaluator::part_of_replica(int64_t count) const {
  const parallel::Groups& groups = session_->engine().groups();
  return parallel::part_of(count, {groups.dp_rank(), groups.dp_size()});
}

std::vector<retriever::Ranking> Evaluator::rank(const PictureSet& set,
                                                const std::vector<const data::Example*>& examples,
                                                int64_t k) const {
  const auto [begin, end] = part_of_replica(static_cast<int64_t>(examples.size()));
  std::vector<PreparedInput> inputs;
  std::vector<const model::Sequence*> queries;
  for (int64_t i = begin; i < end; ++i)
    inputs.push_back(
        session_->encoder().encode(*examples[i], "", set.picture(*examples[i]).get(), 0));
  for (const PreparedInput& input : inputs) queries.push_back(&input.query);
  const at::Tensor found = session_->search(queries, k);
  return rankings(
      session_->engine().gather_rows(found.view({end - begin, 2 * k})).view({-1, k, 2}));
}

std::vector<Answered> Evaluator::with_documents(const std::vector<const data::Example*>& examples,
                                                const std::vector<retriever::Ranking>& rankings,
                                                Reading reading) const {
  std::vector<Answered> out(examples.size());
  for (size_t i = 0; i < examples.size(); ++i) {
    out[i].example = examples[i];
    const auto give = [&](const std::vector<std::string>& ids) {
      for (const std::string& id : ids) {
        out[i].documents.push_back(session_->corpus().row_of(id));
        out[i].scores.push_back(0.0);
        break;
      }
    };
    if (reading == Reading::kRetrieved) {
      for (const retriever::Hit& hit : rankings[i]) {
        if (static_cast<int64_t>(out[i].documents.size()) >= documents_read()) break;
        out[i].documents.push_back(hit.row);
        out[i].scores.push_back(hit.score);
      }
    } else if (reading == Reading::kGold) {
      give(examples[i]->documents);
    } else if (reading == Reading::kWrong) {
      // The gold document of the next example of the same type about something else.
      for (size_t j = 1; j < examples.size(); ++j) {
        const data::Example* other = examples[(i + j) % examples.size()];
        if (other->type != examples[i]->type || other->entity == examples[i]->entity) continue;
        give(other->documents);
        break;
      }
    }
  }
  return out;
}

model::Microbatch Evaluator::batch_of(const PictureSet& set, const std::vector<Answered>& asked,
                                      size_t begin, size_t end, bool with_answers) const {
  model::Microbatch batch;
  std::map<int64_t, int32_t> place;
  for (size_t i = begin; i < end; ++i) {
    const data::Example& example = *asked[i].example;
    const std::string answer =
        with_answers && !example.answers.empty() ? example.answers.front() : "";
    const PreparedInput prepared =
        session_->encoder().encode(example, answer, set.picture(example).get(), 0);
    model::Input input{prepared.query, prepared.prompt, prepared.target, {}};
    for (const int64_t row : asked[i].documents) {
      const auto [it, fresh] = place.emplace(row, static_cast<int32_t>(batch.documents.size()));
      if (fresh) batch.documents.push_back(session_->documents().sequence(row));
      input.documents.push_back(it->second);
    }
    batch.inputs.push_back(std::move(input));
  }
  return batch;
}

void Evaluator::for_each_batch(size_t total,
                               const std::function<void(size_t, size_t, bool)>& run) const {
  const auto size = static_cast<size_t>(config_->eval.batch_size);
  const auto batches = static_cast<int64_t>((total + size - 1) / size);
  const auto [first, last] = part_of_replica(batches);
  const int64_t rounds = session_->inference().most(last - first);
  for (int64_t b = first; b < first + rounds; ++b) {
    // Beyond its own, again the first, with those who are not done.
    const size_t begin = b < last ? static_cast<size_t>(b) * size : 0;
    run(begin, std::min(total, begin + size), b < last);
  }
}

std::vector<Answered> Evaluator::answer(const PictureSet& set,
                                        const std::vector<const data::Example*>& examples,
                                        Reading reading) const {
  std::vector<retriever::Ranking> rankings;
  if (reading == Reading::kRetrieved)
    rankings = rank(set, examples, std::max<int64_t>(documents_read(), 1));
  std::vector<Answered> out = with_documents(examples, rankings, reading);
  std::vector<eval::Generated> mine;
  for_each_batch(out.size(), [&](size_t begin, size_t end, bool own) {
    std::vector<eval::Generated> generated = eval::generate(
        session_->model(), session_->inference(),
        batch_of(set, out, begin, end, /*with_answers=*/false), config_->generate_options());
    if (own) std::move(generated.begin(), generated.end(), std::back_inserter(mine));
  });
  std::vector<eval::Generated> all =
      shared(std::move(mine), out, config_->generate_options().max_new_tokens);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].generated = std::move(all[i]);
    out[i].answer = session_->encoder().tokenizer().decode(out[i].generated.tokens);
  }
  return out;
}

// What all replicas have generated, one after the other.
std::vector<eval::Generated> Evaluator::shared(std::vector<eval::Generated> mine,
                                               const std::vector<Answered>& asked,
                                               int64_t most_tokens) const {
  if (session_->engine().groups().dp == nullptr) return mine;
  size_t most_documents = 0;
  for (const Answered& a : asked) most_documents = std::max(most_documents, a.documents.size());
  const auto D = static_cast<int64_t>(most_documents);
  // A row each: how many tokens, their log-probability, the tokens, and of each document
  // probability and share.
  const at::Tensor rows =
      at::zeros({static_cast<int64_t>(mine.size()), 2 + most_tokens + 2 * D}, at::kDouble);
  const auto copy = [](const auto& from, double* to) { std::copy(from.begin(), from.end(), to); };
  for (size_t i = 0; i < mine.size(); ++i) {
    double* row = rows.data_ptr<double>() + static_cast<int64_t>(i) * rows.size(1);
    row[0] = static_cast<double>(mine[i].tokens.size());
    row[1] = mine[i].log_prob;
    copy(mine[i].tokens, row + 2);
    copy(mine[i].document_prob, row + 2 + most_tokens);
    copy(mine[i].document_share, row + 2 + most_tokens + D);
  }
  const at::Tensor all = session_->engine().gather_rows(rows);
  std::vector<eval::Generated> out(asked.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const double* row = all.data_ptr<double>() + static_cast<int64_t>(i) * all.size(1);
    const double *probability = row + 2 + most_tokens, *share = probability + D;
    out[i].tokens.assign(row + 2, row + 2 + static_cast<int64_t>(row[0]));
    out[i].log_prob = row[1];
    out[i].document_prob.assign(probability, probability + asked[i].documents.size());
    out[i].document_share.assign(share, share + asked[i].documents.size());
  }
  return out;
}

Json Evaluator::quick(const PictureSet& set,
                      const std::vector<const data::Example*>& examples) const {
  const auto gold =
      eval::score_answers(texts(answer(set, examples, Reading::kGold)), references(examples));
  const auto retrieved =
      eval::score_answers(texts(answer(set, examples, Reading::kRetrieved)), references(examples));
  std::vector<eval::RankedQuery> queries;
  const auto rankings = rank(set, examples, 20);
  for (size_t i = 0; i < examples.size(); ++i) {
    queries.push_back({{}, examples[i]->documents});
    for (const auto& hit : rankings[i])
      queries.back().ranked.push_back(session_->corpus().document(hit.row).id);
  }
  const auto ranking = eval::score_rankings(queries, {1, 5});
  return {{"n", examples.size()},
          {"em", {{"retrieved", retrieved.em}, {"gold", gold.em}}},
          {"f1", {{"retrieved", retrieved.f1}, {"gold", gold.f1}}},
          {"recall_at", {{"1", ranking.hit[0]}, {"5", ranking.hit[1]}}},
          {"mrr", ranking.mrr}};
}

Json Evaluator::held_out(const PictureSet& set, const std::vector<const data::Example*>& examples,
                         Json* samples, Json* records) const {
  Json out{{"n", examples.size()}};
  for (const data::Example* example : examples) {
    if (records != nullptr) records->push_back({{"id", example->id}});
  }
  const std::vector<std::pair<Reading, std::string>> readings{
      {Reading::kRetrieved, "retrieved"},
      {Reading::kGold, "gold"},
      {Reading::kWrong, "wrong"},
      {Reading::kClosedBook, "closed_book"}};
  std::map<std::string, std::vector<double>> each;
  for (const auto& [reading, name] : readings) {
    const std::vector<Answered> answered = answer(set, examples, reading);
    const auto scores = eval::score_answers(texts(answered), references(examples));
    each[name] = scores.em_each;
    out["em"][name] = scores.em;
    out["f1"][name] = scores.f1;
    out["intervals"]["em"][name] = interval(scores.em_each);
    out["intervals"]["f1"][name] = interval(scores.f1_each);
    std::map<std::string, std::pair<double, int64_t>> by_type;
    for (size_t i = 0; i < examples.size(); ++i) {
      by_type[examples[i]->type].first += 100 * scores.em_each[i];
      by_type[examples[i]->type].second += 1;
    }
    for (const auto& [type, sum] : by_type)
      out["em_by_type"][type][name] = sum.first / static_cast<double>(sum.second);
    for (size_t i = 0; records != nullptr && i < examples.size(); ++i) {
      (*records)[i]["em"][name] = scores.em_each[i];
      (*records)[i]["f1"][name] = scores.f1_each[i];
    }
    if (reading != Reading::kRetrieved) continue;
    const std::vector<Utility> worth = utility(set, answered);
    add_utility(worth, out);
    for (size_t i = 0; records != nullptr && i < examples.size(); ++i)
      note(answered[i], worth[i], (*records)[i]);
    const size_t cards = samples == nullptr ? 0 : std::min<size_t>(48, answered.size());
    for (size_t c = 0; c < cards; ++c) {
      const size_t i = c * answered.size() / cards;
      samples->push_back(sample(set, answered[i], worth[i]));
    }
  }
  const eval::Interval gain =
      eval::bootstrap_difference(each.at("retrieved"), each.at("closed_book"));
  out["intervals"]["gain"] = Json::array({100 * gain.low, 100 * gain.high});
  const auto rankings = rank(set, examples, 20);
  std::vector<eval::RankedQuery> queries;
  std::vector<double> first, five;
  for (size_t i = 0; i < examples.size(); ++i) {
    queries.push_back({{}, examples[i]->documents});
    for (const auto& hit : rankings[i])
      queries.back().ranked.push_back(session_->corpus().document(hit.row).id);
    first.push_back(eval::hit_at(queries.back().ranked, queries.back().gold, 1));
    five.push_back(eval::hit_at(queries.back().ranked, queries.back().gold, 5));
  }
  const auto ranking = eval::score_rankings(queries, {1, 5});
  out["recall_at"] = {{"1", ranking.hit[0]}, {"5", ranking.hit[1]}};
  out["mrr"] = ranking.mrr;
  out["intervals"]["recall_at"] = {{"1", interval(first)}, {"5", interval(five)}};
  return out;
}

Json Evaluator::sample(const PictureSet& set, const Answered& a, const Utility& utility) const {
  const auto scores = eval::score_answers({a.answer}, {a.example->answers});
  Json card{{"id", a.example->id},
            {"question", a.example->question},
            {"answer", a.answer},
            {"references", a.example->answers},
            {"em", scores.em / 100},
            {"f1", scores.f1 / 100},
            {"gold_ids", a.example->documents},
            {"documents", Json::array()}};
  if (const auto picture = set.picture(*a.example)) card["query_image"] = data_uri(*picture);
  for (size_t k = 0; k < a.documents.size(); ++k) {
    const data::Document& document = session_->corpus().document(a.documents[k]);
    const auto& gold = a.example->documents;
    Json entry{{"id", document.id},
               {"title", document.title},
               {"text", document.text},
               {"score", a.scores[k]},
               {"probability", a.generated.document_prob[k]},
               {"attention", a.generated.document_share[k]},
               {"is_gold", std::find(gold.begin(), gold.end(), document.id) != gold.end()}};
    if (!utility.retrieved.empty()) entry["utility"] = utility.retrieved[k];
    if (const data::Image* picture = session_->documents().picture(a.documents[k]))
      entry["image"] = data_uri(*picture);
    card["documents"].push_back(entry);
  }
  return card;
}

double Evaluator::edit_follow(const PictureSet& set,
                              const std::vector<const data::Example*>& examples, int64_t* asked,
                              Json* shown) const {
  // One fact type is edited in all documents at a time: every question is about a document with a
  // single change.
  std::map<std::string, std::vector<const data::Example*>> by_type;
  for (const data::Example* e : examples) {
    if (e->documents.empty()) continue;
    const Json& meta = session_->corpus().document(session_->corpus().row_of(e->documents[0])).meta;
    if (meta.contains("facts") && meta["facts"].contains(e->type)) by_type[e->type].push_back(e);
  }
  int64_t followed = 0;
  *asked = 0;
  for (const auto& [type, questions] : by_type) {
    std::set<std::string> distinct;
    std::map<int64_t, std::vector<std::string>> values;  // row -> its present values
    for (const data::Example* e : questions) {
      const int64_t row = session_->corpus().row_of(e->documents[0]);
      values[row] =
          session_->corpus().document(row).meta["facts"][type].get<std::vector<std::string>>();
      distinct.insert(values[row].begin(), values[row].end());
    }
    const std::vector<std::string> pool(distinct.begin(), distinct.end());
    std::map<int64_t, std::vector<std::string>> expected;
    std::vector<std::pair<int64_t, data::Document>> originals;
    // One card a type, each about another document.
    std::vector<const data::Example*> carded;
    if (shown != nullptr)
      carded.push_back(
          questions[(2 * shown->size() + 1) * questions.size() / (2 * by_type.size())]);
    const std::vector<Answered> before = answer(set, carded, Reading::kRetrieved);
    for (const auto& [row, old] : values) {
      data::Document document = session_->corpus().document(row);
      std::vector<data::Swap> swaps;
      Stream stream(0, "edit-follow:" + type, static_cast<uint64_t>(row));
      std::set<std::string> taken(old.begin(), old.end());
      for (const std::string& value : old) {
        if (taken.size() >= pool.size()) break;
        std::string other;
        do {
          other = pool[stream.below(pool.size())];
        } while (!taken.insert(other).second);
        swaps.push_back({type, value, other});
        expected[row].push_back(other);
      }
      if (swaps.size() != old.size()) {
        expected.erase(row);
        continue;
      }
      document.text = data::replace_words(document.text, swaps);
      originals.emplace_back(row, session_->corpus().edit(row, std::move(document)));
      session_->documents().reload(row);
      session_->retriever().update(row);
    }
    std::vector<const data::Example*> asked_now;
    for (const data::Example* e : questions) {
      if (expected.count(session_->corpus().row_of(e->documents[0])) != 0) asked_now.push_back(e);
    }
    for (const Answered& a : answer(set, asked_now, Reading::kRetrieved)) {
      const int64_t row = session_->corpus().row_of(a.example->documents[0]);
      const bool follows = eval::exact_match(a.answer, expected.at(row)) > 0;
      followed += follows ? 1 : 0;
      *asked += 1;
      if (before.empty() || a.example != before[0].example) continue;
      Json card{{"question", a.example->question},   {"fact_before", values.at(row)[0]},
                {"fact_after", expected.at(row)[0]}, {"answer_before", before[0].answer},
                {"answer_after", a.answer},          {"followed", follows}};
      if (const auto picture = set.picture(*a.example)) card["query_image"] = data_uri(*picture);
      shown->push_back(card);
    }
    for (auto& [row, original] : originals) {
      session_->corpus().edit(row, std::move(original));
      session_->documents().reload(row);
      session_->retriever().update(row);
    }
  }
  return *asked == 0 ? 0.0 : 100.0 * static_cast<double>(followed) / static_cast<double>(*asked);
}

}  // namespace contexture::train
