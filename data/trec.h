// Relevance judgments and ranked results in the files that retrieval evaluations exchange
// (docs/formats/trec.md): TREC qrels and runs, BEIR's qrels with a header. A bad line is named
// ("file:line: reason"), counted, and skipped or fatal as asked.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "data/records.h"

namespace contexture::data {

// Query id to document id to relevance; above 0 is relevant.
using Qrels = std::map<std::string, std::map<std::string, int>>;

struct RunEntry {
  std::string document;
  double score = 0.0;  // finite
};
// Query id to its results, in the order of the file: scores rank them (eval/ranking.h), not places.
using TrecRun = std::map<std::string, std::vector<RunEntry>>;

// Four columns between white space ("query iteration document relevance"), or three ("query-id
// corpus-id score", with or without that header). Relevance is a whole number, -127..127. A
// document judged twice for a query is a bad record. DataError when not one line is good.
Qrels read_qrels(const std::string& path, BadRecords& bad);

// Six columns: "query Q0 document rank score tag". The rank is not read. Bad records: a score that
// is no finite number, a document twice for one query. DataError when not one line is good.
TrecRun read_run(const std::string& path, BadRecords& bad);

// What an example says of documents: the judgments under "relevance" where it has them (BEIR's, as
// they are converted), else each of its gold documents is relevant. Adds nothing for an example
// without either. DataError naming the example when a judgment is no whole number in range.
void add_judgments(const Example& example, Qrels& qrels);

// Best first by score, then by document id descending, with ranks from 1 and as many digits as tell
// the scores apart. UserError if an id holds white space, or the tag does or is empty.
void write_run(const std::string& path, const TrecRun& run, const std::string& tag);
// The four columns. UserError as above.
void write_qrels(const std::string& path, const Qrels& qrels);

}  // namespace contexture::data
