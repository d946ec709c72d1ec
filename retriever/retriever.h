// What a training step looks documents up in: an index over the corpus as embedded by some past
// state of the encoder, and how it is refreshed: from the live encoder between two steps, or from a
// snapshot, on a thread or on ranks that do nothing else, and swapped in a stated number of steps
// later, waiting if late, so that a resumed run retrieves the same documents. In a run of many
// ranks each may keep the vectors of some documents alone.
#pragma once
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>

#include "model/model.h"
#include "parallel/engine.h"
#include "parallel/row_pieces.h"
#include "retriever/documents.h"
#include "retriever/index.h"
#include "retriever/refresh.h"
#include "retriever/refresh_ranks.h"

namespace contexture::retriever {

struct RetrieverConfig {
  std::string factory = "Flat";
  std::string search;
  bool sharded = true;
  int64_t documents = 2;
  int64_t refresh_every = 0;
  std::string refresh_schedule;
  int64_t refresh_lag = 0;
  int64_t refresh_ranks = 0;
  int64_t partial_every = 0;
  int64_t partial_documents = 0;
  int64_t overretrieve = 0;
  bool frozen = false;
  bool gold = true;
  bool group_lookup = false;
  std::map<std::string, double> objectives{{"attentive", 1.0}, {"contrastive", 1.0}};
  std::string likelihood = "token";
  double target_temperature = 1.0;
  int64_t hard_negatives = 0;
  std::string false_negatives = "gold";
  std::string kl_reduction = "batchmean";

  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("factory", factory, "FAISS factory string of the index");
    visit("search", search, "FAISS search parameters, such as nprobe=16");
    visit("sharded", sharded,
          "over many ranks, each keeps and searches the vectors of a share of the documents; "
          "false: each replica's first rank has all");
    visit("documents", documents, "documents each input reads (k); 0: closed book");
    visit("refresh_every", refresh_every,
          "steps between refreshes of the index; 0: never after the first");
    visit("refresh_schedule", refresh_schedule,
          "the same by range of steps, as in 0-100:10,100-100000:500; empty: refresh_every");
    visit("refresh_lag", refresh_lag,
          "0: refresh between two steps; N: on a thread from a snapshot, swapped in N steps after "
          "its start");
    visit("refresh_ranks", refresh_ranks,
          "with a lag: the last ranks of the run, this many, do not train but embed the documents "
          "from a snapshot");
    visit("partial_every", partial_every,
          "steps between refreshes of the most retrieved documents alone; 0: never");
    visit("partial_documents", partial_documents,
          "how many documents a partial refresh embeds anew");
    visit("overretrieve", overretrieve,
          "documents that the index proposes, to be ranked again by the present encoder; 0: as "
          "many as are needed, ranked by the index");
    visit("frozen", frozen,
          "no gradient reaches the retrieval embedding (retrieval from the initial encoder)");
    visit("gold", gold, "a training input always reads a gold document, beside retrieved ones");
    visit("group_lookup", group_lookup,
          "examples of a group (data.group_size) read what its first example retrieved, so that "
          "fewer documents are encoded");
    visit("objectives", objectives,
          "weights of what is trained: reader, attentive, contrastive, rag_sequence, rag_token, "
          "realm, emdr2, pdist, loop, adist (docs/retrieval.md)");
    visit("likelihood", likelihood,
          "emdr2, pdist, loop: token (mean over the target) or sequence (sum)");
    visit("target_temperature", target_temperature,
          "pdist, loop, adist: divides what the target is a softmax of");
    visit("hard_negatives", hard_negatives,
          "documents ranked high by the index, gold ones apart, that each input's contrastive loss "
          "sees besides those read");
    visit("false_negatives", false_negatives,
          "no negatives: gold (an input's gold documents) or answer (also documents whose text "
          "holds an answer)");
    visit("kl_reduction", kl_reduction,
          "pdist, loop, adist: batchmean, or mean, which also divides by the number of documents");
  }
  void validate() const;
  // 0 where not named. The reader's own loss, over all documents at once, counts 1 unless named,
  // and nothing beside rag_sequence, rag_token and realm, which are losses of a reader themselves.
  double weight(const std::string& objective) const;
  double attentive_weight() const { return frozen ? 0.0 : weight("attentive"); }
  double contrastive_weight() const { return frozen ? 0.0 : weight("contrastive"); }
  RefreshSchedule schedule() const;
  model::ObjectiveOptions objective_options() const;  // what the model's loss blocks need
};

class Retriever {
 public:
  // Embeds documents with the current weights: [n, E]. Over many ranks: those of this rank's
  // replica, on all its ranks; a collective in which every replica takes part, with documents of
  // its own or none.
  using Embed = std::function<at::Tensor(const std::vector<const model::Sequence*>&)>;
  // What a checkpoint must hold for the same documents to be retrieved after a resume.
  struct State {
    int64_t refreshed_at = 0;
    parallel::RowPieces vectors;  // [documents, E] fp32: all, or those that this rank keeps
    std::optional<int64_t> pending_since;  // a refresh that had started
    parallel::RowPieces pending;           // and what it came to
    at::Tensor retrieved_U;  // how often each document was, since the last partial refresh;
                             // undefined without these
  };

  // Builds the first index from the current weights, or from a checkpoint's state, whichever ranks
  // wrote it. whole: the model, where this process has all of it: a refresh with a lag then embeds
  // a snapshot on a thread; else at its start. groups: this rank's. refresh_ranks: those that do it
  // instead, or null. device: where an exact index is searched (Index::search_on). All references
  // must outlive this. Collective.
  Retriever(const RetrieverConfig& config, const Documents& documents, Embed embed,
            const model::Model* whole, const parallel::Groups& groups = {},
            const std::optional<State>& state = {}, RefreshRanks* refresh_ranks = nullptr,
            at::Device device = at::kCPU);
  ~Retriever();

  // Rows of the best k documents per query, best first. query_BE: [B, E] CPU. Only where the index
  // is held. With a sharded index a collective: each rank gets the rankings of its own queries, of
  // which it may have none.
  std::vector<Ranking> search(const at::Tensor& query_BE, int64_t k) const;

  // The same, remembering the queries: staleness is measured with them. For the training loop.
  std::vector<Ranking> look_up(const at::Tensor& query_BE, int64_t k);
  // Counts rows (negative ones are none) as retrieved, on all ranks alike, where partial refreshes
  // need to know.
  bool counts() const { return config_.partial_every > 0; }
  void count(const at::Tensor& rows);

  // Call once after each optimizer step, with the number of steps done. True when the index
  // changed.
  bool after_step(int64_t step);
  void refresh_now(int64_t step);

  // Vectors of one document from the live encoder: after an edit. Collective.
  void update(int64_t row);

  int64_t refreshed_at() const { return refreshed_at_; }  // step whose weights made the vectors
  // Of the last refresh in this process, whole or partial; none before it, or where the index is
  // not held.
  const std::optional<Staleness>& staleness() const { return staleness_; }
  bool sharded() const {
    return config_.sharded && groups_.world != nullptr;
  }  // over the ranks of the world
  bool holds_index() const { return sharded() || groups_.first_of_replica(); }
  const Index& index() const { return *index_; }  // of this rank's documents
  // Waits for what a refresh that is under way comes to. Collective.
  void await_pending() const;
  State state() const;  // does so, too; of many ranks only where await_pending() came before

 private:
  Rows embedded() const;  // by this rank's replica in a refresh
  Rows kept() const;      // by this rank
  at::Tensor embed_kept() const;
  // On every rank.
  at::Tensor embed_some(const std::vector<const model::Sequence*>& sequences) const;
  std::optional<std::vector<Ranking>> search_all_ranks(const at::Tensor& query_BE, int64_t k) const;
  void install(const at::Tensor& vectors_UE, int64_t step);  // those kept
  void refresh_partly(int64_t step);
  // Replaces vectors by `change` and measures what that did. rows: those that change, counted from
  // the first kept; null: all.
  void measured(const std::vector<int64_t>* rows, const at::Tensor& fresh_RE, int64_t steps,
                const std::function<void()>& change);
  at::Tensor stored() const;  // [kept, E]

  RetrieverConfig config_;
  const Documents* documents_;
  Embed embed_;
  const model::Model* whole_;
  parallel::Groups groups_;
  RefreshRanks* refresh_ranks_;
  at::Device device_;
  std::unique_ptr<Index> index_;
  at::Tensor vectors_UE_;  // what index_ was made from (U: those kept), where it keeps less than
                           // that (a compressing factory); else undefined
  int64_t refreshed_at_ = 0;
  RefreshSchedule schedule_;
  at::Tensor retrieved_U_;  // int64, since the last partial refresh
  at::Tensor probe_BE_;     // the last step's queries
  std::optional<Staleness> staleness_;
  std::optional<int64_t> pending_since_;
  std::unique_ptr<model::Model> snapshot_;
  std::shared_future<at::Tensor> pending_;
};

}  // namespace contexture::retriever
