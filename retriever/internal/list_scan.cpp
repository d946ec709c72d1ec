#include "retriever/internal/list_scan.h"

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFFlat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <typeinfo>

#include "core/error.h"
#include "retriever/internal/parallel_for.h"
#include "retriever/internal/score.h"
#include "retriever/internal/shortlist.h"

namespace contexture::retriever::internal {
namespace {

// A part of a list, and the queries that read it: a thread's unit of work.
struct Piece {
  int64_t list, begin, end;
};

}  // namespace

std::unique_ptr<ListScan> ListScan::make(const faiss::IndexIVF* ivf, bool unit_length) {
  if (ivf == nullptr || typeid(*ivf) != typeid(faiss::IndexIVFFlat)) return nullptr;
  const auto* quantizer = dynamic_cast<const faiss::IndexFlat*>(ivf->quantizer);
  if (quantizer == nullptr || ivf->metric_type != faiss::METRIC_INNER_PRODUCT ||
      ivf->invlists == nullptr)
    return nullptr;
  std::unique_ptr<ListScan> scan(new ListScan(*ivf));
  const float* centroids = quantizer->get_xb();
  scan->centroids_ = make_exact_store(Metric::kInnerProduct, ivf->d,
                                      {centroids, centroids + quantizer->ntotal * ivf->d});
  if (unit_length) return scan;
  std::vector<float> vector(ivf->d);
  for (size_t list = 0; list < ivf->nlist; ++list) {
    const uint8_t* codes = ivf->invlists->get_codes(list);
    for (size_t i = 0; i < ivf->invlists->list_size(list); ++i) {
      std::memcpy(vector.data(), codes + i * ivf->code_size, ivf->code_size);
      scan->longest_ = std::max(scan->longest_, std::sqrt(squared_length(vector.data(), ivf->d)));
    }
  }
  return scan;
}

// The `wanted` nearest of some lists, nearest first, and the rows that they hold.
std::vector<int64_t> ListScan::nearest(std::span<const float> query,
                                       const std::vector<int64_t>& lists, int64_t wanted,
                                       int64_t* rows) const {
  std::vector<std::pair<double, int64_t>> ranked;
  for (const int64_t list : lists) {
    const float* centroid = centroids_->vector(list, nullptr);
    ranked.emplace_back(-inner_product(query.data(), centroid, ivf_.d), list);
  }
  std::sort(ranked.begin(), ranked.end());
  if (static_cast<int64_t>(ranked.size()) > wanted) ranked.resize(wanted);
  std::vector<int64_t> out;
  *rows = 0;
  for (const auto& [score, list] : ranked) {
    out.push_back(list);
    *rows += static_cast<int64_t>(ivf_.invlists->list_size(list));
  }
  return out;
}

std::vector<std::vector<int64_t>> ListScan::probes(std::span<const float> queries,
                                                   int64_t k) const {
  const int64_t probed = std::max<int64_t>(1, static_cast<int64_t>(ivf_.nprobe));
  std::vector<std::vector<int64_t>> lists = centroids_->candidates(queries, probed);
  const auto n = static_cast<int64_t>(lists.size());
  parallel_for(n, n * probed * ivf_.d, [&](int64_t q) {
    const auto query = queries.subspan(q * ivf_.d, ivf_.d);
    int64_t rows = 0;
    std::vector<int64_t> chosen = nearest(query, lists[q], probed, &rows);
    for (int64_t wanted = 2 * probed;
         rows < k && static_cast<int64_t>(chosen.size()) < centroids_->size(); wanted *= 2) {
      chosen = nearest(query, centroids_->candidates(query, wanted)[0], wanted, &rows);
    }
    lists[q] = std::move(chosen);
  });
  return lists;
}

std::vector<std::vector<int64_t>> ListScan::candidates(std::span<const float> queries,
                                                       int64_t k) const {
  const int64_t dim = ivf_.d, n = static_cast<int64_t>(queries.size()) / dim;
  const auto query = [&](int64_t q) { return queries.subspan(q * dim, dim); };
  std::vector<double> slacks(n);
  const std::vector<std::vector<int64_t>> probed = probes(queries, k);
  std::vector<std::vector<int64_t>> readers(ivf_.nlist);
  for (int64_t q = 0; q < n; ++q) {
    slacks[q] = inner_product_slack(std::sqrt(squared_length(query(q).data(), dim)), longest_, dim);
    for (const int64_t list : probed[q]) readers[list].push_back(q);
  }
  constexpr int64_t kPiece = 16 * BlockScanner::kBlock;
  std::vector<Piece> pieces;
  [[maybe_unused]] int64_t work = 0;  // unused without OpenMP
  for (int64_t list = 0; list < static_cast<int64_t>(readers.size()); ++list) {
    if (readers[list].empty()) continue;
    const auto size = static_cast<int64_t>(ivf_.invlists->list_size(list));
    work += size * dim * static_cast<int64_t>(readers[list].size());
    for (int64_t begin = 0; begin < size; begin += kPiece)
      pieces.push_back({list, begin, std::min(size, begin + kPiece)});
  }
  std::vector<std::vector<Shortlist>> by_thread(static_cast<size_t>(max_threads()));
#pragma omp parallel if (work >= kWorthThreads)
  {
    std::vector<Shortlist>& mine = by_thread[static_cast<size_t>(thread_number())];
    mine.resize(n);
    for (Shortlist& shortlist : mine) shortlist.start(k);
    BlockScanner scanner(k, slacks, mine);
    std::vector<float> gathered;
#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto [list, begin, end] = pieces[i];
      const std::vector<int64_t>& mine_of = readers[list];
      gathered.clear();
      for (const int64_t q : mine_of)
        gathered.insert(gathered.end(), query(q).begin(), query(q).end());
      const QueryPanels panels(gathered.data(), static_cast<int64_t>(mine_of.size()), dim);
      const uint8_t* codes = ivf_.invlists->get_codes(list);
      const auto* ids = reinterpret_cast<const uint8_t*>(
          ivf_.invlists->get_ids(list));  // in a mapped file not aligned
      for (int64_t first = begin; first < end; first += BlockScanner::kBlock) {
        scanner.scan(panels, mine_of.data(), codes + first * static_cast<int64_t>(ivf_.code_size),
                     std::min(BlockScanner::kBlock, end - first), nullptr, [&](int64_t r) {
                       int64_t row;
                       std::memcpy(&row, ids + (first + r) * static_cast<int64_t>(sizeof(row)),
                                   sizeof(row));
                       return row;
                     });
      }
    }
  }
  std::vector<std::vector<int64_t>> rows(n);
  for (int64_t q = 0; q < n; ++q) rows[q] = merge_shortlists(by_thread, q, k, slacks[q]);
  return rows;
}

}  // namespace contexture::retriever::internal
