#include "data/inspect.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/files.h"
#include "data/counterfactual.h"
#include "data/internal/utf8.h"

namespace contexture::data {
namespace {

struct NamedImage {
  std::string owner;  // "document fr" or "example 12"
  std::string name;
};

struct Decoded {
  ImageInfo info;
  std::string error;
};

// Decodes (or only probes) every picture on threads; results in the order asked.
std::vector<Decoded> decode_all(const ImageSource& source, const std::vector<NamedImage>& images,
                                const InspectInputs& inputs) {
  std::vector<Decoded> results(images.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < images.size(); i = next++) {
      try {
        const auto bytes = source.read(images[i].name);
        results[i].info = probe_image(bytes, images[i].name);
        if (inputs.decode_images) decode_image(bytes, inputs.image, images[i].name);
      } catch (const UserError& error) {
        results[i].error = error.what();
      }
    }
  };
  {
    std::vector<std::jthread> pool;
    for (int t = 1; t < inputs.threads; ++t) pool.emplace_back(work);
    work();
  }
  return results;
}

std::vector<NamedImage> images_of(const Corpus& corpus) {
  std::vector<NamedImage> images;
  for (const Document& d : corpus.documents) {
    if (!d.image.empty()) images.push_back({"document " + d.id, d.image});
  }
  return images;
}

std::vector<NamedImage> images_of(const ExampleSet& set) {
  std::vector<NamedImage> images;
  for (const Example& e : set.examples) {
    if (!e.image.empty()) images.push_back({"example " + e.id, e.image});
  }
  return images;
}

bool gold_holds_answer(const Example& example, const Corpus& corpus) {
  for (const std::string& id : example.documents) {
    const auto found = corpus.index.find(id);
    if (found == corpus.index.end()) continue;
    const Document& document = corpus.documents[static_cast<size_t>(found->second)];
    for (const std::string& answer : example.answers) {
      if (contains_words(document.text, answer) || contains_words(document.title, answer))
        return true;
    }
  }
  return false;
}

// A whole file of bad records is a finding to list, not a reason to stop listing.
template <class Read>
auto read_or_empty(Read&& read, const std::string& source, BadRecords& bad)
    -> decltype(read(source, bad)) {
  try {
    return read(source, bad);
  } catch (const DataError& error) {
    bad.add(source, "no good record", error.what());
    return {};
  }
}

void check_images(const ImageSource& source, const std::vector<NamedImage>& images,
                  const InspectInputs& inputs, CheckReport& report) {
  const auto decoded = decode_all(source, images, inputs);
  for (size_t i = 0; i < images.size(); ++i) {
    if (decoded[i].error.empty()) {
      ++report.images;
    } else {
      report.bad.add(images[i].owner, "unreadable picture", decoded[i].error);
    }
  }
}

// Least, quartiles, mean and most of some whole numbers, and a histogram by powers of two.
Json distribution(std::vector<int64_t> values) {
  if (values.empty()) return {{"n", 0}};
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
  };
  double sum = 0.0;
  Json histogram = Json::array();
  for (int64_t low = 0, high = 1; low <= values.back(); low = high, high *= 2) {
    const auto count = std::lower_bound(values.begin(), values.end(), high) -
                       std::lower_bound(values.begin(), values.end(), low);
    if (count > 0) histogram.push_back({{"from", low}, {"below", high}, {"n", count}});
  }
  for (const int64_t v : values) sum += static_cast<double>(v);
  return {{"n", values.size()},    {"least", values.front()},
          {"p25", at(0.25)},       {"median", at(0.5)},
          {"p75", at(0.75)},       {"p99", at(0.99)},
          {"most", values.back()}, {"mean", sum / static_cast<double>(values.size())},
          {"total", sum},          {"histogram", histogram}};
}

Json text_figures(const std::vector<std::string>& texts, const Tokenizer* tokenizer) {
  std::vector<int64_t> characters, tokens;
  int64_t bytes_spelled = 0;
  for (const std::string& text : texts) {
    characters.push_back(internal::count_code_points(text));
    if (tokenizer == nullptr) continue;
    const auto ids = tokenizer->encode(text);
    tokens.push_back(static_cast<int64_t>(ids.size()));
    bytes_spelled += std::count_if(ids.begin(), ids.end(),
                                   [&](int32_t id) { return id < Tokenizer::kNumControl + 256; });
  }
  const std::set<std::string> distinct(texts.begin(), texts.end());
  Json figures = {{"characters", distribution(characters)},
                  {"duplicates", texts.size() - distinct.size()}};
  if (tokenizer != nullptr) {
    figures["tokens"] = distribution(tokens);
    figures["tokens_that_spell_a_byte"] = bytes_spelled;
  }
  return figures;
}

Json image_figures(const ImageSource& source, const std::vector<NamedImage>& images,
                   const InspectInputs& inputs) {
  std::map<std::string, int64_t> formats, sizes;
  int64_t unreadable = 0;
  for (const Decoded& decoded : decode_all(source, images, inputs)) {
    if (!decoded.error.empty()) {
      ++unreadable;
      continue;
    }
    ++formats[decoded.info.format];
    ++sizes[concat(decoded.info.width, "x", decoded.info.height)];
  }
  std::vector<std::pair<int64_t, std::string>> common;
  for (const auto& [size, n] : sizes) common.emplace_back(-n, size);
  std::sort(common.begin(), common.end());
  Json most_common = Json::array();
  for (size_t i = 0; i < std::min<size_t>(common.size(), 10); ++i) {
    most_common.push_back({{"size", common[i].second}, {"n", -common[i].first}});
  }
  return {{"n", images.size()},
          {"unreadable", unreadable},
          {"formats", formats},
          {"distinct_sizes", sizes.size()},
          {"most_common_sizes", most_common}};
}

Json example_figures(const std::string& source, const ExampleSet& set, const Corpus& corpus,
                     const BadRecords& bad, const Tokenizer* tokenizer,
                     const InspectInputs& inputs) {
  std::vector<std::string> questions, answers;
  std::map<std::string, int64_t> types;
  int64_t with_gold = 0, contained = 0, without_answer = 0;
  std::set<std::string> entities;
  for (const Example& example : set.examples) {
    questions.push_back(example.question);
    answers.insert(answers.end(), example.answers.begin(), example.answers.end());
    ++types[example.type];
    if (!example.entity.empty()) entities.insert(example.entity);
    if (example.answers.empty()) ++without_answer;
    if (example.documents.empty() || example.answers.empty()) continue;
    ++with_gold;
    contained += gold_holds_answer(example, corpus) ? 1 : 0;
  }
  Json figures = {{"source", source},
                  {"n", set.examples.size()},
                  {"bad_records", bad.count},
                  {"types", types},
                  {"entities", entities.size()},
                  {"without_answers", without_answer},
                  {"questions", text_figures(questions, tokenizer)},
                  {"answers", text_figures(answers, tokenizer)},
                  {"images", image_figures(*set.images, images_of(set), inputs)}};
  if (!corpus.documents.empty() && with_gold > 0) {
    figures["answer_in_gold_document"] = {
        {"n", with_gold},
        {"share", static_cast<double>(contained) / static_cast<double>(with_gold)}};
  }
  return figures;
}

}  // namespace

CheckReport check_data(const InspectInputs& inputs) {
  constexpr size_t kMaxWarnings = 50;
  CheckReport report;
  report.bad.on_each = [&report](const std::string& text) { report.problems.push_back(text); };
  Corpus corpus;
  if (!inputs.corpus.empty()) {
    corpus = read_or_empty(read_corpus, inputs.corpus, report.bad);
    report.documents = static_cast<int64_t>(corpus.documents.size());
    if (corpus.images) check_images(*corpus.images, images_of(corpus), inputs, report);
  }
  int64_t unanswerable = 0;
  for (const std::string& source : inputs.examples) {
    ExampleSet set = read_or_empty(read_examples, source, report.bad);
    if (!inputs.corpus.empty()) require_gold_documents(set, corpus, report.bad);
    report.examples += static_cast<int64_t>(set.examples.size());
    if (set.images) check_images(*set.images, images_of(set), inputs, report);
    for (const Example& example : set.examples) {
      if (example.documents.empty() || example.answers.empty() || corpus.documents.empty())
        continue;
      if (gold_holds_answer(example, corpus)) continue;
      ++unanswerable;
      if (report.warnings.size() < kMaxWarnings) {
        report.warnings.push_back(concat("example ", example.id,
                                         ": no gold document holds an answer ('",
                                         example.answers.front(), "')"));
      }
    }
  }
  if (unanswerable > static_cast<int64_t>(kMaxWarnings)) {
    report.warnings.push_back(
        concat(unanswerable - static_cast<int64_t>(kMaxWarnings), " more of the same"));
  }
  report.bad.on_each = nullptr;
  return report;
}

Json CheckReport::to_json() const {
  return {{"ok", bad.count == 0}, {"documents", documents},   {"examples", examples},
          {"images", images},     {"bad_records", bad.count}, {"by_reason", bad.by_reason},
          {"problems", problems}, {"warnings", warnings}};
}

std::string CheckReport::to_text() const {
  std::string text;
  for (const std::string& problem : problems) text += problem + "\n";
  for (const std::string& warning : warnings) text += "warning: " + warning + "\n";
  text +=
      concat(documents, " documents, ", examples, " examples and ", images, " pictures are good");
  if (bad.count == 0) return text + "; nothing is wrong.\n";
  text += concat("; ", bad.count, " bad:");
  for (const auto& [reason, n] : bad.by_reason) text += concat(" ", n, " ", reason, ";");
  text.back() = '\n';
  return text;
}

StatsReport data_stats(const InspectInputs& inputs) {
  StatsReport report;
  std::optional<Tokenizer> tokenizer;
  if (!inputs.tokenizer.empty()) tokenizer.emplace(inputs.tokenizer);
  const Tokenizer* use = tokenizer ? &*tokenizer : nullptr;
  Corpus corpus;
  if (!inputs.corpus.empty()) {
    BadRecords bad(BadRecords::Policy::kSkip);
    corpus = read_corpus(inputs.corpus, bad);
    std::vector<std::string> texts, titles;
    std::map<std::string, int64_t> kinds;
    for (const Document& d : corpus.documents) {
      texts.push_back(d.text);
      titles.push_back(d.title);
      const auto kind = d.meta.find("kind");
      ++kinds[kind != d.meta.end() && kind->is_string() ? kind->get<std::string>() : ""];
    }
    report.figures["corpus"] = {
        {"source", inputs.corpus},
        {"n", corpus.documents.size()},
        {"bad_records", bad.count},
        {"kinds", kinds},
        {"texts", text_figures(texts, use)},
        {"titles", text_figures(titles, use)},
        {"images", image_figures(*corpus.images, images_of(corpus), inputs)}};
  }
  report.figures["examples"] = Json::array();
  for (const std::string& source : inputs.examples) {
    BadRecords bad(BadRecords::Policy::kSkip);
    const ExampleSet set = read_examples(source, bad);
    report.figures["examples"].push_back(example_figures(source, set, corpus, bad, use, inputs));
  }
  return report;
}

namespace {

// "corpus.texts.tokens  median 41  p99 180 ..." : nested objects as dotted paths, distributions on
// one line.
void print(const std::string& path, const Json& value, std::string& text) {
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) print(concat(path, ".", i), value[i], text);
  } else if (value.is_object() && value.contains("median")) {
    text += concat(path, "  n ", value["n"], "  least ", value["least"], "  median ",
                   value["median"], "  p99 ", value["p99"], "  most ", value["most"], "\n");
    for (const Json& bin : value["histogram"]) {
      const double share = bin["n"].get<double>() / value["n"].get<double>();
      text += concat("    ", bin["from"], " .. ", bin["below"].get<int64_t>() - 1, "  ",
                     std::string(static_cast<size_t>(40 * share + 0.5), '#'), " ", bin["n"], "\n");
    }
  } else if (value.is_object()) {
    for (const auto& [key, member] : value.items())
      print(path.empty() ? key : path + "." + key, member, text);
  } else {
    text += concat(path, "  ", value.is_string() ? value.get<std::string>() : value.dump(), "\n");
  }
}

}  // namespace

std::string StatsReport::to_text() const {
  std::string text;
  print("", figures, text);
  return text;
}

}  // namespace contexture::data
