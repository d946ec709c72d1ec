// Everything a command needs around a model: tokenizer, corpus, documents, retriever, in the order
// they depend on each other. Training, evaluation, generation and asking all start here.
#pragma once
#include <filesystem>
#include <memory>

#include "parallel/checkpoint.h"
#include "parallel/inference.h"
#include "train/config.h"
#include "train/optimizer.h"
#include "train/step_data.h"

namespace contexture::train {

// Owns its parts. Not movable: parts point at each other.
class Session {
 public:
  // Reads corpus and tokenizer (trains one into run.dir/tokenizer.model when config.data.tokenizer
  // is empty and none is there), builds the model's shapes and draws its weights. The retriever is
  // built by make_retriever(). With model.text_encoder, a run without checkpoints takes the
  // folder's files into RUN/encoder (train/published_encoder.h), others read them there. With
  // train.start_from, a tokenizer that would be trained is that model's instead. Other weights than
  // those drawn are taken by start_weights(). groups: this rank's communicators; it
  // then holds its part of the model only. A tokenizer is trained by rank 0. The model is on
  // run.device (parallel/device.h), which becomes the calling thread's. On a rank that only
  // refreshes the index there are the documents and the encoder of documents, no engine.
  Session(const RunConfig& config, data::BadRecords& bad, parallel::Groups groups = {});

  // In place of those drawn: the weights of train.start_from, or else the published encoder's,
  // where there is one. Throws DataError when train.start_from does not fit. Collective.
  void start_weights(AdamW& optimizer);

  // Builds the index from the model's current weights, or from a checkpoint's. Collective, with
  // the ranks that only refresh it.
  void make_retriever(const std::optional<retriever::Retriever::State>& state = {});

  // Embeddings of each replica's own queries, on all its ranks. Collective.
  at::Tensor embed(const std::string& tower, const std::vector<const model::Sequence*>& sequences);
  // The best k documents of each of the replica's own queries, on all its ranks: row (-1: there are
  // fewer) and score, [n, k, 2] fp64. Collective over the world, also for a replica without
  // queries.
  at::Tensor search(const std::vector<const model::Sequence*>& queries, int64_t k);

  const RunConfig& config() const { return config_; }
  std::shared_ptr<const data::Tokenizer> tokenizer() const { return tokenizer_; }
  retriever::Corpus& corpus() { return corpus_; }
  retriever::Documents& documents() { return *documents_; }
  model::Model& model() { return *model_; }
  parallel::Engine& engine() { return *engine_; }
  const parallel::Inference& inference() const { return *inference_; }
  retriever::Retriever& retriever() { return *retriever_; }
  retriever::RefreshRanks* refresh_ranks() { return refresh_ranks_.get(); }  // null: none
  const ExampleEncoder& encoder() const { return *encoder_; }

 private:
  RunConfig config_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
  retriever::Corpus corpus_;
  std::unique_ptr<retriever::Documents> documents_;
  std::shared_ptr<model::Model> model_;
  std::unique_ptr<parallel::Engine> engine_;
  std::unique_ptr<parallel::Inference> inference_;
  std::unique_ptr<retriever::RefreshRanks> refresh_ranks_;
  std::unique_ptr<retriever::Retriever> retriever_;
  std::unique_ptr<ExampleEncoder> encoder_;
};

// What Session::search found, as rankings.
std::vector<retriever::Ranking> rankings(const at::Tensor& found);

// The settings of a finished or stopped run, with `overrides` ("eval.documents=4") on top;
// parallel.dp is 0 unless they say otherwise. Throws DataError when the folder is no run.
RunConfig settings_of(const std::filesystem::path& run_dir,
                      const std::vector<std::string>& overrides);
// Opens the run for use: the weights of a checkpoint (step -1: the newest complete one), and the
// corpus indexed anew with these weights, unless with_index is false. groups: each rank then holds
// its part of the model, in whatever layout it was trained. Throws DataError when there is no
// checkpoint.
std::unique_ptr<Session> open_run(const RunConfig& settings, data::BadRecords& bad,
                                  int64_t step = -1, bool with_index = true,
                                  parallel::Groups groups = {});

// What a rank does that does not train (parallel::Groups::refreshes): embeds documents whenever the
// index is refreshed, until training ends. True: training was told to stop.
bool serve_refreshes(const RunConfig& config, const parallel::Groups& groups);

// The retriever's part of a checkpoint, out and in. Out: of this rank's; first: of the world; waits
// for a refresh that is under way, with all ranks.
void save_retriever(const retriever::Retriever& retriever, bool first,
                    parallel::Checkpoint& checkpoint);
retriever::Retriever::State load_retriever(const parallel::Checkpoint& checkpoint);

// Uses run.threads for LibTorch and FAISS, which share one OpenMP pool; 0: as many as the machine
// has cores, or as OMP_NUM_THREADS says.
void apply_threads(const RunSettings& settings);

}  // namespace contexture::train
