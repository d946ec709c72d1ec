// Search over rows that are spread over ranks: each rank searches its own rows for the queries of
// all, and the k best of what they found are the k best of all rows, whatever the number of ranks.
// B queries of this rank, E embedding width.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "retriever/index.h"

namespace contexture::retriever {

// The k best of some queries [n * E], with row numbers that are the whole index's.
using LocalSearch = std::function<std::vector<Ranking>(std::span<const float> queries, int64_t k)>;

// Hits of all ranks for this rank's own queries, in no order: hand them to keep_best(). query_BE:
// CPU fp32, B may differ by rank and be 0. k: the largest of any rank counts, so that ranks that
// ask nothing need not know it; nothing comes back, on every rank, where all gave 0. Collective.
std::optional<std::vector<Ranking>> search_ranks(parallel::Communicator& group,
                                                 const at::Tensor& query_BE, int64_t k,
                                                 const LocalSearch& search);

// Cuts a ranking to its k best: by score, then by id in byte order.
using IdOfRow = std::function<const std::string&(int64_t row)>;
void keep_best(Ranking& ranking, int64_t k, const IdOfRow& id_of);

}  // namespace contexture::retriever
