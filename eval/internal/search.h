// Searching for answers: hypotheses that grow by a token at a time, each over one reading (an
// input's documents together, or one of them), or for rag_token over an input's single readings in
// step. Where a model is spread over ranks, those with its head decide and tell the others.
#pragma once
#include <string>
#include <vector>

#include "core/rng.h"
#include "eval/internal/writer.h"

namespace contexture::eval {

constexpr int32_t kEos = 3;  // data/tokenizer.h

struct Hypothesis {
  std::vector<Line> lines;    // one, or one a document
  double log_prob = 0.0;      // of what is written
  std::vector<double> share;  // rag_token: sum over tokens of p(document | query, token)
  std::vector<int32_t> tokens;
  bool ended = false;  // the end piece came; otherwise the length ran out
};

struct Search {
  std::vector<double> log_prior;            // of the lines
  std::vector<Hypothesis> alive, finished;  // finished: best first, at most as many as beams
  Stream stream;                            // of the sampling
  bool done = false;
};

// A search that has written nothing yet. log_prior: of the readings.
Search search_over(const Writer& writer, const std::vector<int64_t>& readings,
                   std::vector<double> log_prior, uint64_t seed, size_t input);

// Runs all searches to their ends together, one pass a token.
void run(std::vector<Search>& searches, Writer& writer, const GenerateOptions& options);

double log_sum(const std::vector<double>& logs);

}  // namespace contexture::eval
