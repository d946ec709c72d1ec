// What a training step looks documents up in: an index over the corpus as embedded by some past state of the encoder,
// and how it is refreshed: from the live encoder between two steps, or on a thread from a snapshot and swapped in a
// stated number of steps later, waiting if late, so that a resumed run retrieves the same documents.
#pragma once
#include <functional>
#include <future>
#include <memory>
#include <optional>

#include "model/model.h"
#include "retriever/documents.h"
#include "retriever/index.h"

namespace contexture::retriever {

struct RetrieverConfig {
  std::string factory = "Flat";
  std::string search;
  int64_t documents = 2;
  int64_t refresh_every = 0;
  int64_t refresh_lag = 0;
  bool frozen = false;
  bool gold = true;
  bool group_lookup = false;
  double contrastive_weight = 1.0;
  double attentive_weight = 1.0;

  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("factory", factory, "FAISS factory string of the index");
    visit("search", search, "FAISS search parameters, such as nprobe=16");
    visit("documents", documents, "documents each input reads (k); 0: closed book");
    visit("refresh_every", refresh_every, "steps between refreshes of the index; 0: never after the first");
    visit("refresh_lag", refresh_lag, "0: refresh between two steps; N: on a thread from a snapshot, swapped in N steps after its start");
    visit("frozen", frozen, "no gradient reaches the retrieval embedding (retrieval from the initial encoder)");
    visit("gold", gold, "a training input always reads a gold document, beside retrieved ones");
    visit("group_lookup", group_lookup, "examples of a group (data.group_size) read what its first example retrieved, so that fewer documents are encoded");
    visit("contrastive_weight", contrastive_weight, "weight of the supervised contrastive loss over the global batch");
    visit("attentive_weight", attentive_weight, "weight of the reader's gradient on the retrieval scores (the language-model loss trains the retriever)");
  }
  void validate() const;
};

class Retriever {
 public:
  // Embeds documents with the current weights: [n, E]. Over many ranks it is a collective.
  using Embed = std::function<at::Tensor(const std::vector<const model::Sequence*>&)>;
  // What a checkpoint must hold for the same documents to be retrieved after a resume.
  struct State {
    int64_t refreshed_at = 0;
    at::Tensor vectors_UE;                 // [documents, E] fp32
    std::optional<int64_t> pending_since;  // a refresh that had started
    at::Tensor pending_UE;                 // and what it came to
  };

  // Builds the first index from the current weights, or from a checkpoint's state. whole: the model, where this process has all of it: a
  // refresh with a lag then embeds a snapshot on a thread; else at its start. holds_index: false on ranks that embed with the
  // others but leave searching to one of them. All references must outlive this.
  Retriever(const RetrieverConfig& config, const Documents& documents, Embed embed, const model::Model* whole,
            const std::optional<State>& state = {}, bool holds_index = true);
  ~Retriever();

  // Rows of the best k documents per query, best first. query_BE: [B, E] CPU. Only where the index is held.
  std::vector<Ranking> search(const at::Tensor& query_BE, int64_t k) const;

  // Call once after each optimizer step, with the number of steps done. True when the index changed.
  bool after_step(int64_t step);
  void refresh_now(int64_t step);

  // Vectors of one document from the live encoder: after an edit.
  void update(int64_t row);

  int64_t refreshed_at() const { return refreshed_at_; }  // step whose weights made the vectors
  bool holds_index() const { return holds_index_; }
  const Index& index() const { return *index_; }
  State state() const;  // waits for a refresh on the thread

 private:
  at::Tensor embed_all() const;
  void install(const at::Tensor& vectors_UE, int64_t step);

  RetrieverConfig config_;
  const Documents* documents_;
  Embed embed_;
  const model::Model* whole_;
  bool holds_index_;
  std::unique_ptr<Index> index_;
  at::Tensor vectors_UE_;  // what index_ was made from, where it keeps less than that (a compressing factory); else undefined
  int64_t refreshed_at_ = 0;
  std::optional<int64_t> pending_since_;
  std::unique_ptr<model::Model> snapshot_;
  std::shared_future<at::Tensor> pending_;
};

}  // namespace contexture::retriever
