#include <algorithm>

#include "core/error.h"
#include "retriever/assembly.h"
#include "train/step.h"

namespace contexture::train {
namespace {

// Pieces and patches: what a sequence costs, near enough, to encode or to read.
double rows_of(const RunConfig& config, const model::Sequence& sequence) {
  return static_cast<double>(sequence.tokens.size()) +
         static_cast<double>(sequence.patches ? config.model.num_patches() : 0);
}

// The rows (at most k) of every replica's inputs, on all of them.
void share_rows(const RunConfig& config, const parallel::Engine& engine,
                std::vector<std::vector<int64_t>>& rows, int64_t k) {
  if (engine.groups().dp == nullptr) return;
  const auto [begin, end] = share_of(config, engine.groups()).mine(rows.size());
  const at::Tensor mine = at::full({static_cast<int64_t>(end - begin), k}, -1, at::kLong);
  for (size_t i = begin; i < end; ++i) {
    for (size_t s = 0; s < rows[i].size(); ++s) mine[i - begin][s] = rows[i][s];
  }
  const at::Tensor all = engine.gather_rows(mine);
  const auto cells = all.accessor<int64_t, 2>();
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].clear();
    for (int64_t s = 0; s < k && cells[i][s] >= 0; ++s) rows[i].push_back(cells[i][s]);
  }
}

template <typename T>
void reorder(std::vector<T>& values, const std::vector<size_t>& order) {
  std::vector<T> out;
  for (const size_t i : order) out.push_back(std::move(values[i]));
  values = std::move(out);
}

}  // namespace

void group(const RunConfig& config, Session& session, PreparedStep& step, Lookup& lookup) {
  const Share share = share_of(config, session.engine().groups());
  if (config.data.assembly != "grouped" || share.total() == 1 || config.retriever.documents == 0)
    return;
  share_rows(config, session.engine(), lookup.documents, config.retriever.documents);
  if (config.retriever.hard_negatives > 0) {
    share_rows(config, session.engine(), lookup.negatives, config.retriever.hard_negatives);
  }
  retriever::AssemblyProblem problem;
  problem.documents = lookup.documents;
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    problem.input_cost.push_back(rows_of(config, step.inputs[i].prompt) +
                                 static_cast<double>(step.inputs[i].target.size()));
    for (const int64_t row : lookup.documents[i]) {
      if (problem.document_cost.count(row) == 0)
        problem.document_cost[row] = rows_of(config, session.documents().sequence(row));
    }
  }
  for (int64_t run = 0; run < share.total(); ++run) {
    const auto [begin, end] = Share::run(step.inputs.size(), run, share.total());
    problem.sizes.push_back(end - begin);
  }
  const std::vector<size_t> order = retriever::group_by_documents(problem).order;
  reorder(step.inputs, order);
  reorder(lookup.documents, order);
  reorder(lookup.negatives, order);
  reorder(lookup.rankings, order);
}

}  // namespace contexture::train
