// R ranks, B queries of a rank (padded to the most of any), K hits.
#include "retriever/rank_search.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "parallel/gather.h"

namespace contexture::retriever {

std::optional<std::vector<Ranking>> search_ranks(parallel::Communicator& group,
                                                 const at::Tensor& query_BE, int64_t k,
                                                 const LocalSearch& search) {
  const int64_t R = group.size();
  const at::Tensor asked = at::empty({R, 2}, at::kLong);
  group.all_gather(asked.view(-1), at::tensor({query_BE.size(0), k}, at::kLong)).wait();
  const auto cells = asked.accessor<int64_t, 2>();
  int64_t B = 0, K = 0;
  for (int64_t r = 0; r < R; ++r) {
    B = std::max(B, cells[r][0]);
    K = std::max(K, cells[r][1]);
  }
  if (K == 0) return std::nullopt;
  std::vector<Ranking> mine(static_cast<size_t>(query_BE.size(0)));
  if (B == 0) return mine;
  const at::Tensor all = parallel::gather_rows(&group, query_BE);
  const std::vector<Ranking> found =
      search({all.data_ptr<float>(), static_cast<size_t>(all.numel())}, K);
  CONTEXTURE_INVARIANT(static_cast<int64_t>(found.size()) == all.size(0), found.size(),
                       " rankings of ", all.size(0), " queries");
  // A hit is its row and the bits of its score; row -1 is none.
  const at::Tensor sent = at::full({R, B, K, 2}, -1, at::kLong), got = at::empty_like(sent);
  int64_t* out = sent.data_ptr<int64_t>();
  size_t query = 0;
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t b = 0; b < cells[r][0]; ++b, ++query) {
      for (size_t h = 0; h < found[query].size(); ++h) {
        int64_t* cell = out + ((r * B + b) * K + static_cast<int64_t>(h)) * 2;
        cell[0] = found[query][h].row;
        cell[1] = std::bit_cast<int64_t>(found[query][h].score);
      }
    }
  }
  group.all_to_all(got.view(-1), sent.view(-1)).wait();
  for (int64_t r = 0; r < R; ++r) {
    for (size_t b = 0; b < mine.size(); ++b) {
      const int64_t* cell = got.data_ptr<int64_t>() + (r * B + static_cast<int64_t>(b)) * K * 2;
      for (int64_t h = 0; h < K && cell[2 * h] >= 0; ++h)
        mine[b].push_back({cell[2 * h], std::bit_cast<double>(cell[2 * h + 1])});
    }
  }
  return mine;
}

void keep_best(Ranking& ranking, int64_t k, const IdOfRow& id_of) {
  const int64_t kept = std::min<int64_t>(k, static_cast<int64_t>(ranking.size()));
  std::partial_sort(ranking.begin(), ranking.begin() + kept, ranking.end(),
                    [&](const Hit& a, const Hit& b) {
                      return a.score != b.score ? a.score > b.score : id_of(a.row) < id_of(b.row);
                    });
  ranking.resize(kept);
}

}  // namespace contexture::retriever
