#include "data/trec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "core/error.h"
#include "core/files.h"
#include "data/internal/lines.h"

namespace contexture::data {
namespace {

constexpr int64_t kMostRelevant = 127;  // what trec_eval keeps of a judgment

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

bool is_beir_header(const std::vector<std::string_view>& cells) {
  return cells.size() == 3 && cells[0] == "query-id" && cells[1] == "corpus-id";
}

void require_word(const std::string& text, const char* what) {
  CONTEXTURE_REQUIRE(!text.empty() && text.find_first_of(" \t\r\n") == std::string::npos, what,
                     " '", text, "' can't stand in a TREC file: it is empty or holds white space.");
}

// The fewest digits that read back as the same number.
std::string digits(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

}  // namespace

Qrels read_qrels(const std::string& path, BadRecords& bad) {
  Qrels qrels;
  const MappedFile file(path);
  internal::for_each_line(text_of(file), path, [&](int64_t number, std::string_view line) {
    const std::string where = concat(path, ":", number);
    const auto cells = internal::columns(line);
    if (is_beir_header(cells)) return;
    if (cells.size() != 3 && cells.size() != 4) {
      bad.add(
          where, "not a judgment",
          concat(cells.size(), " columns, where 'query iteration document relevance' has 4 and ",
                 "'query-id corpus-id score' has 3"));
      return;
    }
    const std::string_view document = cells[cells.size() - 2];
    int64_t relevance = 0;
    if (!internal::to_integer(cells.back(), &relevance) || std::abs(relevance) > kMostRelevant) {
      bad.add(where, "not a relevance",
              concat("'", cells.back(), "' is no whole number from -127 to 127"));
      return;
    }
    auto& judged = qrels[std::string(cells[0])];
    if (!judged.emplace(document, static_cast<int>(relevance)).second) {
      bad.add(where, "judged twice", concat("document ", document, " of query ", cells[0]));
    }
  });
  CONTEXTURE_DATA_REQUIRE(!qrels.empty(), path, ": not one judgment; ", bad.summary());
  return qrels;
}

void add_judgments(const Example& example, Qrels& qrels) {
  const auto graded = example.meta.find("relevance");
  if (graded == example.meta.end() || !graded->is_object()) {
    for (const std::string& id : example.documents) qrels[example.id][id] = 1;
    return;
  }
  for (const auto& [document, relevance] : json_get<std::map<std::string, double>>(
           example.meta, "relevance", concat("example '", example.id, "'"))) {
    CONTEXTURE_DATA_REQUIRE(
        relevance == std::trunc(relevance) && std::abs(relevance) <= kMostRelevant, "example '",
        example.id, "': the relevance of document '", document, "' is ", relevance,
        ", no whole number from -127 to 127");
    qrels[example.id][document] = static_cast<int>(relevance);
  }
}

TrecRun read_run(const std::string& path, BadRecords& bad) {
  TrecRun run;
  std::map<std::string, std::unordered_set<std::string_view>> seen;  // views into the mapped file
  const MappedFile file(path);
  internal::for_each_line(text_of(file), path, [&](int64_t number, std::string_view line) {
    const std::string where = concat(path, ":", number);
    const auto cells = internal::columns(line);
    if (cells.size() != 6) {
      bad.add(where, "not a result",
              concat(cells.size(), " columns, where 'query Q0 document rank score tag' has 6"));
      return;
    }
    double score = 0.0;
    if (!internal::to_finite(cells[4], &score)) {
      bad.add(where, "not a score", concat("'", cells[4], "' is no finite number"));
      return;
    }
    const std::string query(cells[0]);
    if (!seen[query].insert(cells[2]).second) {
      bad.add(where, "document twice", concat(cells[2], " for query ", query));
      return;
    }
    run[query].push_back({std::string(cells[2]), score});
  });
  CONTEXTURE_DATA_REQUIRE(!run.empty(), path, ": not one result; ", bad.summary());
  return run;
}

void write_run(const std::string& path, const TrecRun& run, const std::string& tag) {
  require_word(tag, "tag");
  AtomicFile file(path);
  for (const auto& [query, entries] : run) {
    require_word(query, "query id");
    std::vector<RunEntry> ranked = entries;
    std::sort(ranked.begin(), ranked.end(), [](const RunEntry& a, const RunEntry& b) {
      return a.score != b.score ? a.score > b.score : a.document > b.document;
    });
    for (size_t i = 0; i < ranked.size(); ++i) {
      require_word(ranked[i].document, "document id");
      file.write(concat(query, " Q0 ", ranked[i].document, " ", i + 1, " ", digits(ranked[i].score),
                        " ", tag, "\n"));
    }
  }
  file.commit();
}

void write_qrels(const std::string& path, const Qrels& qrels) {
  AtomicFile file(path);
  for (const auto& [query, judged] : qrels) {
    require_word(query, "query id");
    for (const auto& [document, relevance] : judged) {
      require_word(document, "document id");
      file.write(concat(query, " 0 ", document, " ", relevance, "\n"));
    }
  }
  file.commit();
}

}  // namespace contexture::data
