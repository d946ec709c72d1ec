#include "retriever/index.h"

#include <algorithm>
#include <iostream>

#include "cli/command.h"
#include "core/error.h"
#include "core/format.h"
#include "core/json.h"
#include "core/log.h"
#include "data/image.h"
#include "train/session.h"

namespace contexture::cli {
namespace {
namespace fs = std::filesystem;

// The weights that made an index: the checksum of the checkpoint's model file.
std::string encoder_hash(const std::string& run, int64_t step) {
  const fs::path folder = fs::path(run) / "checkpoints";
  const std::vector<int64_t> steps = parallel::list_checkpoints(folder);
  CONTEXTURE_DATA_REQUIRE(!steps.empty(), run, " has no complete checkpoint yet.");
  const Json manifest =
      parallel::read_manifest(parallel::checkpoint_path(folder, step < 0 ? steps.back() : step));
  return json_get<std::string>(manifest["files"].value("model.safetensors", Json::object()),
                               "sha256", "manifest.json");
}

std::span<const float> floats(const at::Tensor& t) {
  return {t.data_ptr<float>(), static_cast<size_t>(t.numel())};
}

// Share of the exact first ten that an index finds, asked with up to 256 of its own documents; 1
// for an exact index.
double overlap_with_exact(const retriever::Index& index, const at::Tensor& vectors_UE) {
  if (index.built_factory() == "Flat") return 1.0;
  std::vector<std::string> ids;
  for (int64_t row = 0; row < index.size(); ++row) ids.push_back(index.id(row));
  retriever::IndexOptions options = index.options();
  options.factory = "Flat";
  options.search.clear();
  const auto exact =
      retriever::Index::build(options, index.dim(), std::move(ids), floats(vectors_UE));
  const int64_t n = std::min<int64_t>(256, index.size());
  const at::Tensor chosen = (at::arange(n, at::kLong) * index.size()).floor_divide(n);
  const at::Tensor queries = vectors_UE.index_select(0, chosen).contiguous();
  return retriever::overlap(index.search(floats(queries), 10), exact.search(floats(queries), 10));
}

Json about(const retriever::Index& index) {
  return {{"documents", index.size()},
          {"dim", index.dim()},
          {"metric", retriever::metric_name(index.options().metric)},
          {"factory", index.options().factory},
          {"built_factory", index.built_factory()},
          {"search", index.options().search},
          {"normalised", index.normalised()},
          {"encoder", index.options().encoder_hash}};
}

void print(const Json& about) {
  for (const auto& [key, value] : about.items()) {
    std::cout << format("{:<22} {}\n", key,
                        value.is_string() ? value.get<std::string>() : value.dump());
  }
}

Command build_command(CLI::App& group) {
  struct Options {
    std::string run, output, metric = "inner_product";
    std::vector<std::string> sets;
    retriever::IndexOptions index{"", retriever::Metric::kInnerProduct, 1, "", ""};
    int64_t step = -1;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app =
      group.add_subcommand("build", "Embed a run's corpus with its encoder and index it");
  app->add_option("run", options->run, "run folder")->required();
  app->add_option("--output", options->output, "index file; its ids and card come beside it")
      ->required();
  app->add_option("--factory", options->index.factory,
                  "FAISS factory string; default: the run's retriever.factory");
  app->add_option("--search", options->index.search, "FAISS search parameters, such as nprobe=16");
  app->add_option("--metric", options->metric, "inner_product, cosine or l2")
      ->capture_default_str();
  app->add_option("--seed", options->index.seed, "of the clustering")->capture_default_str();
  app->add_option("--step", options->step, "checkpoint to embed with; default: the newest");
  app->add_option("--set", options->sets,
                  "one setting, a.b=c, on top of the run's own; may be repeated")
      ->allow_extra_args(false);
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {
      app, [options] {
        options->index.metric = retriever::parse_metric(options->metric);
        options->index.encoder_hash = encoder_hash(options->run, options->step);
        data::BadRecords bad(data::BadRecords::Policy::kSkip);
        const auto session =
            train::open_run(options->run, options->sets, bad, options->step, /*with_index=*/false);
        if (bad.count > 0) log::warn("{}", bad.summary());
        if (options->index.factory.empty())
          options->index.factory = session->config().retriever.factory;
        const at::Tensor vectors_UE =
            session->model().embed("doc", session->documents().all()).to(at::kFloat).contiguous();
        const auto index = retriever::Index::build(options->index, vectors_UE.size(1),
                                                   session->corpus().ids(), floats(vectors_UE));
        index.save(options->output);
        Json result = about(index);
        result["index"] = options->output;
        result["overlap_with_exact"] = overlap_with_exact(index, vectors_UE);
        result["bad_records"] = bad.count;
        if (options->json) {
          print_json(result);
        } else {
          print(result);
        }
        return 0;
      }};
}

// The embedding of a question or a picture by a run's encoder.
std::vector<float> query_vector(train::Session& session, const std::string& question,
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
  return {floats(vector).begin(), floats(vector).end()};
}

Command search_command(CLI::App& group) {
  struct Options {
    std::string index, like, run, question, picture, search;
    std::vector<std::string> sets;
    int64_t k = 10, step = -1;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(
      "search", "The documents of an index nearest to a picture, a question or a document");
  app->add_option("index", options->index, "index file")->required();
  app->add_option("--like", options->like,
                  "ask with the stored vector of this document (needs no run)");
  app->add_option("--run", options->run, "run whose encoder embeds the question or picture");
  app->add_option("--question", options->question, "ask with a question");
  app->add_option("--picture", options->picture, "ask with a picture file");
  app->add_option("-k", options->k, "documents to list")->capture_default_str();
  app->add_option("--search", options->search,
                  "FAISS search parameters instead of the index's own");
  app->add_option("--step", options->step, "the run's checkpoint; default: the newest");
  app->add_option("--set", options->sets,
                  "one setting, a.b=c, on top of the run's own; may be repeated")
      ->allow_extra_args(false);
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            CONTEXTURE_USAGE_REQUIRE(options->k > 0, "-k ", options->k, " must be at least 1.");
            const bool asks = !options->question.empty() || !options->picture.empty();
            CONTEXTURE_USAGE_REQUIRE(
                options->like.empty() ? asks && !options->run.empty() : !asks,
                "ask with --like DOCUMENT, or with --run RUN and --question or --picture.");
            auto index = retriever::Index::load(options->index);
            if (!options->search.empty()) index.set_search(options->search);
            std::vector<float> query;
            std::unique_ptr<train::Session> session;
            if (!options->like.empty()) {
              const auto row = index.find(options->like);
              CONTEXTURE_DATA_REQUIRE(row.has_value(), options->index, " has no document '",
                                      options->like, "'");
              query = index.vector(*row);
            } else {
              index.require_encoder(encoder_hash(options->run, options->step));
              data::BadRecords bad(data::BadRecords::Policy::kSkip);
              session = train::open_run(options->run, options->sets, bad, options->step,
                                        /*with_index=*/false);
              query = query_vector(*session, options->question, options->picture);
            }
            Json hits = Json::array();
            const retriever::Ranking ranking = index.search(query, options->k)[0];
            for (const retriever::Hit& hit : ranking) {
              hits.push_back({{"id", index.id(hit.row)}, {"score", hit.score}});
              if (session == nullptr) continue;
              if (const auto row = session->corpus().find(index.id(hit.row)))
                hits.back()["title"] = session->corpus().document(*row).title;
            }
            if (options->json) {
              print_json({{"hits", hits}});
              return 0;
            }
            for (const Json& hit : hits) {
              std::cout << format("{:.4f}  {}  {}\n", hit["score"].get<double>(),
                                  hit["id"].get<std::string>(), hit.value("title", ""));
            }
            return 0;
          }};
}

Command index_info_command(CLI::App& group) {
  struct Options {
    std::string index;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand("info", "What an index holds and how it was made");
  app->add_option("index", options->index, "index file")->required();
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            const Json result = about(retriever::Index::load(options->index));
            if (options->json) {
              print_json(result);
            } else {
              print(result);
            }
            return 0;
          }};
}

}  // namespace

Command index_command(CLI::App& program) {
  CLI::App* app =
      program.add_subcommand("index", "Index a corpus with a run's encoder, and search it");
  return command_group(app, {build_command(*app), search_command(*app), index_info_command(*app)});
}

}  // namespace contexture::cli
