#include "eval/generate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "eval/internal/search.h"

namespace contexture::eval {
namespace {

constexpr double kNever = -1e30;

// An answer as one document's search found it.
using Answer = std::pair<std::vector<int32_t>, bool>;  // tokens, ended

// Log-probabilities of answers after readings, one pass a token for all.
std::vector<double> score(Writer& writer,
                          const std::vector<std::pair<int64_t, const Answer*>>& wanted) {
  std::vector<double> out(wanted.size(), 0.0);
  std::vector<Line> lines;
  for (const auto& [reading, answer] : wanted) lines.push_back(writer.start(reading));
  bool more = true;
  for (size_t t = 0; more; ++t) {
    std::vector<Line*> going;
    std::vector<int32_t> next;
    for (size_t w = 0; w < wanted.size(); ++w) {
      const auto& [tokens, ended] = *wanted[w].second;
      const size_t length = tokens.size() + (ended ? 1 : 0);
      if (t >= length) continue;
      const int32_t token = t < tokens.size() ? tokens[t] : kEos;
      if (lines[w].next_V.defined()) out[w] += lines[w].next_V.data_ptr<double>()[token];
      if (t + 1 == length) continue;
      going.push_back(&lines[w]);
      next.push_back(token);
    }
    more = writer.append(going, next);
  }
  writer.tell(at::from_blob(out.data(), {static_cast<int64_t>(out.size())}, at::kDouble));
  return out;
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
  return generate(model, parallel::Inference(model.blocks()), microbatch, options, cache);
}

std::vector<Generated> generate(const model::Model& model, const parallel::Inference& inference,
                                const model::Microbatch& microbatch, const GenerateOptions& options,
                                DocumentCache* cache) {
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
  Writer writer(model, inference, prompts, cache);
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
      for (const int64_t r : of_input)
        searches[r] = search_over(writer, {r}, {0.0}, options.seed, 0);
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
  std::vector<const Line*> written;  // joint: one an input
  for (size_t i = 0; joint && i < out.size(); ++i)
    written.push_back(&searches[i].finished.front().lines.front());
  const std::vector<std::vector<double>> attention = writer.attention(written);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].document_prob = writer.document_prob()[i];
    const size_t documents = out[i].document_prob.size();
    if (documents == 0) out[i].document_share.clear();
    if (documents == 1) out[i].document_share = {1.0};
    if (!joint) continue;
    // The attention holds the null key first, then the documents.
    out[i].document_share =
        attention[i].empty()
            ? out[i].document_prob
            : std::vector<double>(attention[i].begin() + 1,
                                  attention[i].begin() + 1 + static_cast<int64_t>(documents));
  }
  return out;
}

}  // namespace contexture::eval
