// One training step: look up, read, learn. Retrieval happens before the graph is built, so every shape is known and no
// search sits inside forward or backward (docs/design.md 2).
#pragma once
#include "parallel/executor.h"
#include "retriever/contrastive.h"
#include "train/step_data.h"

namespace contexture::train {

// A step's inputs with the documents they will read.
struct Lookup {
  at::Tensor query_BE;                            // embeddings without graph, [inputs, E]
  std::vector<std::vector<int64_t>> documents;    // rows read by each input, in slot order
  std::vector<retriever::Ranking> rankings;       // what the index returned
};

struct StepStats {
  double loss = 0.0;         // reader: nats per target token
  double contrastive = 0.0;  // nats per query
  int64_t target_tokens = 0;
  int64_t rows = 0;          // tokens and patches read, without padding
  int64_t slots = 0;         // documents read, counted once per input
  int64_t distinct = 0;      // documents encoded
  double flops = 0.0;        // model floating point operations, forward and backward, of what was executed
};

// Retrieves for every input (and puts a gold document first where config.retriever.gold says so). Held-out documents are
// passed over: they are no distractor and no negative in training. The rankings name them.
Lookup look_up(const RunConfig& config, const model::Model& model, const retriever::Retriever& retriever,
               const PreparedStep& step);

// The share of inputs whose best-ranked document is a gold one.
double recall_at_1(const PreparedStep& step, const Lookup& lookup);

// A step cut into microbatches of equal numbers of inputs. Within one, every distinct document stands once (rows: which of
// the corpus), and after these the pictures of its pairs.
struct Assembled {
  std::vector<model::Microbatch> batches;
  std::vector<std::vector<int64_t>> rows;
};
Assembled assemble(const RunConfig& config, const retriever::Documents& documents, const PreparedStep& step, const Lookup& lookup);

// Adds the gradients of the whole step to Parameter::grad. The result does not depend on how the step is cut.
StepStats forward_backward(const RunConfig& config, const model::Model& model, const parallel::Executor& executor,
                           const PreparedStep& step, const Assembled& assembled);

}  // namespace contexture::train
