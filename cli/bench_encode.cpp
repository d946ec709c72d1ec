#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>

#include "cli/bench.h"
#include "core/error.h"
#include "core/files.h"
#include "core/format.h"
#include "core/npy.h"
#include "data/formats.h"
#include "retriever/text_encoder.h"

namespace contexture::cli {
namespace {

struct Options {
  PeerOptions peers;
  std::string encoder, corpus, from = "contexture";
  int64_t documents = 2000, max_tokens = 0;
  double seconds = 5.0;
};

std::vector<std::string> some_texts(const Options& options) {
  std::vector<std::string> texts;
  data::BadRecords bad(data::BadRecords::Policy::kSkip);
  data::read_foreign_documents(
      options.from, options.corpus, bad, [&](const std::string&, data::Document document) {
        texts.push_back(retriever::document_text(document.title, document.text));
      });
  CONTEXTURE_DATA_REQUIRE(!texts.empty(), options.corpus, " has no document.");
  const auto all = static_cast<int64_t>(texts.size()), n = std::min(options.documents, all);
  for (int64_t i = 0; i < n; ++i) texts[i] = texts[i * all / n];
  texts.resize(static_cast<size_t>(n));
  return texts;
}

double smallest_cosine(const std::vector<float>& a, const std::vector<float>& b, int64_t dim) {
  double smallest = 1;
  for (size_t row = 0; row + dim <= a.size(); row += dim) {
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const double x = a[row + i], y = b[row + i];
      ab += x * y, aa += x * x, bb += y * y;
    }
    smallest = std::min(smallest, ab / std::sqrt(aa * bb));
  }
  return smallest;
}

int bench(const Options& options) {
  at::set_num_threads(static_cast<int>(options.peers.threads));
  const std::vector<std::string> texts = some_texts(options);
  Json out{{"documents", texts.size()}, {"threads", options.peers.threads}};
  std::vector<float> reference;
  int64_t dim = 0, max_tokens = 0;
  for (const auto& [name, precision] : {std::pair{"fp32", model::EncoderPrecision::kFp32},
                                        std::pair{"bf16", model::EncoderPrecision::kBf16}}) {
    const auto encoder =
        retriever::TextEncoder::load(options.encoder, precision, options.max_tokens);
    dim = encoder.dim(), max_tokens = encoder.max_tokens();
    double best = 0;
    const auto since = [](auto start) {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    std::vector<float> embeddings;
    for (const auto begin = std::chrono::steady_clock::now();
         best == 0 || since(begin) < options.seconds;) {
      const auto start = std::chrono::steady_clock::now();
      embeddings = encoder.embed(texts);
      best = std::max(best, static_cast<double>(texts.size()) / since(start));
    }
    out["contexture"][name] = best;
    if (reference.empty()) {
      reference = std::move(embeddings);
    } else {
      out["smallest_cosine"] = smallest_cosine(reference, embeddings, dim);
    }
  }
  if (!options.peers.scripts.empty()) {
    const TempDir folder;
    write_file_atomic(folder.path() / "texts.json", std::string_view(Json(texts).dump()));
    NpyWriter writer(folder.path() / "embeddings.npy", DType::F32,
                     static_cast<int64_t>(texts.size()), dim);
    writer.write(reference);
    writer.commit();
    const Json peer =
        run_peer(options.peers, format("sentence_transformers_peer.py {} --encoder {} --max-tokens "
                                       "{} --threads {} --seconds {}",
                                       folder.path().string(), options.encoder, max_tokens,
                                       options.peers.threads, options.seconds));
    out["sentence_transformers"] = peer;
    for (const char* name : {"fp32", "bf16"})
      out["ratio"][name] = out["contexture"][name].get<double>() / peer["fp32"].get<double>();
  }
  if (options.peers.json) {
    print_json(out);
    return 0;
  }
  std::cout << format(
      "{} documents, {} threads: fp32 {:.0f} documents/s, bf16 {:.0f} documents/s (cosine with "
      "fp32 at least {:.5f})\n",
      texts.size(), options.peers.threads, out["contexture"]["fp32"].get<double>(),
      out["contexture"]["bf16"].get<double>(), out["smallest_cosine"].get<double>());
  if (out.contains("ratio")) {
    std::cout << format(
        "sentence-transformers: fp32 {:.0f} documents/s, bf16 {:.0f}; to its fp32, ours in fp32 is "
        "{:.2f} times, in bf16 {:.2f} times\n",
        out["sentence_transformers"]["fp32"].get<double>(),
        out["sentence_transformers"]["bf16"].get<double>(), out["ratio"]["fp32"].get<double>(),
        out["ratio"]["bf16"].get<double>());
  }
  return 0;
}

}  // namespace

Command bench_encode_command(CLI::App& group) {
  auto options = std::make_shared<Options>();
  CLI::App* app =
      group.add_subcommand("encode", "Embedding documents with a published sentence encoder");
  app->add_option("--encoder", options->encoder, "a Hugging Face folder (tools/minilm prints one)")
      ->required();
  app->add_option("--corpus", options->corpus, "file of documents")->required();
  app->add_option("--from", options->from, "format of --corpus")->capture_default_str();
  app->add_option("--documents", options->documents, "documents to embed, spread over the corpus")
      ->capture_default_str();
  app->add_option("--max-tokens", options->max_tokens,
                  "longer texts are cut; default: the encoder's own limit");
  app->add_option("--seconds", options->seconds, "how long to repeat; the fastest counts")
      ->capture_default_str();
  options->peers.add_to(*app);
  return {app, [options] { return bench(*options); }};
}

}  // namespace contexture::cli
