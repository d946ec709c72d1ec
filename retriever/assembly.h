// Which inputs of a global batch meet in a microbatch. Inputs that read the same documents are put
// together, so that fewer documents are encoded and sent; the batch, and therefore the gradient,
// stays the same. A balanced hypergraph partition: inputs are vertices, documents are edges, and
// each microbatch beyond the first that touches an edge encodes that document again (connectivity
// minus one, as in Catalyurek and Aykanat, doi:10.1109/71.780863). Pure functions; deterministic.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace contexture::retriever {

struct AssemblyProblem {
  std::vector<std::vector<int64_t>> documents;  // [inputs]: rows that each reads
  std::vector<double> input_cost;               // [inputs]: time of its own work, any unit
  std::map<int64_t, double> document_cost;      // by row: time of encoding it once, same unit
  std::vector<size_t> sizes;  // [microbatches]: inputs in each; they add up to the number of inputs
  double imbalance = 0.05;  // the slowest microbatch may take so much longer than the mean, or than
                            // in arrival order
};

struct Assembly {
  std::vector<size_t> order;       // [inputs], microbatch by microbatch, ascending within each
  int64_t encoded = 0;             // documents encoded: distinct ones of each microbatch, summed
  int64_t encoded_as_arrived = 0;  // the same in arrival order
};

// Greedy growth, then swaps of inputs between microbatches while one saves encoding time and keeps
// the balance. Arrival order where nothing is saved.
Assembly group_by_documents(const AssemblyProblem& problem);

}  // namespace contexture::retriever
