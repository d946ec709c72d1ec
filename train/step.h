// One training step: look up, read, learn. Retrieval happens before the graph is built, so every shape is known and no
// search sits inside forward or backward (docs/design.md 2).
#pragma once
#include <functional>
#include <map>

#include "retriever/contrastive.h"
#include "train/session.h"

namespace contexture::train {

// The part of a global batch that a replica reads. The batch is cut into replicas * microbatches runs of inputs, as equal as can
// be; replica r has the runs from r * microbatches on.
struct Share {
  int64_t replica = 0, replicas = 1, microbatches = 1;
  int64_t total() const { return replicas * microbatches; }
  int64_t first() const { return replica * microbatches; }
  // Inputs [begin, end) of run m (global), of this replica.
  static std::pair<size_t, size_t> run(size_t inputs, int64_t m, int64_t total);
  std::pair<size_t, size_t> mine(size_t inputs) const;
};

// A step's inputs with the documents they will read. Entries of other replicas' inputs are empty.
struct Lookup {
  std::vector<std::vector<int64_t>> documents;  // rows read by each input, in slot order
  std::vector<std::vector<int64_t>> rankings;   // rows that the index returned, best first
  std::vector<std::vector<int64_t>> negatives;  // rows that are only contrasted with (retriever.hard_negatives)
};

struct StepStats {
  double loss = 0.0;         // reader: nats per target token
  std::map<std::string, double> objectives;  // other objectives, unweighted (model/objective_loss.h)
  double contrastive = 0.0;  // nats per query
  int64_t target_tokens = 0;
  int64_t rows = 0;          // tokens and patches read, without padding
  int64_t slots = 0;         // documents read, counted once per input
  int64_t distinct = 0;      // documents encoded
  int64_t first_hits = 0;    // inputs whose best-ranked document is a gold one
  double flops = 0.0;        // model floating point operations, forward and backward, of what was executed
};

// Retrieves for every input of this replica (and puts a gold document first where config.retriever.gold says so). The
// index is searched by the replica's first rank, which tells the others. Held-out documents are passed over: they are no
// distractor and no negative in training. The rankings name them.
Lookup look_up(const RunConfig& config, Session& session, const PreparedStep& step);

// This replica's share, cut into microbatches. Within one, every distinct document stands once (rows: which of the
// corpus), and after these the pictures of its pairs.
struct Assembled {
  Share share;
  std::vector<model::Microbatch> batches;
  std::vector<std::vector<int64_t>> rows;
  // Whether a document holds an answer of an input: no negative for it. Null: not asked. Looks at the step and the documents.
  std::function<bool(size_t input, int64_t row)> holds_answer;
};
Share share_of(const RunConfig& config, const parallel::Groups& groups);
Assembled assemble(const RunConfig& config, const Share& share, const retriever::Documents& documents, const PreparedStep& step,
                   const Lookup& lookup);

// Computes the gradients of the whole step: afterwards the engine's shards have them. The result depends neither on how the
// step is cut nor on how it is spread. Figures of the whole step, on every rank.
StepStats forward_backward(const RunConfig& config, const model::Model& model, parallel::Engine& engine, const PreparedStep& step,
                           const Assembled& assembled, const Lookup* lookup = nullptr);

}  // namespace contexture::train
