// One training step: look up, read, learn. Retrieval happens before the graph is built, so every
// shape is known and no search sits inside forward or backward (docs/design.md 2).
#pragma once
#include <functional>
#include <map>

#include "retriever/contrastive.h"
#include "train/session.h"

namespace contexture::train {

// A step's inputs with the documents they will read. Entries of other replicas' inputs are empty.
struct Lookup {
  std::vector<std::vector<int64_t>> documents;  // rows read by each input, in slot order
  std::vector<std::vector<int64_t>> rankings;   // rows that the index returned, best first
  std::vector<std::vector<int64_t>>
      negatives;  // rows that are only contrasted with (retriever.hard_negatives)
};

struct StepStats {
  double loss = 0.0;  // reader: nats per target token
  std::map<std::string, double>
      objectives;            // other objectives, unweighted (model/objective_loss.h)
  double contrastive = 0.0;  // nats per query
  int64_t target_tokens = 0;
  int64_t rows = 0;        // tokens and patches read, without padding
  int64_t slots = 0;       // documents read, counted once per input
  int64_t distinct = 0;    // different documents that a replica reads, summed over replicas
  int64_t encoded = 0;     // documents encoded: different ones of each microbatch, summed
  int64_t sent_bytes = 0;  // between pipeline ranks, forward and back, of all replicas
  int64_t first_hits = 0;  // inputs whose best-ranked document is a gold one
  double flops =
      0.0;  // model floating point operations, forward and backward, of what was executed
};

// Retrieves for every input of this replica (and puts a gold document first where
// config.retriever.gold says so). The replica's first rank asks the index, with the other ranks
// where it is sharded, and tells its replica. Held-out documents are passed over: they are no
// distractor and no negative in training. The rankings name them.
Lookup look_up(const RunConfig& config, Session& session, const PreparedStep& step);

// data.assembly = grouped: puts inputs that read the same documents next to each other, so that
// they meet in a microbatch of a replica. The batch stays the same, and with it the gradient. Every
// replica learns what the others' inputs read. Collective.
void group(const RunConfig& config, Session& session, PreparedStep& step, Lookup& lookup);

// This replica's share, cut into microbatches. Within one, every distinct document stands once
// (rows: which of the corpus), and after these the pictures of its pairs. With
// parallel.encode_once=replica all microbatches have the documents of all of them, and rows are the
// first's.
struct Assembled {
  Share share;
  std::vector<model::Microbatch> batches;
  std::vector<std::vector<int64_t>> rows;
  // Whether a document holds an answer of an input: no negative for it. Null: not asked. Looks at
  // the step and the documents.
  std::function<bool(size_t input, int64_t row)> holds_answer;
};
// Whether a block's work is about documents alone, whichever inputs read them.
bool encodes_documents(const parallel::Block& block);
Share share_of(const RunConfig& config, const parallel::Groups& groups);
// What a rank prepares: its replica's share, or everything where inputs may change replica.
Share prepared_share(const RunConfig& config, const parallel::Groups& groups);
Assembled assemble(const RunConfig& config, const Share& share,
                   const retriever::Documents& documents, const PreparedStep& step,
                   const Lookup& lookup);

// Computes the gradients of the whole step: afterwards the engine's shards have them. The result
// depends neither on how the step is cut nor on how it is spread. Figures of the whole step, on
// every rank. loss_scale: the gradients are those of the loss times this (of the figures none is).
StepStats forward_backward(const RunConfig& config, const model::Model& model,
                           parallel::Engine& engine, const PreparedStep& step,
                           const Assembled& assembled, const Lookup* lookup = nullptr,
                           double loss_scale = 1.0);

}  // namespace contexture::train
