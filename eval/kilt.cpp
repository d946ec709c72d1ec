#include "eval/kilt.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "core/error.h"
#include "eval/answers.h"
#include "eval/internal/unicode_text.h"

namespace contexture::eval {
namespace {

using Words = std::vector<std::string>;

// Sentences as the reference cuts them: at full stops, white space squeezed; one of blanks alone is
// one empty word.
std::vector<Words> sentences(std::string_view text) {
  std::vector<Words> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    if (end > begin) {
      Words words;
      for (const auto& word :
           internal::split(internal::to_utf32(text.substr(begin, end - begin)))) {
        words.push_back(internal::to_utf8(word));
      }
      out.push_back(words.empty() ? Words{""} : std::move(words));
    }
    begin = end + 1;
  }
  return out;
}

// Adds the words of one longest common subsequence of a and b; which one matters when there are
// several.
void add_common(const Words& a, const Words& b, std::set<std::string>& common) {
  std::vector<std::vector<int>> length(a.size() + 1, std::vector<int>(b.size() + 1, 0));
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      length[i][j] = a[i - 1] == b[j - 1] ? length[i - 1][j - 1] + 1
                                          : std::max(length[i - 1][j], length[i][j - 1]);
    }
  }
  for (size_t i = a.size(), j = b.size(); i > 0 && j > 0;) {
    if (a[i - 1] == b[j - 1]) {
      common.insert(a[i - 1]);
      --i, --j;
    } else if (length[i - 1][j] > length[i][j - 1]) {
      --i;
    } else {
      --j;
    }
  }
}

size_t distinct_words(const std::vector<Words>& text) {
  std::set<std::string> words;
  for (const Words& sentence : text) words.insert(sentence.begin(), sentence.end());
  return words.size();
}

std::vector<std::string> pages(const data::KiltOutput& output) {
  std::vector<std::string> ids;
  for (const auto& evidence : output.provenance) {
    if (std::find(ids.begin(), ids.end(), evidence.wikipedia_id) == ids.end())
      ids.push_back(evidence.wikipedia_id);
  }
  return ids;
}

double r_precision(const data::KiltRecord& gold, const std::vector<std::string>& found) {
  double best = 0.0;
  for (const data::KiltOutput& output : gold.outputs) {
    const std::vector<std::string> wanted = pages(output);
    double hits = 0.0;
    for (size_t i = 0; i < std::min(found.size(), wanted.size()); ++i) {
      hits += std::find(wanted.begin(), wanted.end(), found[i]) != wanted.end() ? 1.0 : 0.0;
    }
    if (!wanted.empty()) best = std::max(best, hits / static_cast<double>(wanted.size()));
  }
  return best;
}

struct EvidenceRank {
  std::vector<bool>
      complete;  // by place: an evidence set's last page (else a stray page, or a set begun)
  size_t num_sets = 0;
};

// Each evidence set takes one place of the ranking: that of the page which completed it, or so far
// the last of its pages. A page of no set takes a place of its own.
EvidenceRank evidence_rank(const data::KiltRecord& gold, const std::vector<std::string>& found) {
  std::vector<std::set<std::string>> sets;
  for (const data::KiltOutput& output : gold.outputs) {
    const auto ids = pages(output);
    std::set<std::string> set(ids.begin(), ids.end());
    if (output.has_provenance && std::find(sets.begin(), sets.end(), set) == sets.end())
      sets.push_back(std::move(set));
  }
  constexpr int kStray = -1, kComplete = -2;  // else the number of a set that is not complete
  std::vector<int> places;
  for (const std::string& id : found) {
    bool wanted = false;
    for (size_t s = 0; s < sets.size(); ++s) {
      if (sets[s].erase(id) == 0) continue;
      wanted = true;
      std::erase(places, static_cast<int>(s));
      places.push_back(sets[s].empty() ? kComplete : static_cast<int>(s));
    }
    if (!wanted) places.push_back(kStray);
  }
  EvidenceRank rank;
  for (const int place : places) rank.complete.push_back(place == kComplete);
  rank.num_sets = sets.size();
  return rank;
}

double complete_within(const EvidenceRank& rank, int k) {
  const auto end =
      rank.complete.begin() + std::min<int64_t>(k, static_cast<int64_t>(rank.complete.size()));
  return static_cast<double>(std::count(rank.complete.begin(), end, true));
}

bool answer_in_context(const std::vector<std::string>& answers, const data::KiltOutput& guess,
                       int k) {
  for (size_t i = 0; i < std::min(guess.provenance.size(), static_cast<size_t>(k)); ++i) {
    const std::string text = normalize_answer(guess.provenance[i].text);
    for (const std::string& answer : answers) {
      if (text.find(normalize_answer(answer)) != std::string::npos) return true;
    }
  }
  return false;
}

}  // namespace

double kilt_rouge_l(std::string_view prediction, std::string_view reference) {
  const auto said = sentences(prediction), wanted = sentences(reference);
  if (said.empty() || wanted.empty()) return 0.0;
  std::set<std::string> common;
  for (const Words& w : wanted) {
    for (const Words& s : said) add_common(w, s, common);
  }
  const double precision =
      static_cast<double>(common.size()) / static_cast<double>(distinct_words(said));
  const double recall =
      static_cast<double>(common.size()) / static_cast<double>(distinct_words(wanted));
  return 2.0 * (precision * recall) /
         (precision + recall + 1e-8);  // the reference's guard against 0 / 0
}

ScoreTable score_kilt(const std::vector<data::KiltRecord>& gold,
                      const std::vector<data::KiltRecord>& guesses, const KiltOptions& options) {
  for (const int k : options.cutoffs)
    CONTEXTURE_REQUIRE(k >= 1, "a cut-off is at least 1, got ", k);
  std::unordered_map<std::string, const data::KiltRecord*> by_id;
  for (const auto& guess : guesses) {
    CONTEXTURE_DATA_REQUIRE(by_id.emplace(guess.id, &guess).second, "guess '", guess.id,
                            "' was made twice");
  }
  ScoreTable table;
  const std::vector<std::string> answer_names{"accuracy", "em", "f1", "rougel"};
  std::vector<std::string> names = answer_names;
  names.push_back("rprec");
  for (const char* name : {"recall@", "precision@", "success_rate@", "answer_in_context@"}) {
    for (const int k : options.cutoffs) names.push_back(concat(name, k));
  }
  for (const std::string& name : answer_names) names.push_back("kilt-" + name);
  for (const std::string& name : names) table.add(name);
  std::set<std::string> ids;
  for (const data::KiltRecord& record : gold) {
    CONTEXTURE_DATA_REQUIRE(ids.insert(record.id).second, "gold record '", record.id,
                            "' is there twice");
    const auto found = by_id.find(record.id);
    CONTEXTURE_DATA_REQUIRE(found != by_id.end(), "there is no guess for '", record.id, "'");
    const auto& outputs = found->second->outputs;
    CONTEXTURE_DATA_REQUIRE(outputs.size() == 1 && !outputs[0].answer.empty(), "the guess for '",
                            record.id, "' must hold exactly one output with an answer; it has ",
                            outputs.size(), " outputs");
    const std::vector<std::string> answers = record.answers();
    CONTEXTURE_DATA_REQUIRE(
        !answers.empty(), "gold record '", record.id,
        "' has no answer (KILT's test files have none: score against the dev file)");
    const std::string& answer = outputs[0].answer;
    const auto retrieved = pages(outputs[0]);
    const double rprec = r_precision(record, retrieved);
    const EvidenceRank rank = evidence_rank(record, retrieved);
    double rouge = 0.0;
    for (const std::string& reference : answers)
      rouge = std::max(rouge, kilt_rouge_l(answer, reference));
    const bool same = std::find(answers.begin(), answers.end(), answer) != answers.end();
    // KILT's F1 of two texts without tokens is 0, where SQuAD's is 1.
    const double f1 = answer_tokens(answer).empty() ? 0.0 : f1_score(answer, answers);
    std::vector<double> row{same ? 1.0 : 0.0, exact_match(answer, answers), f1, rouge, rprec};
    for (const int k : options.cutoffs) {
      row.push_back(
          rank.num_sets == 0 ? 0.0 : complete_within(rank, k) / static_cast<double>(rank.num_sets));
    }
    for (const int k : options.cutoffs) row.push_back(complete_within(rank, k) / k);
    for (const int k : options.cutoffs) row.push_back(complete_within(rank, k) > 0 ? 1.0 : 0.0);
    for (const int k : options.cutoffs)
      row.push_back(answer_in_context(answers, outputs[0], k) ? 1.0 : 0.0);
    for (size_t i = 0; i < answer_names.size(); ++i) row.push_back(rprec == 1.0 ? row[i] : 0.0);
    table.ids.push_back(record.id);
    for (size_t c = 0; c < row.size(); ++c) table.columns[c].values.push_back(row[c]);
  }
  CONTEXTURE_DATA_REQUIRE(guesses.size() == gold.size(), guesses.size() - gold.size(),
                          " guesses are for no gold record");
  return table;
}

}  // namespace contexture::eval
