// The training loop. A run is a folder; a kill at any moment loses nothing before the last complete
// checkpoint, and a resumed run continues with the same losses, bit for bit.
#pragma once
#include "core/run_folder.h"
#include "eval/tensorboard.h"
#include "train/evaluator.h"
#include "train/loss_scale.h"
#include "train/session.h"
#include "train/step.h"

namespace contexture::train {

// What a run came to.
struct TrainResult {
  int64_t steps = 0;
  double seconds = 0.0;  // of training proper in this process: evaluation and checkpoints left out
  double examples_per_s = 0.0;
  bool stopped_by_signal = false;  // saved; exit with 75
  int64_t parameters = 0;
};

class Trainer {
 public:
  // resume: continue from the newest complete checkpoint of run.dir (a run without one starts at
  // step 0), of whatever layout. groups: this rank's communicators; every rank makes a Trainer and
  // calls run(), rank 0 alone writes and logs.
  Trainer(const RunConfig& config, bool resume, parallel::Groups groups = {});
  ~Trainer();

  TrainResult run();
  Session& session() { return *session_; }

 private:
  bool writes() const { return session_->engine().groups().rank() == 0; }
  std::filesystem::path checkpoints() const {
    return std::filesystem::path(config_.run.dir) / "checkpoints";
  }
  bool stop_agreed();  // whether any rank was told to stop; ends a save whose files all ranks have
                       // written
  void set_phase(const char* phase) const;
  void set_deadline(int64_t seconds) const;
  void banner() const;
  void save(int64_t step);
  void finish_save(bool wait);
  void load(const parallel::Checkpoint& checkpoint);
  void evaluate(int64_t step);
  void log_step(int64_t step, const StepStats& stats, double rate, double grad_norm, double seconds,
                double wait_s, bool refreshed);
  void warn_if_stale();  // once a run

  RunConfig config_;
  std::unique_ptr<RunFolder> folder_;
  data::BadRecords bad_;
  LossScale loss_scale_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<StepMaker> maker_;
  std::unique_ptr<PictureSet> dev_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<eval::TensorBoardWriter> board_;
  std::unique_ptr<parallel::CheckpointSave> saving_;  // under way
  int64_t step_ = 0;
  int64_t saved_step_ = -1;  // of the newest checkpoint
  double best_score_ = -1.0;
  int64_t best_step_ = -1;
  double train_s_ = 0.0;      // over all processes of the run
  Json corpus_mark_;          // of the corpus as it was read; on the rank that writes
  int64_t samples_seen_ = 0;  // training inputs of all replicas, over all processes too
  bool warned_stale_ = false;
};

// Processor speed for MFU: a matrix product in the compute dtype, best of a few, in FLOP/s. Takes
// under a second.
double measure_peak_flops(at::ScalarType dtype, at::Device device);

}  // namespace contexture::train
