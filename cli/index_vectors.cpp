#include <ATen/Parallel.h>

#include <chrono>
#include <unordered_set>

#include "cli/index.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/signals.h"
#include "data/formats.h"
#include "retriever/embedding_job.h"
#include "train/config.h"

namespace contexture::cli {
namespace {

// One id a line: a JSON string (as in an index's own .ids.jsonl) or the line as it stands.
std::vector<std::string> read_ids(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<std::string> ids;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with('"')) {
      const std::string where = concat(path, ":", ids.size() + 1);
      const Json id = parse_json(line, where);
      CONTEXTURE_DATA_REQUIRE(id.is_string(), where,
                              ": an id must be a JSON string, or a plain line.");
      ids.push_back(id.get<std::string>());
    } else {
      ids.emplace_back(line);
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return ids;
}

struct Texts {
  std::vector<std::string> ids, texts;
  std::string hash;
  int64_t bad_records = 0;
};

// Ids and texts of a corpus; a document whose id was there before is a bad record.
Texts read_texts(const VectorSource& source) {
  Texts out;
  data::BadRecords bad(data::BadRecords::Policy::kSkip);
  std::unordered_set<std::string> seen;
  Sha256 hash;
  data::read_foreign_documents(
      source.from, source.corpus, bad, [&](const std::string& where, data::Document document) {
        if (!seen.insert(document.id).second) return bad.add(where, "duplicate id", document.id);
        out.ids.push_back(std::move(document.id));
        out.texts.push_back(retriever::document_text(document.title, document.text));
        for (const std::string* part : {&out.ids.back(), &out.texts.back()}) {
          hash.update(*part);
          hash.update(std::string_view("\0", 1));
        }
      });
  if (bad.count > 0) log::warn("{}", bad.summary());
  CONTEXTURE_DATA_REQUIRE(!out.ids.empty(), source.corpus, " has no document of the format ",
                          source.from, ".");
  out.bad_records = bad.count;
  out.hash = hash.finish_hex();
  return out;
}

}  // namespace

void EncoderOptions::add_to(CLI::App& app) {
  app.add_option(
      "--encoder", folder,
      "a Hugging Face folder of a sentence encoder of the BERT family (tools/minilm prints one)");
  app.add_option("--precision", precision,
                 "of the encoder: fp32, bf16, or auto (bf16 where the processor multiplies it)")
      ->capture_default_str();
  app.add_option("--max-tokens", max_tokens,
                 "longer texts are cut; default: the encoder's own limit");
}

std::string EncoderOptions::resolved_precision() const {
  CONTEXTURE_USAGE_REQUIRE(precision == "fp32" || precision == "bf16" || precision == "auto",
                           "--precision ", precision, " is not known. Use fp32, bf16 or auto.");
  return train::precision_of(precision) == at::kBFloat16 ? "bf16" : "fp32";
}

retriever::TextEncoder EncoderOptions::load() const {
  const auto kind = resolved_precision() == "bf16" ? model::EncoderPrecision::kBf16
                                                   : model::EncoderPrecision::kFp32;
  return retriever::TextEncoder::load(folder, kind, max_tokens);
}

void VectorSource::add_to(CLI::App& app) {
  encoder.add_to(app);
  app.add_option("--corpus", corpus, "file of documents to embed with --encoder");
  app.add_option("--from", from,
                 "format of --corpus: contexture, beir, dpr, kilt ... (see data convert)")
      ->capture_default_str();
  app.add_option("--vectors", vectors,
                 "a .npy file of vectors, float32 or float16, instead of a corpus");
  app.add_option("--ids", ids, "ids of --vectors, one a line; default: the rows' numbers from 0");
}

void VectorSource::check() const {
  CONTEXTURE_USAGE_REQUIRE(encoder.folder.empty() == corpus.empty(),
                           "--encoder and --corpus go together: the one embeds the other.");
  CONTEXTURE_USAGE_REQUIRE(vectors.empty() || corpus.empty(),
                           "give --vectors, or --encoder and --corpus, not both.");
  CONTEXTURE_USAGE_REQUIRE(ids.empty() || !vectors.empty(),
                           "--ids names the rows of --vectors; a corpus has its own ids.");
}

Vectors read_vectors(const VectorSource& source) {
  Vectors out;
  out.mapped.emplace(source.vectors);
  out.dim = out.mapped->dim();
  const int64_t rows = out.mapped->rows();
  CONTEXTURE_DATA_REQUIRE(rows > 0, source.vectors, " holds no vector.");
  out.numbers = out.mapped->floats();
  if (out.numbers.empty()) {
    out.owned.resize(static_cast<size_t>(rows * out.dim));
    out.mapped->read(0, out.owned);
    out.numbers = out.owned;
  }
  if (source.ids.empty()) {
    for (int64_t row = 0; row < rows; ++row) out.ids.push_back(std::to_string(row));
  } else {
    out.ids = read_ids(source.ids);
    CONTEXTURE_DATA_REQUIRE(static_cast<int64_t>(out.ids.size()) == rows, source.ids, " has ",
                            out.ids.size(), " ids, ", source.vectors, " has ", rows,
                            " vectors: there must be one id for each.");
  }
  return out;
}

std::optional<Vectors> embed_corpus(const VectorSource& source,
                                    const retriever::TextEncoder& encoder,
                                    const std::string& job_folder) {
  const Texts texts = read_texts(source);
  const auto count = static_cast<int64_t>(texts.ids.size());
  const retriever::EmbeddingJob job{job_folder, encoder.hash(),
                                    texts.hash, source.encoder.resolved_precision(),
                                    count,      encoder.dim()};
  ProgressOptions shown;
  shown.unit = "documents";
  Progress progress("embedding", count, shown);
  bool first_report = true;
  const auto begin = std::chrono::steady_clock::now();
  int64_t resumed = 0;
  auto numbers = retriever::run_embedding_job(
      job,
      [&](int64_t first, int64_t n) {
        return encoder.embed(
            std::span(texts.texts).subspan(static_cast<size_t>(first), static_cast<size_t>(n)));
      },
      [&](const retriever::EmbeddingProgress& at) {
        if (std::exchange(first_report, false) && at.resumed > 0) progress.start_at(at.resumed);
        resumed = at.resumed;
        progress.update(at.done);
      },
      [] { return stop_requested(); });
  progress.finish();
  if (!numbers) {
    log::info("stopped; the finished part is kept in {}, and the same command goes on", job_folder);
    return std::nullopt;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  Vectors out;
  out.ids = texts.ids;
  out.owned = std::move(*numbers);
  out.numbers = out.owned;
  out.dim = encoder.dim();
  out.encoder_hash = encoder.hash();
  out.bad_records = texts.bad_records;
  out.timing = {{"embedded", count - resumed},
                {"resumed", resumed},
                {"seconds", seconds},
                {"documents_per_s", static_cast<double>(count - resumed) / seconds},
                {"tokens_per_s", static_cast<double>(encoder.tokens_embedded()) / seconds},
                {"precision", job.precision},
                {"threads", at::get_num_threads()}};
  return out;
}

void remove_embedding_chunks(const Vectors& vectors, const std::string& job_folder) {
  retriever::EmbeddingJob job;
  job.folder = job_folder;
  job.count = static_cast<int64_t>(vectors.ids.size());
  retriever::remove_embedding_job(job);
}

}  // namespace contexture::cli
