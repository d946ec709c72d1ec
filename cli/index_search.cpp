#include <iostream>

#include "cli/index.h"
#include "cli/ranks.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "data/formats.h"
#include "data/image.h"
#include "data/trec.h"
#include "retriever/spread_index.h"
#include "train/session.h"

namespace contexture::cli {
namespace {

struct SearchOptions {
  EncoderOptions encoder;
  std::string index, like, run, question, picture, search, queries, qrels, from = "beir", vectors,
                                                                           output;
  std::vector<std::string> sets;
  int64_t k = 10, step = -1;
  bool json = false, mapped = false;
};

// The embedding of a question or a picture by a run's encoder.
std::vector<float> run_query(train::Session& session, const std::string& question,
                             const std::string& picture_file) {
  data::Example example;
  example.question = question;
  data::Image picture;
  if (!picture_file.empty()) {
    const int side = static_cast<int>(session.config().model.image_size);
    picture = data::resize_padded(data::load_image(picture_file), side, side);
  }
  const train::PreparedInput prepared =
      session.encoder().encode(example, "", picture_file.empty() ? nullptr : &picture, 0);
  const at::Tensor vector =
      session.model().embed("query", {&prepared.query}).to(at::kFloat).contiguous();
  return {vector.data_ptr<float>(), vector.data_ptr<float>() + vector.numel()};
}

// What is asked: ids and vectors.
struct Queries {
  std::vector<std::string> ids;
  std::vector<float> vectors;
};

Queries file_queries(const SearchOptions& options, const retriever::TextEncoder& encoder) {
  Queries out;
  std::vector<std::string> texts;
  data::BadRecords bad(data::BadRecords::Policy::kSkip);
  data::ForeignOptions foreign;
  foreign.qrels = options.qrels;
  foreign.unjudged = true;
  data::read_foreign_examples(options.from, options.queries, foreign, bad,
                              [&](const std::string&, data::Example example) {
                                out.ids.push_back(std::move(example.id));
                                texts.push_back(std::move(example.question));
                              });
  if (bad.count > 0) log::warn("{}", bad.summary());
  CONTEXTURE_DATA_REQUIRE(!texts.empty(), options.queries, " has no query of the format ",
                          options.from, ".");
  out.vectors = encoder.embed(texts);
  return out;
}

Queries npy_queries(const SearchOptions& options, const retriever::SpreadIndex& index) {
  const NpyMatrix matrix(options.vectors);
  CONTEXTURE_DATA_REQUIRE(matrix.dim() == index.dim(), options.vectors, " has vectors of ",
                          matrix.dim(), " numbers, the index of ", index.dim(),
                          ". They come from different encoders.");
  Queries out;
  out.vectors.resize(static_cast<size_t>(matrix.rows() * matrix.dim()));
  matrix.read(0, out.vectors);
  for (int64_t row = 0; row < matrix.rows(); ++row) out.ids.push_back(std::to_string(row));
  return out;
}

void write_results(const SearchOptions& options, const retriever::SpreadIndex& index,
                   const Queries& queries) {
  const auto rankings = index.search(queries.vectors, options.k);
  data::TrecRun run;
  for (size_t q = 0; q < rankings.size(); ++q) {
    for (const retriever::NamedHit& hit : rankings[q])
      run[queries.ids[q]].push_back({hit.id, hit.score});
  }
  data::write_run(options.output, run, "contexture");
  print_result(
      {{"queries", queries.ids.size()}, {"documents", index.size()}, {"run", options.output}},
      options.json);
}

void check(const SearchOptions& options) {
  CONTEXTURE_USAGE_REQUIRE(options.k > 0, "-k ", options.k, " must be at least 1.");
  const bool asks = !options.question.empty() || !options.picture.empty();
  const bool many = !options.queries.empty() || !options.vectors.empty();
  const int ways = int{!options.like.empty()} + int{asks} + int{!options.queries.empty()} +
                   int{!options.vectors.empty()};
  CONTEXTURE_USAGE_REQUIRE(ways == 1,
                           "ask with one of --like DOCUMENT, --question (or --picture), --queries "
                           "FILE and --query-vectors FILE.");
  const bool one_encoder = options.run.empty() != options.encoder.folder.empty();
  CONTEXTURE_USAGE_REQUIRE(!asks || one_encoder,
                           "a question is embedded by what made the index: give --run RUN or "
                           "--encoder FOLDER, one of them.");
  CONTEXTURE_USAGE_REQUIRE(options.picture.empty() || !options.run.empty(),
                           "--picture needs --run: a sentence encoder reads text alone.");
  CONTEXTURE_USAGE_REQUIRE(options.queries.empty() || !options.encoder.folder.empty(),
                           "--queries needs --encoder FOLDER.");
  CONTEXTURE_USAGE_REQUIRE(many == !options.output.empty(),
                           "--output FILE (a TREC run) goes with --queries and --query-vectors.");
}

// What rank 0 does. like: the stored vector of --like.
int ask(const SearchOptions& options, const retriever::SpreadIndex& index,
        const std::optional<std::vector<float>>& like) {
  std::vector<float> query;
  std::unique_ptr<train::Session> session;
  if (!options.encoder.folder.empty()) {
    const auto encoder = options.encoder.load();
    index.require_encoder(encoder.hash());
    if (!options.queries.empty()) {
      write_results(options, index, file_queries(options, encoder));
      return 0;
    }
    query = encoder.embed(std::span(&options.question, 1));
  } else if (!options.vectors.empty()) {
    write_results(options, index, npy_queries(options, index));
    return 0;
  } else if (!options.like.empty()) {
    CONTEXTURE_DATA_REQUIRE(like.has_value(), options.index, " has no document '", options.like,
                            "'");
    query = *like;
  } else {
    index.require_encoder(run_encoder_hash(options.run, options.step));
    data::BadRecords bad(data::BadRecords::Policy::kSkip);
    session = train::open_run(train::settings_of(options.run, options.sets), bad, options.step,
                              /*with_index=*/false);
    query = run_query(*session, options.question, options.picture);
  }
  Json hits = Json::array();
  const auto rankings = index.search(query, options.k);
  for (const retriever::NamedHit& hit : rankings[0]) {
    hits.push_back({{"id", hit.id}, {"score", hit.score}});
    if (session == nullptr) continue;
    if (const auto row = session->corpus().find(hit.id))
      hits.back()["title"] = session->corpus().document(*row).title;
  }
  if (options.json) {
    print_json({{"hits", hits}});
    return 0;
  }
  for (const Json& hit : hits) {
    std::cout << format("{:.4f}  {}  {}\n", hit["score"].get<double>(),
                        hit["id"].get<std::string>(), hit.value("title", ""));
  }
  return 0;
}

int search(const SearchOptions& options) {
  constexpr double kMeet_s = 300, kWait_s = 3600;  // for the others; for rank 0's queries
  const auto world = join_world(kMeet_s);
  return run_on_rank(world, [&] {
    check(options);
    if (world) world->set_deadline(kWait_s);
    auto index = retriever::SpreadIndex::load(options.index, options.mapped, world);
    if (!options.search.empty()) index.set_search(options.search);
    std::optional<std::vector<float>> like;
    if (!options.like.empty()) like = index.vector_of(options.like);
    if (world && world->rank() != 0) {
      index.assist();
      return 0;
    }
    const int code = ask(options, index, like);
    index.release();
    return code;
  });
}

}  // namespace

Command index_search_command(CLI::App& group) {
  auto options = std::make_shared<SearchOptions>();
  CLI::App* app = group.add_subcommand(
      "search",
      "The documents of an index nearest to a question, a picture, a document or many queries");
  app->add_option("index", options->index, "index file, or list of shards")->required();
  app->add_option("--like", options->like,
                  "ask with the stored vector of this document (needs no encoder)");
  app->add_option("--run", options->run, "run whose encoder embeds the question or picture");
  options->encoder.add_to(*app);
  app->add_option("--question", options->question, "ask with a question");
  app->add_option("--picture", options->picture, "ask with a picture file");
  app->add_option("--queries", options->queries, "ask with every question of a file");
  app->add_option("--qrels", options->qrels, "beir: ask only the queries judged in this file");
  app->add_option("--from", options->from, "format of --queries (see data convert)")
      ->capture_default_str();
  app->add_option("--query-vectors", options->vectors, "ask with every row of a .npy file");
  app->add_option("--output", options->output,
                  "TREC run of --queries or --query-vectors, for eval retrieval");
  app->add_option("-k", options->k, "documents to list")->capture_default_str();
  app->add_option("--search", options->search,
                  "FAISS search parameters instead of the index's own");
  app->add_flag("--mapped", options->mapped,
                "leave vectors in the file and read what a search touches; the file's checksum is "
                "not checked");
  app->add_option("--step", options->step, "the run's checkpoint; default: the newest");
  app->add_option("--set", options->sets,
                  "one setting of the run, a.b=c, on top of its own; may be repeated")
      ->allow_extra_args(false);
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] { return search(*options); }};
}

}  // namespace contexture::cli
