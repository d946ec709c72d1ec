// V vocabulary. A search is over one reading (an input's documents together, or one of them), or
// for rag_token over an input's single readings in step.
#include "eval/generate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "core/rng.h"
#include "eval/internal/writer.h"

namespace contexture::eval {
namespace {

constexpr int32_t kEos = 3;  // data/tokenizer.h
constexpr double kNever = -1e30;

double log_sum(const std::vector<double>& logs) {
  const double most = *std::max_element(logs.begin(), logs.end());
  double sum = 0.0;
  for (const double l : logs) sum += std::exp(l - most);
  return most + std::log(sum);
}

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

// Next-token log-probabilities of a hypothesis, [V], from those of its lines.
std::vector<double> mixed(const double* lines_V, size_t num_lines, int64_t vocab,
                          const std::vector<double>& log_prior) {
  std::vector<double> out(lines_V, lines_V + vocab);
  if (num_lines == 1) return out;
  std::vector<double> terms(num_lines);
  for (int64_t v = 0; v < vocab; ++v) {
    for (size_t k = 0; k < num_lines; ++k)
      terms[k] = log_prior[k] + lines_V[static_cast<int64_t>(k) * vocab + v];
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
};

void finish(Search& search, Hypothesis hypothesis, size_t beams) {
  const auto place =
      std::find_if(search.finished.begin(), search.finished.end(),
                   [&](const Hypothesis& h) { return h.log_prob < hypothesis.log_prob; });
  search.finished.insert(place, std::move(hypothesis));
  if (search.finished.size() > beams) search.finished.pop_back();
}

// Replaces a search's hypotheses by their continuations. next: [alive][V].
void extend(Search& search, const std::vector<std::vector<double>>& next,
            const std::vector<const double*>& by_line, const GenerateOptions& options) {
  const auto beams = static_cast<size_t>(options.beams);
  std::vector<Step> steps;
  if (beams == 1) {
    const int32_t token = pick(next[0], options.temperature, search.stream);
    steps.push_back({search.alive[0].log_prob + next[0][token], 0, token});
  } else {
    for (size_t h = 0; h < next.size(); ++h) {
      for (size_t v = 0; v < next[h].size(); ++v)
        steps.push_back({search.alive[h].log_prob + next[h][v], h, static_cast<int32_t>(v)});
    }
    // As many ends as there are hypotheses could be among the best.
    const size_t keep = std::min(steps.size(), 2 * beams);
    std::partial_sort(steps.begin(), steps.begin() + static_cast<int64_t>(keep), steps.end(),
                      [](const Step& a, const Step& b) {
                        return a.log_prob != b.log_prob
                                   ? a.log_prob > b.log_prob
                                   : std::pair(a.parent, a.token) < std::pair(b.parent, b.token);
                      });
    steps.resize(keep);
  }
  std::vector<Hypothesis> alive;
  for (const Step& step : steps) {
    if (step.token != kEos && alive.size() == beams) continue;
    Hypothesis h = search.alive[step.parent];
    const size_t num_lines = h.lines.size();
    for (size_t k = 0; num_lines > 1 && k < num_lines; ++k) {
      const auto vocab = static_cast<int64_t>(next[step.parent].size());
      const double line = by_line[step.parent][static_cast<int64_t>(k) * vocab + step.token];
      h.share[k] += std::exp(search.log_prior[k] + line - next[step.parent][step.token]);
    }
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

// Runs all searches together, one pass a token.
void run(std::vector<Search>& searches, Writer& writer, const GenerateOptions& options) {
  for (int64_t t = 0; t < options.max_new_tokens; ++t) {
    std::vector<const Line*> reading;
    for (Search& search : searches) {
      for (const Hypothesis& h : search.alive) {
        for (const Line& line : h.lines) reading.push_back(&line);
      }
    }
    if (reading.empty()) break;
    const at::Tensor log_prob = writer.next(reading);
    const int64_t vocab = log_prob.size(1);
    const double* row = log_prob.data_ptr<double>();
    std::vector<Line*> lines;
    std::vector<int32_t> tokens;
    for (Search& search : searches) {
      std::vector<std::vector<double>> next;
      std::vector<const double*> by_line;
      for (const Hypothesis& h : search.alive) {
        next.push_back(mixed(row, h.lines.size(), vocab, search.log_prior));
        by_line.push_back(row);
        row += static_cast<int64_t>(h.lines.size()) * vocab;
      }
      if (next.empty()) continue;
      extend(search, next, by_line, options);
      if (search.done || t + 1 == options.max_new_tokens) {
        if (!search.done) {
          for (Hypothesis& h : search.alive)
            finish(search, std::move(h), static_cast<size_t>(options.beams));
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
    if (!lines.empty()) writer.append(lines, tokens);
  }
}

Hypothesis from(const Writer& writer, const std::vector<int64_t>& readings) {
  Hypothesis h;
  for (const int64_t r : readings) h.lines.push_back(writer.start(r));
  h.share.assign(readings.size(), 0.0);
  return h;
}

Search search_over(const Writer& writer, const std::vector<int64_t>& readings,
                   std::vector<double> log_prior, uint64_t seed, size_t input) {
  Search out{
      std::move(log_prior), {}, {}, Stream(seed, "generate", static_cast<uint64_t>(input)), false};
  out.alive.push_back(from(writer, readings));
  return out;
}

// An answer as one document's search found it.
using Answer = std::pair<std::vector<int32_t>, bool>;  // tokens, ended

// Log-probabilities of answers after readings, one pass a token for all.
std::vector<double> score(Writer& writer,
                          const std::vector<std::pair<int64_t, const Answer*>>& wanted) {
  std::vector<double> out(wanted.size(), 0.0);
  std::vector<Line> lines;
  for (const auto& [reading, answer] : wanted) lines.push_back(writer.start(reading));
  for (size_t t = 0;; ++t) {
    std::vector<size_t> active;
    std::vector<const Line*> reading;
    for (size_t w = 0; w < wanted.size(); ++w) {
      const auto& [tokens, ended] = *wanted[w].second;
      if (t >= tokens.size() + (ended ? 1 : 0)) continue;
      active.push_back(w);
      reading.push_back(&lines[w]);
    }
    if (active.empty()) return out;
    const at::Tensor log_prob = writer.next(reading);
    std::vector<Line*> going;
    std::vector<int32_t> next;
    for (size_t a = 0; a < active.size(); ++a) {
      const std::vector<int32_t>& tokens = wanted[active[a]].second->first;
      const int32_t token = t < tokens.size() ? tokens[t] : kEos;
      out[active[a]] +=
          log_prob.data_ptr<double>()[static_cast<int64_t>(a) * log_prob.size(1) + token];
      if (token == kEos) continue;
      going.push_back(&lines[active[a]]);
      next.push_back(token);
    }
    if (!going.empty()) writer.append(going, next);
  }
}

// The best of all answers that an input's searches found, under the mixture over its documents.
// searches: one a reading.
std::vector<Generated> marginal_answers(const std::vector<Search>& searches,
                                        const std::vector<std::vector<int64_t>>& readings,
                                        const std::vector<std::vector<double>>& log_prior,
                                        Writer& writer, bool thorough) {
  std::vector<std::map<Answer, std::vector<double>>> found(
      readings.size());  // log-probability by document
  std::vector<std::pair<int64_t, const Answer*>> missing;
  std::vector<double*> missing_place;
  for (size_t i = 0; i < readings.size(); ++i) {
    for (size_t k = 0; k < readings[i].size(); ++k) {
      for (const Hypothesis& h : searches[readings[i][k]].finished) {
        auto& scores =
            found[i].try_emplace({h.tokens, h.ended}, readings[i].size(), kNever).first->second;
        scores[k] = h.log_prob;
      }
    }
    for (auto& [answer, scores] : found[i]) {
      for (size_t k = 0; thorough && k < scores.size(); ++k) {
        if (scores[k] != kNever) continue;
        missing.emplace_back(readings[i][k], &answer);
        missing_place.push_back(&scores[k]);
      }
    }
  }
  const std::vector<double> scored = score(writer, missing);
  for (size_t w = 0; w < scored.size(); ++w) *missing_place[w] = scored[w];
  std::vector<Generated> out;
  for (size_t i = 0; i < readings.size(); ++i) {
    Generated& best = out.emplace_back();
    best.log_prob = 2 * kNever;
    for (const auto& [answer, scores] : found[i]) {
      std::vector<double> joint(scores.size());
      for (size_t k = 0; k < scores.size(); ++k) joint[k] = log_prior[i][k] + scores[k];
      const double total = log_sum(joint);
      if (total <= best.log_prob) continue;
      best = {answer.first, total, {}, {}};
      for (const double j : joint) best.document_share.push_back(std::exp(j - total));
    }
  }
  return out;
}

}  // namespace

void GenerateOptions::validate() const {
  CONTEXTURE_USAGE_REQUIRE(
      decoder == "joint" || decoder == "rag_token" || decoder == "rag_sequence",
      "decoder=", decoder, " is not known. Use joint, rag_token or rag_sequence.");
  CONTEXTURE_USAGE_REQUIRE(beams > 0, "beams=", beams, " must be at least 1.");
  CONTEXTURE_USAGE_REQUIRE(max_new_tokens > 0, "max_new_tokens=", max_new_tokens,
                           " must be at least 1.");
  CONTEXTURE_USAGE_REQUIRE(
      temperature == 0 || (beams == 1 && decoder != "rag_sequence"), "temperature=", temperature,
      " samples, but beams=", beams, " and decoder=", decoder,
      " search. Set temperature=0, or beams=1 and decoder=joint or rag_token.");
}

std::vector<Generated> generate(const model::Model& model, const model::Microbatch& microbatch,
                                const GenerateOptions& options, DocumentCache* cache) {
  options.validate();
  if (microbatch.inputs.empty()) return {};
  const bool joint = options.decoder == "joint";
  model::Microbatch prompts = microbatch;
  prompts.readings = {};
  if (!joint) {
    prompts.readings.joint = false;
    prompts.readings.single = true;
    // Without documents RAG has nothing to sum over: closed book.
    prompts.readings.none = std::any_of(prompts.inputs.begin(), prompts.inputs.end(),
                                        [](const auto& input) { return input.documents.empty(); });
  }
  Writer writer(model, prompts, cache);
  std::vector<std::vector<int64_t>> readings;  // by input
  std::vector<std::vector<double>> log_prior;
  int64_t next = 0;
  for (size_t i = 0; i < prompts.inputs.size(); ++i) {
    readings.emplace_back();
    log_prior.emplace_back();
    const size_t documents = prompts.inputs[i].documents.size();
    const size_t count = joint ? 1 : documents + (prompts.readings.none ? 1 : 0);
    for (size_t k = 0; k < count; ++k, ++next) {
      if (!joint && k == documents && documents > 0)
        continue;  // an input with documents doesn't go without
      readings.back().push_back(next);
      log_prior.back().push_back(joint || documents == 0 ? 0.0
                                                         : std::log(writer.document_prob()[i][k]));
    }
  }
  std::vector<Search> searches;
  std::vector<Generated> out;
  if (options.decoder == "rag_sequence") {
    // One search a reading; that of a document-less reading nobody asks for stays empty.
    for (int64_t r = 0; r < writer.num_readings(); ++r)
      searches.push_back({{0.0}, {}, {}, Stream(options.seed, "generate", 0), false});
    for (const std::vector<int64_t>& of_input : readings) {
      for (const int64_t r : of_input) searches[r].alive.push_back(from(writer, {r}));
    }
    run(searches, writer, options);
    out = marginal_answers(searches, readings, log_prior, writer, options.thorough);
  } else {
    for (size_t i = 0; i < readings.size(); ++i)
      searches.push_back(search_over(writer, readings[i], log_prior[i], options.seed, i));
    run(searches, writer, options);
    for (const Search& search : searches) {
      const Hypothesis& best = search.finished.front();
      Generated& g = out.emplace_back();
      g.tokens = best.tokens;
      g.log_prob = best.log_prob;
      const auto written = static_cast<double>(best.tokens.size() + (best.ended ? 1 : 0));
      for (const double s : best.share) g.document_share.push_back(s / written);
    }
  }
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].document_prob = writer.document_prob()[i];
    const size_t documents = out[i].document_prob.size();
    if (documents == 0) out[i].document_share.clear();
    if (documents == 1) out[i].document_share = {1.0};
    if (!joint) continue;
    // The attention holds the null key first, then the documents.
    const Line& line = searches[i].finished.front().lines.front();
    out[i].document_share.clear();
    for (size_t k = 0; k < documents; ++k) {
      const bool attends = line.attention_count > 0;
      out[i].document_share.push_back(attends ? line.attention[k + 1] /
                                                    static_cast<double>(line.attention_count)
                                              : out[i].document_prob[k]);
    }
  }
  return out;
}

}  // namespace contexture::eval
