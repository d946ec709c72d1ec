// Ranks that do not train, but embed all documents for a refresh, each a share, with the encoder's
// weights of the step at which it starts, while the others train on (EMDR2, arXiv:2106.05346).
// Weights go to them parameter by parameter, vectors straight to the ranks that keep them. Nobody
// waits for them but a training rank that needs their vectors; they wait for nobody: they look at
// the board (parallel/board.h), where rank 0 posts what to do, and show there that they
// live.
#pragma once
#include <vector>

#include "model/model.h"
#include "parallel/engine.h"
#include "retriever/documents.h"

namespace contexture::retriever {

// Rows of a corpus.
struct Rows {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
  bool has(int64_t row) const { return row >= begin && row < end; }
};

// What a rank keeps of a sharded index: a part of its replica's part, so that no vector has to
// leave the replica that embeds it.
Rows kept_rows(int64_t documents, parallel::Part replica, parallel::Part in_replica);

// The parameters that embedding documents takes, in the store's order.
std::vector<parallel::Parameter*> document_parameters(const model::Model& model);

// A training rank's end.
class RefreshRanks {
 public:
  // silence_s: how long a refresh rank may show no life before it counts as failed. All references
  // must outlive this. Collective over all ranks: returns when the refresh ranks stand ready.
  RefreshRanks(const model::Model& model, parallel::Engine& engine, int64_t documents,
               double silence_s);

  int64_t count() const { return static_cast<int64_t>(seen_.size()); }
  // Sends the present weights and lets them embed. Collective over the training ranks, as are
  // fetch() and end().
  void start();
  // Waits for what they came to: the vectors [mine.count(), E] fp32 of this rank's rows. Once after
  // each start().
  at::Tensor fetch(Rows mine);
  // On rank 0, now and then: whether a refresh rank was told to stop. Throws, which ends all,
  // when one of them is silent.
  bool told_to_stop();
  // Lets them go home. stopped: because training was told to stop.
  void end(bool stopped);

 private:
  void tell(const std::string& what);
  const model::Model* model_;
  parallel::Engine* engine_;
  const int64_t documents_;
  const double silence_s_;
  struct Sign {
    std::string text;
    double at = 0;
  };
  std::vector<Sign> seen_;  // the last sign of life of each
  double looked_at_ = 0;
  bool stop_ = false;
  int64_t told_ = 0;
};

// A refresh rank's end: returns when training has ended; true: because it was told to stop.
// training: where the other ranks stand. sharded: each keeps a share of the vectors; else the first
// rank of each replica has all. model: on this rank alone, with memory for document_parameters().
// timeout_s: the deadline of what the ranks do together. Throws as any operation does when another
// rank fails.
bool serve_refreshes(model::Model& model, const Documents& documents,
                     const parallel::Groups& groups, const parallel::MeshLayout& training,
                     bool sharded, double timeout_s);

}  // namespace contexture::retriever
