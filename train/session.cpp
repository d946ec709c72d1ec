#include "train/session.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "core/config.h"
#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "parallel/device.h"
#include "train/model_folder.h"
#include "train/model_trace.h"
#include "train/published_encoder.h"
#include "train/step.h"

namespace contexture::train {
namespace fs = std::filesystem;

void apply_threads(const RunSettings& settings) {
  int64_t threads = settings.threads;
  if (threads == 0 && std::getenv("OMP_NUM_THREADS") != nullptr)
    return;  // the launcher shares the cores out
  if (threads == 0) threads = static_cast<int64_t>(std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(threads));
}

Session::Session(const RunConfig& config, data::BadRecords& bad, parallel::Groups groups)
    : config_(config) {
  config_.validate();
  const at::Device device = parallel::choose_device(config_.run.device);
  const std::string tokenizer_path = tokenizer_of(config_).string();
  if (config_.data.tokenizer.empty() && !fs::exists(tokenizer_path) && groups.rank() == 0) {
    make_folders(config_.run.dir);
    if (!config_.train.start_from.empty()) {
      write_file_atomic(tokenizer_path, read_file(starting_tokenizer(config_.train.start_from)));
    } else {
      const auto report =
          data::Tokenizer::train_from_file(data_path(config_.data, config_.data.tokenizer_text),
                                           tokenizer_path, config_.data.tokenizer_options);
      log::info("tokenizer: {} pieces from {} lines, written to {}", report.vocab_size,
                report.lines_used, tokenizer_path);
    }
  }
  const fs::path encoder = kept_encoder(config_.run.dir);
  const bool published = !config_.model.text_encoder.empty();
  if (published && groups.rank() == 0 &&
      parallel::list_checkpoints(fs::path(config_.run.dir) / "checkpoints").empty()) {
    const fs::path from = config_.model.text_encoder;
    const auto shape = model::SentenceEncoderConfig::read(from);
    retriever::TextReader(from, shape);  // refuses a vocabulary that does not fit
    write_encoder_folder(from, shape, encoder);
  }
  if (parallel::Communicator* everyone = groups.everyone())
    everyone->barrier();  // for rank 0's tokenizer and encoder
  std::shared_ptr<const retriever::TextReader> reader;
  if (published) {
    config_.model.read_text_encoder(encoder);
    reader = std::make_shared<const retriever::TextReader>(encoder, *config_.model.text);
    config_.model.validate_split(config_.parallel.tp);
  }
  tokenizer_ = std::make_shared<data::Tokenizer>(tokenizer_path);
  CONTEXTURE_USAGE_REQUIRE(tokenizer_->vocab_size() == config_.model.vocab,
                           "model.vocab=", config_.model.vocab, " but ", tokenizer_path, " has ",
                           tokenizer_->vocab_size(), " pieces. Set model.vocab to that.");
  corpus_ = retriever::Corpus::load(data_path(config_.data, config_.data.corpus), bad);
  model_ = std::make_shared<model::Model>(config_.model, groups.tp, config_.parallel.sequence,
                                          config_.retriever.objective_options());
  const at::ScalarType dtype = precision_of(config_.train.precision, device);
  documents_ = std::make_unique<retriever::Documents>(
      corpus_, *tokenizer_, config_.model, config_.data.max_document_tokens, bad, reader);
  if (groups.refreshes()) {
    const std::vector<parallel::Parameter*> encoder = retriever::document_parameters(*model_);
    model_->materialise(dtype, device, config_.run.seed, [&](const parallel::Parameter& p) {
      return std::find(encoder.begin(), encoder.end(), &p) != encoder.end();
    });
    return;
  }
  parallel::Placement placement = placement_of(config_, *model_, groups, corpus_.size());
  model_->materialise(dtype, device, config_.run.seed, [&](const parallel::Parameter& p) {
    return parallel::Engine::owns(placement, model_->blocks(), p, groups.pp_rank());
  });
  apply_groups(config_.optimizer, model_->parameters());
  engine_ =
      std::make_unique<parallel::Engine>(config_.parallel, std::move(groups), std::move(placement),
                                         model_->blocks(), model_->parameters());
  inference_ = std::make_unique<parallel::Inference>(*engine_);
  if (config_.parallel.encode_once == "replica") {
    engine_->pipeline().set_sliced(
        [](const parallel::Block& block) { return !encodes_documents(block); });
  }
  encoder_ = std::make_unique<ExampleEncoder>(config_, *tokenizer_, *documents_, reader);
}

void Session::start_weights(AdamW& optimizer) {
  if (!config_.train.start_from.empty()) {
    const parallel::Groups& groups = engine_->groups();
    std::function<at::Tensor(const parallel::Parameter&)> values;
    const auto read = [&] {
      values = starting_values(config_, model_->parameters(), /*warns=*/groups.rank() == 0);
    };
    if (groups.rank() == 0) read();
    if (groups.world) groups.world->barrier();  // so that what does not fit is said once
    if (groups.rank() != 0) read();
    optimizer.start_from(values);
  } else if (config_.model.text) {
    optimizer.start_from(published_values(config_.model));
  }
}

at::Tensor Session::embed(const std::string& tower,
                          const std::vector<const model::Sequence*>& sequences) {
  const std::string wire = tower + ".embedding";
  return model_->embed(
      tower, sequences,
      [&](const parallel::Pass& pass) { return inference_->run(pass, {wire}).at(wire); },
      [&](int64_t passes) { return inference_->most(passes); });
}

at::Tensor Session::search(const std::vector<const model::Sequence*>& queries, int64_t k) {
  const at::Tensor query_BE = embed("query", queries);
  const at::Tensor found =
      at::full({static_cast<int64_t>(queries.size()), k, 2}, -1.0, at::kDouble);
  if (retriever_->holds_index()) {
    const int64_t asked = engine_->groups().first_of_replica() ? query_BE.size(0) : 0;
    double* cell = found.data_ptr<double>();
    for (const retriever::Ranking& ranking : retriever_->search(query_BE.narrow(0, 0, asked), k)) {
      for (size_t r = 0; r < ranking.size(); ++r) {
        cell[2 * r] = static_cast<double>(ranking[r].row);
        cell[2 * r + 1] = ranking[r].score;
      }
      cell += 2 * k;
    }
  }
  if (found.numel() > 0) engine_->share_in_replica(found);
  return found;
}

std::vector<retriever::Ranking> rankings(const at::Tensor& found) {
  std::vector<retriever::Ranking> out(found.size(0));
  const int64_t k = found.size(1);
  const double* cell = found.data_ptr<double>();
  for (retriever::Ranking& ranking : out) {
    for (int64_t r = 0; r < k && cell[2 * r] >= 0; ++r)
      ranking.push_back({static_cast<int64_t>(cell[2 * r]), cell[2 * r + 1]});
    cell += 2 * k;
  }
  return out;
}

void Session::make_retriever(const std::optional<retriever::Retriever::State>& state) {
  const parallel::Groups& groups = engine_->groups();
  if (groups.all) {
    refresh_ranks_ = std::make_unique<retriever::RefreshRanks>(
        *model_, *engine_, documents_->size(), static_cast<double>(config_.parallel.timeout_s));
  }
  retriever_ = std::make_unique<retriever::Retriever>(
      config_.retriever, *documents_,
      [this](const std::vector<const model::Sequence*>& some) { return embed("doc", some); },
      groups.world == nullptr ? model_.get() : nullptr, groups, state, refresh_ranks_.get(),
      model_->device());
}

bool serve_refreshes(const RunConfig& config, const parallel::Groups& groups) {
  apply_threads(config.run);
  data::BadRecords bad(data::BadRecords::parse_policy(config.data.bad_records));
  Session session(config, bad, groups);
  const parallel::ParallelConfig& p = config.parallel;
  const int training = groups.all->size() - (groups.office->size() - 1);
  return retriever::serve_refreshes(
      session.model(), session.documents(), groups,
      parallel::MeshLayout(training, training / static_cast<int>(p.pp * p.tp),
                           static_cast<int>(p.pp), static_cast<int>(p.tp), p.order),
      config.retriever.sharded, static_cast<double>(p.timeout_s));
}

RunConfig settings_of(const fs::path& run_dir, const std::vector<std::string>& overrides) {
  const fs::path resolved = run_dir / "config.resolved.json";
  CONTEXTURE_DATA_REQUIRE(fs::exists(resolved), run_dir.string(),
                          " is no run: config.resolved.json is missing.");
  RunConfig config;
  apply_json(config, read_file(resolved), resolved.string());
  config.parallel.dp = 0;
  config.retriever.refresh_ranks = 0;
  for (const std::string& set : overrides) apply_set(config, set);
  config.run.dir = run_dir.string();
  CONTEXTURE_USAGE_REQUIRE(config.retriever.refresh_ranks == 0,
                           "retriever.refresh_ranks=", config.retriever.refresh_ranks,
                           " is for training: here every rank takes part. Leave it out.");
  return config;
}

std::unique_ptr<Session> open_run(const RunConfig& settings, data::BadRecords& bad, int64_t step,
                                  bool with_index, parallel::Groups groups) {
  const parallel::Checkpoint checkpoint = model_checkpoint(settings.run.dir, step);
  apply_threads(settings.run);
  auto session = std::make_unique<Session>(settings, bad, std::move(groups));
  load_parameters(session->engine(), checkpoint.files.at("model"));
  if (with_index) session->make_retriever();
  return session;
}

void save_retriever(const retriever::Retriever& retriever, bool first,
                    parallel::Checkpoint& checkpoint) {
  retriever.await_pending();
  if (!first && !retriever.sharded()) return;
  const retriever::Retriever::State state = retriever.state();
  parallel::NamedTensors& tensors = checkpoint.files["retriever"];
  state.vectors.put(tensors, "vectors");
  state.pending.put(tensors, "pending");
  if (!first) return;
  if (state.retrieved_U.defined()) tensors["retrieved"] = state.retrieved_U;
  checkpoint.state["retriever"] = {{"refreshed_at", state.refreshed_at}};
  if (state.pending_since) checkpoint.state["retriever"]["pending_since"] = *state.pending_since;
}

retriever::Retriever::State load_retriever(const parallel::Checkpoint& checkpoint) {
  const Json& about = checkpoint.state.at("retriever");
  const parallel::NamedTensors& tensors = checkpoint.files.at("retriever");
  const auto pieces = [&](const char* name) {
    parallel::RowPieces found = parallel::RowPieces::find(tensors, name);
    CONTEXTURE_DATA_REQUIRE(!found.empty(), "retriever.safetensors lacks '", name, "'");
    return found;
  };
  retriever::Retriever::State state;
  state.refreshed_at = json_get<int64_t>(about, "refreshed_at", "state.json");
  state.vectors = pieces("vectors");
  if (tensors.count("retrieved") != 0) state.retrieved_U = tensors.at("retrieved");
  if (about.contains("pending_since")) {
    state.pending_since = json_get<int64_t>(about, "pending_since", "state.json");
    state.pending = pieces("pending");
  }
  return state;
}

}  // namespace contexture::train
