// What a training step looks documents up in: an index over the corpus as embedded by some past state of the encoder,
// and how it is refreshed: from the live encoder between two steps, or on a thread from a snapshot and swapped in a
// stated number of steps later, waiting if late, so that a resumed run retrieves the same documents.
#pragma once
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
  // Builds the first index from the model's current weights. All references must outlive this.
  Retriever(const RetrieverConfig& config, const Documents& documents, const model::Model& model);
  ~Retriever();

  // Rows of the best k documents per query, best first. query_BE: [B, E] CPU.
  std::vector<Ranking> search(const at::Tensor& query_BE, int64_t k) const;

  // Call once after each optimizer step, with the number of steps done. True when the index changed.
  bool after_step(int64_t step);
  void refresh_now(int64_t step);

  // Vectors of one document from the live encoder: after an edit.
  void update(int64_t row);

  int64_t refreshed_at() const { return refreshed_at_; }  // step whose weights made the vectors
  const Index& index() const { return *index_; }

  // What a checkpoint must hold for the same documents to be retrieved after a resume.
  struct State {
    int64_t refreshed_at = 0;
    at::Tensor vectors_UE;                      // [documents, E] fp32
    std::optional<int64_t> pending_since;       // a refresh that had started
    std::map<std::string, at::Tensor> pending;  // and the snapshot it embeds with
  };
  State state() const;
  void restore(const State& state);

 private:
  at::Tensor embed_all(const model::Model& model) const;
  void install(const at::Tensor& vectors_UE, int64_t step);
  void start(std::unique_ptr<model::Model> snapshot, int64_t step);

  RetrieverConfig config_;
  const Documents* documents_;
  const model::Model* model_;
  std::unique_ptr<Index> index_;
  at::Tensor vectors_UE_;  // what index_ was made from, where it keeps less than that (a compressing factory); else undefined
  int64_t refreshed_at_ = 0;
  std::optional<int64_t> pending_since_;
  std::unique_ptr<model::Model> snapshot_;
  std::future<at::Tensor> pending_;
};

}  // namespace contexture::retriever
