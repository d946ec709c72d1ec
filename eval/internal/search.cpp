// V vocabulary.
#include "eval/internal/search.h"

#include <algorithm>
#include <cmath>

namespace contexture::eval {
namespace {

// Next-token log-probabilities of a hypothesis, [V], from those of its lines.
std::vector<double> mixed(const Hypothesis& h, const std::vector<double>& log_prior) {
  const at::Tensor& first_V = h.lines.front().next_V;
  const double* first = first_V.data_ptr<double>();
  std::vector<double> out(first, first + first_V.numel());
  if (h.lines.size() == 1) return out;
  std::vector<const double*> next;
  for (const Line& line : h.lines) next.push_back(line.next_V.data_ptr<double>());
  std::vector<double> terms(next.size());
  for (size_t v = 0; v < out.size(); ++v) {
    for (size_t k = 0; k < next.size(); ++k) terms[k] = log_prior[k] + next[k][v];
    out[v] = log_sum(terms);
  }
  return out;
}

int32_t pick(const std::vector<double>& log_prob, double temperature, Stream& stream) {
  const auto best = std::max_element(log_prob.begin(), log_prob.end());
  if (temperature <= 0.0) return static_cast<int32_t>(best - log_prob.begin());
  double total = 0.0;
  for (const double l : log_prob) total += std::exp((l - *best) / temperature);
  double left = stream.uniform() * total;
  for (size_t v = 0; v < log_prob.size(); ++v) {
    left -= std::exp((log_prob[v] - *best) / temperature);
    if (left <= 0.0) return static_cast<int32_t>(v);
  }
  return static_cast<int32_t>(log_prob.size() - 1);
}

// A hypothesis and the token it goes on with.
struct Step {
  double log_prob;
  size_t parent;
  int32_t token;
  std::vector<double> share;  // rag_token: p(document | query, token)
};

// How a search could go on, best first: as many steps as there may be use for.
std::vector<Step> steps_of(Search& search, const GenerateOptions& options) {
  std::vector<std::vector<double>> next;
  for (const Hypothesis& h : search.alive) next.push_back(mixed(h, search.log_prior));
  std::vector<Step> steps;
  if (options.beams == 1) {
    const int32_t token = pick(next[0], options.temperature, search.stream);
    steps.push_back({search.alive[0].log_prob + next[0][token], 0, token, {}});
  } else {
    for (size_t h = 0; h < next.size(); ++h) {
      for (size_t v = 0; v < next[h].size(); ++v)
        steps.push_back({search.alive[h].log_prob + next[h][v], h, static_cast<int32_t>(v), {}});
    }
    // As many ends as there are hypotheses could be among the best.
    const size_t keep = std::min(steps.size(), 2 * static_cast<size_t>(options.beams));
    std::partial_sort(steps.begin(), steps.begin() + static_cast<int64_t>(keep), steps.end(),
                      [](const Step& a, const Step& b) {
                        return a.log_prob != b.log_prob
                                   ? a.log_prob > b.log_prob
                                   : std::pair(a.parent, a.token) < std::pair(b.parent, b.token);
                      });
    steps.resize(keep);
  }
  for (Step& step : steps) {
    const std::vector<Line>& lines = search.alive[step.parent].lines;
    for (size_t k = 0; lines.size() > 1 && k < lines.size(); ++k) {
      const double line = lines[k].next_V.data_ptr<double>()[step.token];
      step.share.push_back(std::exp(search.log_prior[k] + line - next[step.parent][step.token]));
    }
  }
  return steps;
}

// The steps of all searches that are alive, where the head is, made known to all ranks.
class Decisions {
 public:
  Decisions(std::vector<Search>& searches, const Writer& writer, const GenerateOptions& options) {
    int64_t most_lines = 0, alive = 0;
    bool has_head = true;
    for (const Search& search : searches) {
      if (search.alive.empty()) continue;
      most_lines = std::max(most_lines, static_cast<int64_t>(search.log_prior.size()));
      has_head = has_head && search.alive[0].lines[0].next_V.defined();
      ++alive;
    }
    const int64_t keep = options.beams == 1 ? 1 : 2 * options.beams;
    told_ = at::full({alive, keep, 3 + most_lines}, -1.0, at::kDouble);
    auto cell = told_.accessor<double, 3>();
    int64_t row = 0;
    for (Search& search : searches) {
      if (!has_head || search.alive.empty()) continue;
      const std::vector<Step> steps = steps_of(search, options);
      for (size_t s = 0; s < steps.size(); ++s) {
        auto to = cell[row][static_cast<int64_t>(s)];
        to[0] = steps[s].log_prob;
        to[1] = static_cast<double>(steps[s].parent);
        to[2] = steps[s].token;
        for (size_t k = 0; k < steps[s].share.size(); ++k)
          to[3 + static_cast<int64_t>(k)] = steps[s].share[k];
      }
      ++row;
    }
    writer.tell(told_);
  }

  // Of the next search that is alive.
  std::vector<Step> next(size_t num_lines) {
    const auto cell = told_.accessor<double, 3>()[row_++];
    std::vector<Step> out;
    for (int64_t s = 0; s < cell.size(0) && cell[s][2] >= 0; ++s) {
      out.push_back(
          {cell[s][0], static_cast<size_t>(cell[s][1]), static_cast<int32_t>(cell[s][2]), {}});
      for (size_t k = 0; num_lines > 1 && k < num_lines; ++k)
        out.back().share.push_back(cell[s][3 + static_cast<int64_t>(k)]);
    }
    return out;
  }

 private:
  at::Tensor
      told_;  // [alive searches, steps, log_prob and parent and token (-1: no step) and shares]
  int64_t row_ = 0;
};

void finish(Search& search, Hypothesis hypothesis, size_t beams) {
  const auto place =
      std::find_if(search.finished.begin(), search.finished.end(),
                   [&](const Hypothesis& h) { return h.log_prob < hypothesis.log_prob; });
  search.finished.insert(place, std::move(hypothesis));
  if (search.finished.size() > beams) search.finished.pop_back();
}

// Replaces a search's hypotheses by their continuations.
void extend(Search& search, const std::vector<Step>& steps, size_t beams) {
  std::vector<Hypothesis> alive;
  for (const Step& step : steps) {
    if (step.token != kEos && alive.size() == beams) continue;
    Hypothesis h = search.alive[step.parent];
    for (size_t k = 0; k < step.share.size(); ++k) h.share[k] += step.share[k];
    h.log_prob = step.log_prob;
    if (step.token == kEos) {
      h.ended = true;
      finish(search, std::move(h), beams);
    } else {
      h.tokens.push_back(step.token);
      alive.push_back(std::move(h));
    }
  }
  search.alive = std::move(alive);
  // Log-probabilities only fall: what is alive can no longer overtake.
  search.done =
      search.alive.empty() || (search.finished.size() == beams &&
                               search.finished.back().log_prob >= search.alive[0].log_prob);
}

}  // namespace

double log_sum(const std::vector<double>& logs) {
  const double most = *std::max_element(logs.begin(), logs.end());
  double sum = 0.0;
  for (const double l : logs) sum += std::exp(l - most);
  return most + std::log(sum);
}

// Runs all searches together, one pass a token.
void run(std::vector<Search>& searches, Writer& writer, const GenerateOptions& options) {
  const auto beams = static_cast<size_t>(options.beams);
  for (int64_t t = 0; t < options.max_new_tokens; ++t) {
    Decisions decisions(searches, writer, options);
    std::vector<Line*> lines;
    std::vector<int32_t> tokens;
    for (Search& search : searches) {
      if (search.alive.empty()) continue;
      extend(search, decisions.next(search.log_prior.size()), beams);
      if (search.done || t + 1 == options.max_new_tokens) {
        if (!search.done) {
          for (Hypothesis& h : search.alive) finish(search, std::move(h), beams);
        }
        search.alive.clear();
      }
      for (Hypothesis& h : search.alive) {
        for (Line& line : h.lines) {
          lines.push_back(&line);
          tokens.push_back(h.tokens.back());
        }
      }
    }
    if (!writer.append(lines, tokens)) break;
  }
}

Search search_over(const Writer& writer, const std::vector<int64_t>& readings,
                   std::vector<double> log_prior, uint64_t seed, size_t input) {
  Search out{
      std::move(log_prior), {}, {}, Stream(seed, "generate", static_cast<uint64_t>(input)), false};
  Hypothesis& h = out.alive.emplace_back();
  for (const int64_t r : readings) h.lines.push_back(writer.start(r));
  h.share.assign(readings.size(), 0.0);
  return out;
}

}  // namespace contexture::eval
