#include "retriever/assembly.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace contexture::retriever {
namespace {

using Members = std::vector<std::vector<size_t>>;  // [microbatches]: inputs

// A cut with its counts, changed by swaps.
class Cut {
 public:
  Cut(const AssemblyProblem& problem, Members members)
      : problem_(&problem), members_(std::move(members)), counts_(members_.size()) {
    part_of_.resize(problem.documents.size());
    cost_.resize(members_.size(), 0.0);
    for (size_t part = 0; part < members_.size(); ++part) {
      for (const size_t i : members_[part]) {
        part_of_[i] = part;
        add(part, i);
      }
    }
  }

  const Members& members() const { return members_; }
  size_t part_of(size_t input) const { return part_of_[input]; }
  const std::vector<double>& cost() const { return cost_; }
  bool reads(size_t part, int64_t document) const { return counts_[part].count(document) != 0; }
  int64_t encoded() const {
    int64_t out = 0;
    for (const auto& count : counts_) out += static_cast<int64_t>(count.size());
    return out;
  }

  void swap(size_t i, size_t j) {
    const size_t a = part_of_[i], b = part_of_[j];
    remove(a, i);
    remove(b, j);
    add(a, j);
    add(b, i);
    std::replace(members_[a].begin(), members_[a].end(), i, j);
    std::replace(members_[b].begin(), members_[b].end(), j, i);
    std::swap(part_of_[i], part_of_[j]);
  }

 private:
  double cost_of(int64_t document) const { return problem_->document_cost.at(document); }
  void add(size_t part, size_t input) {
    cost_[part] += problem_->input_cost[input];
    for (const int64_t d : problem_->documents[input]) {
      if (++counts_[part][d] == 1) cost_[part] += cost_of(d);
    }
  }
  void remove(size_t part, size_t input) {
    cost_[part] -= problem_->input_cost[input];
    for (const int64_t d : problem_->documents[input]) {
      const auto it = counts_[part].find(d);
      if (--it->second > 0) continue;
      counts_[part].erase(it);
      cost_[part] -= cost_of(d);
    }
  }

  const AssemblyProblem* problem_;
  Members members_;
  std::vector<size_t> part_of_;
  std::vector<std::map<int64_t, int>>
      counts_;                // [microbatches]: how many of its inputs read a document
  std::vector<double> cost_;  // [microbatches]
};

double sum(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }
double most(const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); }

Members in_arrival_order(const AssemblyProblem& problem) {
  Members out;
  size_t next = 0;
  for (const size_t size : problem.sizes) {
    out.emplace_back();
    while (out.back().size() < size) out.back().push_back(next++);
  }
  return out;
}

// Fills one microbatch after another: the first input left, then whichever shares most encoding
// time with those already there.
Members grown(const AssemblyProblem& problem) {
  std::map<int64_t, std::vector<size_t>> readers;
  for (size_t i = 0; i < problem.documents.size(); ++i) {
    for (const int64_t d : problem.documents[i]) readers[d].push_back(i);
  }
  std::vector<bool> taken(problem.documents.size(), false);
  Members out;
  for (const size_t size : problem.sizes) {
    out.emplace_back();
    std::vector<double> shared(problem.documents.size(), 0.0);
    std::map<int64_t, bool> present;
    while (out.back().size() < size) {
      size_t best = problem.documents.size();
      for (size_t i = 0; i < problem.documents.size(); ++i) {
        if (!taken[i] && (best == problem.documents.size() || shared[i] > shared[best])) best = i;
      }
      taken[best] = true;
      out.back().push_back(best);
      for (const int64_t d : problem.documents[best]) {
        if (!present.emplace(d, true).second) continue;
        for (const size_t i : readers[d]) shared[i] += problem.document_cost.at(d);
      }
    }
  }
  return out;
}

// Swaps i with the input that saves most, among those of microbatches that already read one of its
// documents.
bool improve(const AssemblyProblem& problem, Cut& cut, size_t i, double limit) {
  const double before = sum(cut.cost()), before_most = most(cut.cost());
  std::vector<bool> tried(problem.sizes.size(), false);
  tried[cut.part_of(i)] = true;
  double best_saving = 1e-9 * before;
  size_t best = i;
  for (size_t part = 0; part < problem.sizes.size(); ++part) {
    const bool shares = std::any_of(problem.documents[i].begin(), problem.documents[i].end(),
                                    [&](int64_t d) { return cut.reads(part, d); });
    if (tried[part] || !shares) continue;
    const std::vector<size_t> others = cut.members()[part];
    for (const size_t j : others) {
      cut.swap(i, j);
      const double saving = before - sum(cut.cost());
      if (saving > best_saving && most(cut.cost()) <= std::max(limit, before_most)) {
        best_saving = saving;
        best = j;
      }
      cut.swap(i, j);
    }
  }
  if (best == i) return false;
  cut.swap(i, best);
  return true;
}

Assembly finished(const Cut& cut, const Cut& arrived) {
  Assembly out;
  for (std::vector<size_t> part : cut.members()) {
    std::sort(part.begin(), part.end());
    out.order.insert(out.order.end(), part.begin(), part.end());
  }
  out.encoded = cut.encoded();
  out.encoded_as_arrived = arrived.encoded();
  return out;
}

}  // namespace

Assembly group_by_documents(const AssemblyProblem& problem) {
  const size_t n = problem.documents.size();
  CONTEXTURE_INVARIANT(
      problem.input_cost.size() == n &&
          std::accumulate(problem.sizes.begin(), problem.sizes.end(), size_t{0}) == n,
      "an assembly problem whose parts do not agree");
  const Cut arrived(problem, in_arrival_order(problem));
  if (problem.sizes.size() < 2 || n == 0) return finished(arrived, arrived);
  const auto refined = [&](Members start) {
    Cut cut(problem, std::move(start));
    const double mean = sum(cut.cost()) / static_cast<double>(problem.sizes.size());
    const double limit = std::max((1.0 + problem.imbalance) * mean, most(arrived.cost()));
    bool moved = true;
    for (int pass = 0; pass < 4 && moved; ++pass) {
      moved = false;
      for (size_t i = 0; i < n; ++i) moved = improve(problem, cut, i, limit) || moved;
    }
    return cut;
  };
  // From the grown start and from arrival order (which the swaps keep balanced); the least work in
  // sum wins if it is not slower.
  const Cut candidates[] = {refined(grown(problem)), refined(in_arrival_order(problem))};
  const Cut* best = &arrived;
  const double slowest =
      std::max(most(arrived.cost()), (1.0 + problem.imbalance) * sum(arrived.cost()) /
                                         static_cast<double>(problem.sizes.size()));
  for (const Cut& cut : candidates) {
    if (most(cut.cost()) <= slowest && sum(cut.cost()) < sum(best->cost()) * (1.0 - 1e-9))
      best = &cut;
  }
  return finished(*best, arrived);
}

}  // namespace contexture::retriever
