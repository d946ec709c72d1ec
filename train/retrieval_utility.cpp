// How much likelier each document makes the right answer, from one pass that reads every document
// by itself, and none (model::Readings).
#include <algorithm>

#include "eval/bootstrap.h"
#include "train/evaluator.h"

namespace contexture::train {

at::Tensor Evaluator::answer_log_probs(const PictureSet& set, const std::vector<Answered>& asked,
                                       size_t begin, size_t end, int64_t most) const {
  constexpr const char* kLogProb = "target.log_prob";
  const model::Model& model = session_->model();
  model::Microbatch batch = batch_of(set, asked, begin, end, /*with_answers=*/true);
  // Layers that note what adist trains towards do so in every pass, and of joint readings.
  const bool notes = model.objectives().weight("adist") > 0;
  batch.readings = {.joint = notes, .single = true, .none = true, .objectives = notes};
  const parallel::Feeds feeds =
      model::make_feeds(model.config(), batch, model.dtype(), model.device());
  parallel::Pass pass(feeds);
  pass.device = model.device();
  const at::Tensor log_prob_M =
      session_->inference().run(pass, {kLogProb}).at(kLogProb).to(at::kCPU, at::kDouble);
  const at::Tensor out = at::zeros({static_cast<int64_t>(end - begin), most + 1}, at::kDouble);
  int64_t next = notes ? batch.target_tokens() : 0;
  for (size_t i = 0; i < batch.inputs.size(); ++i) {
    const auto tokens = static_cast<int64_t>(batch.inputs[i].target.size()),
               documents = static_cast<int64_t>(batch.inputs[i].documents.size());
    for (int64_t k = 0; k <= documents; ++k, next += tokens) {
      out[static_cast<int64_t>(i)][k < documents ? k : most] =
          log_prob_M.narrow(0, next, tokens).sum();
    }
  }
  return out;
}

std::vector<Utility> Evaluator::utility(const PictureSet& set,
                                        const std::vector<Answered>& retrieved) const {
  std::vector<Answered> asked = retrieved;
  std::vector<int64_t> gold(asked.size(), -1);  // its place among the documents asked about
  size_t most = 0;
  for (size_t i = 0; i < asked.size(); ++i) {
    std::vector<int64_t>& rows = asked[i].documents;
    if (!asked[i].example->documents.empty()) {
      const int64_t row = session_->corpus().row_of(asked[i].example->documents.front());
      gold[i] = std::find(rows.begin(), rows.end(), row) - rows.begin();
      if (gold[i] == static_cast<int64_t>(rows.size())) rows.push_back(row);
    }
    most = std::max(most, rows.size());
  }
  const auto columns = static_cast<int64_t>(most) + 1;
  std::vector<at::Tensor> mine{at::zeros({0, columns}, at::kDouble)};
  for_each_batch(asked.size(), [&](size_t begin, size_t end, bool own) {
    const at::Tensor log_prob = answer_log_probs(set, asked, begin, end, columns - 1);
    if (own) mine.push_back(log_prob);
  });
  const at::Tensor all = session_->engine().gather_rows(at::cat(mine));
  std::vector<Utility> out(asked.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    const std::vector<std::string>& answers = asked[i].example->answers;
    if (answers.empty() || answers.front().empty()) continue;
    const double* row = all.data_ptr<double>() + static_cast<int64_t>(i) * columns;
    const double none = row[columns - 1];
    for (size_t k = 0; k < retrieved[i].documents.size(); ++k)
      out[i].retrieved.push_back(row[k] - none);
    if (gold[i] >= 0) out[i].gold = row[gold[i]] - none;
  }
  return out;
}

void Evaluator::note(const Answered& answered, const Utility& utility, Json& record) const {
  record["documents"] = Json::array();
  for (const int64_t row : answered.documents)
    record["documents"].push_back(session_->corpus().document(row).id);
  if (!utility.retrieved.empty()) record["retrieval_utility"]["retrieved"] = utility.retrieved;
  if (utility.gold) record["retrieval_utility"]["gold"] = *utility.gold;
}

void add_utility(const std::vector<Utility>& each, Json& figures) {
  std::vector<double> retrieved, gold;
  std::vector<std::vector<double>> by_rank;
  for (const Utility& utility : each) {
    if (utility.gold) gold.push_back(*utility.gold);
    if (utility.retrieved.empty()) continue;
    double sum = 0.0;
    for (size_t k = 0; k < utility.retrieved.size(); ++k) {
      if (k == by_rank.size()) by_rank.emplace_back();
      by_rank[k].push_back(utility.retrieved[k]);
      sum += utility.retrieved[k];
    }
    retrieved.push_back(sum / static_cast<double>(utility.retrieved.size()));
  }
  Json means = Json::object(), intervals = Json::object();
  const auto put = [&](const std::vector<double>& values, const char* name) {
    if (values.empty()) return;
    const eval::Interval found = eval::bootstrap_mean(values);
    means[name] = found.mean;
    intervals[name] = Json::array({found.low, found.high});
  };
  put(retrieved, "retrieved");
  put(gold, "gold");
  for (const std::vector<double>& values : by_rank) {
    const eval::Interval found = eval::bootstrap_mean(values);
    means["by_rank"].push_back(found.mean);
    intervals["by_rank"].push_back(Json::array({found.low, found.high}));
  }
  if (means.empty()) return;
  figures["retrieval_utility"] = means;
  figures["intervals"]["retrieval_utility"] = intervals;
}

}  // namespace contexture::train
