// Evaluation on held-out examples: the same questions answered with retrieved documents, with the
// gold document, with a wrong one, and closed-book; and the index-edit test: a fact of a document
// is changed, and the answer must follow. The model stays spread as it is: every rank calls the
// same functions with the same arguments, replicas share the questions out, and all ranks get the
// results.
#pragma once
#include <functional>
#include <optional>

#include "core/json.h"
#include "eval/generate.h"
#include "train/session.h"

namespace contexture::train {

enum class Reading { kRetrieved, kGold, kWrong, kClosedBook };

struct Answered {
  const data::Example* example = nullptr;
  std::string answer;
  std::vector<int64_t> documents;  // rows read, in slot order
  std::vector<double> scores;  // retrieval scores of these (0 where they were given, not retrieved)
  eval::Generated generated;
};

// What documents are worth to the reader, by itself each: retrieval utility (REALM,
// arXiv:2002.08909), log p(y | x, z) - log p(y | x, no document) in nats, where y is the whole
// first reference answer. Nothing is generated for it. Empty for an example without an answer.
struct Utility {
  std::vector<double> retrieved;  // of each document that was read, best first
  std::optional<double> gold;     // of the first gold document, found or not
};

class Evaluator {
 public:
  // The session must outlive this. Its retriever is refreshed by the caller.
  explicit Evaluator(Session& session) : session_(&session), config_(&session.config()) {}

  // `count` evenly spaced examples of the set (0: all).
  static std::vector<const data::Example*> choose(const PictureSet& set, int64_t count);

  // The best k documents of each example (fewer where the corpus has fewer), best first, by the
  // run's retriever.
  std::vector<retriever::Ranking> rank(const PictureSet& set,
                                       const std::vector<const data::Example*>& examples,
                                       int64_t k) const;
  int64_t documents_read() const;  // by a question
  std::vector<Answered> answer(const PictureSet& set,
                               const std::vector<const data::Example*>& examples,
                               Reading reading) const;
  // Of the documents that these answers have read.
  std::vector<Utility> utility(const PictureSet& set, const std::vector<Answered>& retrieved) const;

  // EM, F1 (percent) of answers, recall@1 and @5 and MRR of the retrieval behind them.
  Json quick(const PictureSet& set, const std::vector<const data::Example*>& examples) const;

  // The whole table of summary.json's "held_out", with bootstrap intervals. Fills `samples` with
  // some cards, and `records` with what was measured of each example (docs/evaluation.md).
  Json held_out(const PictureSet& set, const std::vector<const data::Example*>& examples,
                Json* samples, Json* records = nullptr) const;

  // Share (percent) of questions whose answer equals the new value after their document was edited
  // and re-indexed. Documents and index are restored. Only examples whose document lists facts of
  // the question's type count. shown: cards of some edits for samples.json
  // (docs/formats/metrics.md); may be null.
  double edit_follow(const PictureSet& set, const std::vector<const data::Example*>& examples,
                     int64_t* asked, Json* shown) const;

 private:
  std::pair<int64_t, int64_t> part_of_replica(
      int64_t count) const;  // begin and end of what this one does
  // What each question reads, in the order of the examples.
  std::vector<Answered> with_documents(const std::vector<const data::Example*>& examples,
                                       const std::vector<retriever::Ranking>& rankings,
                                       Reading reading) const;
  // Calls run(begin, end, own) for each of this replica's batches of `total` examples, which are
  // the same in every layout; not own: only takes part in a pass that other replicas need.
  void for_each_batch(size_t total,
                      const std::function<void(size_t begin, size_t end, bool own)>& run) const;
  // with_answers: first reference answers are the targets.
  model::Microbatch batch_of(const PictureSet& set, const std::vector<Answered>& asked,
                             size_t begin, size_t end, bool with_answers) const;
  // log p of the first reference answer after each document by itself, then after none: [end -
  // begin, most + 1], zeros where there are fewer documents.
  at::Tensor answer_log_probs(const PictureSet& set, const std::vector<Answered>& asked,
                              size_t begin, size_t end, int64_t most) const;
  std::vector<eval::Generated> shared(std::vector<eval::Generated> mine,
                                      const std::vector<Answered>& asked,
                                      int64_t most_tokens) const;
  // What the answer has read, and what that was worth.
  void note(const Answered& answered, const Utility& utility, Json& record) const;
  Json sample(const PictureSet& set, const Answered& answered, const Utility& utility) const;
  Session* session_;
  const RunConfig* config_;
};

// Adds to figures the means as "retrieval_utility", and their bootstrap intervals below
// "intervals"; nothing where no example has an answer.
void add_utility(const std::vector<Utility>& each, Json& figures);

}  // namespace contexture::train
