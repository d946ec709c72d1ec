#include "train/session.h"

#include <ATen/Parallel.h>

#include <thread>

#include "core/config.h"
#include "core/error.h"
#include "core/files.h"
#include "core/log.h"

namespace contexture::train {
namespace fs = std::filesystem;

void apply_threads(const RunSettings& settings) {
  const int64_t threads = settings.threads > 0 ? settings.threads : static_cast<int64_t>(std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(threads));
}

Session::Session(const RunConfig& config, data::BadRecords& bad) : config_(config) {
  config_.validate();
  std::string tokenizer_path = config_.data.tokenizer.empty() ? (fs::path(config_.run.dir) / "tokenizer.model").string()
                                                              : data_path(config_.data, config_.data.tokenizer);
  if (config_.data.tokenizer.empty() && !fs::exists(tokenizer_path)) {
    make_folders(config_.run.dir);
    const auto report = data::Tokenizer::train_from_file(data_path(config_.data, config_.data.tokenizer_text), tokenizer_path,
                                                         config_.data.tokenizer_options);
    log::info("tokenizer: {} pieces from {} lines, written to {}", report.vocab_size, report.lines_used, tokenizer_path);
  }
  tokenizer_ = std::make_shared<data::Tokenizer>(tokenizer_path);
  CONTEXTURE_USAGE_REQUIRE(tokenizer_->vocab_size() == config_.model.vocab, "model.vocab=", config_.model.vocab, " but ",
                           tokenizer_path, " has ", tokenizer_->vocab_size(), " pieces. Set model.vocab to that.");
  corpus_ = retriever::Corpus::load(data_path(config_.data, config_.data.corpus), bad);
  model_ = std::make_unique<model::Model>(config_.model);
  model_->materialise(precision_of(config_.train.precision), at::kCPU, config_.run.seed);
  documents_ = std::make_unique<retriever::Documents>(corpus_, *tokenizer_, config_.model, config_.data.max_document_tokens, bad);
  encoder_ = std::make_unique<ExampleEncoder>(config_, *tokenizer_, *documents_);
}

void Session::make_retriever() {
  retriever_ = std::make_unique<retriever::Retriever>(config_.retriever, *documents_, *model_);
}

std::unique_ptr<Session> open_run(const fs::path& run_dir, const std::vector<std::string>& overrides, data::BadRecords& bad,
                                  int64_t step, bool with_index) {
  const fs::path resolved = run_dir / "config.resolved.json";
  CONTEXTURE_DATA_REQUIRE(fs::exists(resolved), run_dir.string(), " is no run: config.resolved.json is missing.");
  RunConfig config;
  apply_json(config, read_file(resolved), resolved.string());
  for (const std::string& set : overrides) apply_set(config, set);
  config.run.dir = run_dir.string();
  const std::vector<int64_t> steps = parallel::list_checkpoints(run_dir / "checkpoints");
  CONTEXTURE_DATA_REQUIRE(!steps.empty(), run_dir.string(), " has no complete checkpoint yet.");
  const int64_t chosen = step < 0 ? steps.back() : step;
  const parallel::Checkpoint checkpoint =
      parallel::load_checkpoint(parallel::checkpoint_path(run_dir / "checkpoints", chosen), {"model"});
  apply_threads(config.run);
  auto session = std::make_unique<Session>(config, bad);
  load_parameters(session->model().parameters(), checkpoint.files.at("model"));
  if (with_index) session->make_retriever();
  return session;
}

void save_retriever(const retriever::Retriever& retriever, parallel::Checkpoint& checkpoint) {
  retriever::Retriever::State state = retriever.state();
  parallel::NamedTensors& tensors = checkpoint.files["retriever"];
  tensors["vectors"] = state.vectors_UE;
  checkpoint.state["retriever"] = {{"refreshed_at", state.refreshed_at}};
  if (!state.pending_since) return;
  checkpoint.state["retriever"]["pending_since"] = *state.pending_since;
  for (const auto& [name, value] : state.pending) tensors["pending." + name] = value;
}

void load_retriever(retriever::Retriever& retriever, const parallel::Checkpoint& checkpoint) {
  const Json& about = checkpoint.state.at("retriever");
  retriever::Retriever::State state;
  state.refreshed_at = json_get<int64_t>(about, "refreshed_at", "state.json");
  if (about.contains("pending_since")) state.pending_since = json_get<int64_t>(about, "pending_since", "state.json");
  const std::string prefix = "pending.";
  for (const auto& [name, value] : checkpoint.files.at("retriever")) {
    if (name == "vectors") state.vectors_UE = value;
    if (name.rfind(prefix, 0) == 0) state.pending[name.substr(prefix.size())] = value;
  }
  CONTEXTURE_DATA_REQUIRE(state.vectors_UE.defined(), "retriever.safetensors lacks its vectors");
  retriever.restore(state);
}

}  // namespace contexture::train
