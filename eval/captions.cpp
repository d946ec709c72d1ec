#include "eval/captions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "core/error.h"

namespace contexture::eval {
namespace {

constexpr size_t kMaxN = 4;

using Counts = std::unordered_map<std::string, double>;
using CountsByLength =
    std::array<Counts, kMaxN>;  // [n - 1] of the n-grams, words joined by a blank

CountsByLength count_ngrams(const Tokens& words) {
  CountsByLength counts;
  for (size_t begin = 0; begin < words.size(); ++begin) {
    std::string ngram;
    for (size_t n = 0; n < kMaxN && begin + n < words.size(); ++n) {
      ngram += (n == 0 ? "" : " ") + words[begin + n];
      ++counts[n][ngram];
    }
  }
  return counts;
}

double value_of(const Counts& counts, const std::string& ngram) {
  const auto found = counts.find(ngram);
  return found == counts.end() ? 0.0 : found->second;
}

// The sums of BLEU over a set.
struct BleuSums {
  double length = 0.0, reference_length = 0.0;
  std::array<double, kMaxN> guessed{}, right{};

  void add(const Tokens& said, const CountsByLength& said_counts,
           const std::vector<Tokens>& references,
           const std::vector<CountsByLength>& reference_counts) {
    const auto size = static_cast<double>(said.size());
    double closest = 0.0, least = INFINITY;
    for (const Tokens& reference : references) {
      const auto other = static_cast<double>(reference.size());
      const double distance = std::abs(other - size);
      if (distance < least || (distance == least && other < closest))
        least = distance, closest = other;
    }
    length += size;
    reference_length += closest;
    for (size_t n = 0; n < kMaxN; ++n) {
      guessed[n] += std::max(0.0, size - static_cast<double>(n));
      for (const auto& [ngram, count] : said_counts[n]) {
        double most = 0.0;
        for (const auto& counts : reference_counts)
          most = std::max(most, value_of(counts[n], ngram));
        right[n] += std::min(count, most);
      }
    }
  }

  std::array<double, kMaxN> scores() const {
    constexpr double kSmall = 1e-9, kTiny = 1e-15;  // the reference's guards against 0 / 0
    const double ratio = (length + kTiny) / (reference_length + kSmall);
    const double brevity = ratio < 1.0 ? std::exp(1.0 - 1.0 / ratio) : 1.0;
    std::array<double, kMaxN> out{};
    double product = 1.0;
    for (size_t n = 0; n < kMaxN; ++n) {
      product *= (right[n] + kTiny) / (guessed[n] + kSmall);
      out[n] = brevity * std::pow(product, 1.0 / static_cast<double>(n + 1));
    }
    return out;
  }
};

// A caption without words is one empty word to the reference.
Tokens never_empty(const Tokens& words) { return words.empty() ? Tokens{""} : words; }

double common_length(const Tokens& a, const Tokens& b) {
  std::vector<int> row(b.size() + 1, 0);
  for (const std::string& word : a) {
    int diagonal = 0;
    for (size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = word == b[j - 1] ? diagonal + 1 : std::max(above, row[j - 1]);
      diagonal = above;
    }
  }
  return row.back();
}

double rouge_l(const Tokens& said, const std::vector<Tokens>& references) {
  constexpr double kBeta2 = 1.2 * 1.2;
  double precision = 0.0, recall = 0.0;
  const Tokens words = never_empty(said);
  for (const Tokens& reference : references) {
    const Tokens wanted = never_empty(reference);
    const double common = common_length(wanted, words);
    precision = std::max(precision, common / static_cast<double>(words.size()));
    recall = std::max(recall, common / static_cast<double>(wanted.size()));
  }
  if (precision == 0.0 || recall == 0.0) return 0.0;
  return (1.0 + kBeta2) * precision * recall / (recall + kBeta2 * precision);
}

// Term frequencies times inverse document frequencies, by n-gram length.
struct Weighted {
  CountsByLength weights;
  std::array<double, kMaxN> norm{};
  double length = 0.0;  // bigrams: what the reference measures length by
};

class Cider {
 public:
  explicit Cider(const std::vector<std::vector<CountsByLength>>& references)
      : log_images_(std::log(static_cast<double>(references.size()))) {
    for (const auto& image : references) {
      for (size_t n = 0; n < kMaxN; ++n) {
        Counts met;
        for (const auto& counts : image) {
          for (const auto& entry : counts[n]) met[entry.first] = 1.0;
        }
        for (const auto& entry : met) ++document_frequency_[n][entry.first];
      }
    }
  }

  Weighted weigh(const CountsByLength& counts) const {
    Weighted out;
    for (size_t n = 0; n < kMaxN; ++n) {
      for (const auto& [ngram, count] : counts[n]) {
        const double weight =
            count *
            (log_images_ - std::log(std::max(1.0, value_of(document_frequency_[n], ngram))));
        out.weights[n][ngram] = weight;
        out.norm[n] += weight * weight;
        if (n == 1) out.length += count;
      }
      out.norm[n] = std::sqrt(out.norm[n]);
    }
    return out;
  }

  // Mean over n of the clipped cosine, times the length penalty; 0..1.
  static double similarity(const Weighted& said, const Weighted& reference) {
    constexpr double kSigma = 6.0;
    const double delta = said.length - reference.length;
    double sum = 0.0;
    for (size_t n = 0; n < kMaxN; ++n) {
      double product = 0.0;
      for (const auto& [ngram, weight] : said.weights[n]) {
        const double other = value_of(reference.weights[n], ngram);
        product += std::min(weight, other) * other;
      }
      if (said.norm[n] != 0.0 && reference.norm[n] != 0.0)
        product /= said.norm[n] * reference.norm[n];
      sum += product * std::exp(-delta * delta / (2.0 * kSigma * kSigma));
    }
    return sum / kMaxN;
  }

 private:
  double log_images_;
  CountsByLength document_frequency_;
};

}  // namespace

ScoreTable score_captions(const std::vector<CaptionReference>& references,
                          const std::vector<Tokens>& predictions) {
  CONTEXTURE_INVARIANT(references.size() == predictions.size());
  std::vector<std::vector<CountsByLength>> counts;
  for (const CaptionReference& image : references) {
    CONTEXTURE_REQUIRE(!image.references.empty(), "image '", image.id,
                       "' has no reference caption");
    counts.emplace_back();
    for (const Tokens& reference : image.references)
      counts.back().push_back(count_ngrams(reference));
  }
  const Cider cider(counts);
  BleuSums bleu;
  ScoreTable table;
  table.add("cider");
  table.add("rougel");
  for (size_t i = 0; i < references.size(); ++i) {
    const CountsByLength said = count_ngrams(predictions[i]);
    bleu.add(predictions[i], said, references[i].references, counts[i]);
    const Weighted weighted = cider.weigh(said);
    double similarity = 0.0;
    for (const CountsByLength& reference : counts[i])
      similarity += Cider::similarity(weighted, cider.weigh(reference));
    table.ids.push_back(references[i].id);
    table.columns[0].values.push_back(10.0 * similarity / static_cast<double>(counts[i].size()));
    table.columns[1].values.push_back(rouge_l(predictions[i], references[i].references));
  }
  const auto scores = bleu.scores();
  for (size_t n = 0; n < kMaxN; ++n) table.totals.emplace_back(concat("bleu-", n + 1), scores[n]);
  return table;
}

}  // namespace contexture::eval
