#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "core/config.h"
#include "core/error.h"
#include "core/fault_point.h"
#include "core/files.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/signals.h"
#include "core/timing.h"
#include "parallel/device.h"
#include "train/corpus_mark.h"
#include "train/data_health.h"
#include "train/model_trace.h"
#include "train/timeline.h"
#include "train/trace_cache.h"

namespace contexture::train {
namespace {

bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

void require_finite(const StepStats& stats, double grad_norm, int64_t step) {
  const bool finite = std::all_of(stats.objectives.begin(), stats.objectives.end(),
                                  [](const auto& o) { return std::isfinite(o.second); });
  CONTEXTURE_REQUIRE(finite && std::isfinite(stats.loss) && std::isfinite(stats.contrastive) &&
                         std::isfinite(grad_norm),
                     "step ", step, ": loss ", stats.loss, ", contrastive ", stats.contrastive,
                     ", gradient norm ", grad_norm,
                     ". Nothing was updated. Lower optimizer.rate, raise optimizer.warmup_steps, "
                     "or resume from the last "
                     "checkpoint with other data.");
}

Json about_this_machine(const model::Model& model) {
  const std::time_t now = std::time(nullptr);
  char started[32];
  std::strftime(started, sizeof started, "%Y-%m-%d %H:%M", std::localtime(&now));
  return {{"version", CONTEXTURE_VERSION},
          {"machine", processor_name()},
          {"device", parallel::describe(model.device())},
          {"precision", at::toString(model.dtype())},
          {"started", started}};
}

}  // namespace

double measure_peak_flops(at::ScalarType dtype, at::Device device) {
  const int64_t n = device.is_cuda() ? 4096 : 768;
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const at::Tensor a = at::ones({n, n}, options), b = at::ones({n, n}, options);
  double best = 1e9;
  const double until = now_s() + 0.3;
  do {
    const double start = now_s();
    at::mm(a, b);
    parallel::synchronize(device);
    best = std::min(best, now_s() - start);
  } while (now_s() < until);
  return 2.0 * static_cast<double>(n * n * n) / best;
}

Trainer::Trainer(const RunConfig& config, bool resume, parallel::Groups groups)
    : config_(config),
      bad_(data::BadRecords::parse_policy(config.data.bad_records)),
      loss_scale_(config.train.precision == "fp16" ? LossScale(config.train.loss_scale)
                                                   : LossScale()) {
  config_.parallel.dp = groups.dp_size();
  config_.validate();
  apply_threads(config_.run);
  const bool first = groups.rank() == 0;
  if (first) folder_ = std::make_unique<RunFolder>(config_.run.dir, resume);
  session_ = std::make_unique<Session>(config_, bad_, std::move(groups));
  config_ = session_->config();
  maker_ = std::make_unique<StepMaker>(session_->config(), session_->encoder(),
                                       session_->documents(), session_->tokenizer(), bad_);
  if (!config_.data.dev.empty()) {
    dev_ = std::make_unique<PictureSet>(config_, config_.data.dev, config_.eval.types,
                                        session_->documents(), bad_);
  }
  if (bad_.count > 0 && first) log::warn("{}", bad_.summary());
  optimizer_ =
      std::make_unique<AdamW>(config_.optimizer, session_->engine(), config_.parallel.offload);
  if (first) corpus_mark_ = corpus_mark(session_->corpus());  // reads every text
  const std::vector<int64_t> steps =
      resume ? parallel::list_checkpoints(checkpoints()) : std::vector<int64_t>();
  if (steps.empty()) {
    session_->start_weights(*optimizer_);
    session_->make_retriever();
  } else {
    const parallel::Checkpoint checkpoint =
        parallel::load_checkpoint(parallel::checkpoint_path(checkpoints(), steps.back()));
    load(checkpoint);
    session_->make_retriever(load_retriever(checkpoint));
    const Json& retriever = checkpoint.state.at("retriever");
    if (first) require_same_corpus(corpus_mark_, retriever.value("corpus", Json()));
  }
  if (!first) return;
  folder_->write_config(to_json(config_));
  write_file_atomic(folder_->file("run.json"), about_this_machine(session_->model()).dump(1));
  write_file_atomic(folder_->file("config.defaults.json"), to_json(RunConfig()).dump(1));
  write_file_atomic(folder_->file("data_health.json"),
                    data_health(session_->documents(), maker_->num_examples(),
                                dev_ ? static_cast<int64_t>(dev_->set.examples.size()) : 0, bad_)
                        .dump(1));
  metrics_ = std::make_unique<MetricsLog>(folder_->metrics_path(),
                                          resume ? std::optional<int64_t>(step_) : std::nullopt);
  board_ = std::make_unique<eval::TensorBoardWriter>(folder_->file("tensorboard").string());
  banner();
}

Trainer::~Trainer() = default;

void Trainer::banner() const {
  const TrainConfig& train = config_.train;
  log::info("contexture {} | {} parameters | {} | {}", CONTEXTURE_VERSION,
            session_->model().parameters().num_elements(), train.precision,
            parallel::describe(session_->model().device()));
  const parallel::ParallelConfig& parallel = config_.parallel;
  log::info(
      "batch {} over {} replicas x {} microbatches | {} training examples | {} documents | k = {}",
      train.batch_size, parallel.dp, parallel.microbatches, maker_->num_examples(),
      session_->documents().size(), config_.retriever.documents);
  if (session_->engine().groups().world) {
    log::info("dp {} x pp {} x tp {} | schedule {} | ZeRO {}", parallel.dp, parallel.pp,
              parallel.tp, parallel.schedule, parallel.zero);
  }
  if (const auto* refresh_ranks = session_->refresh_ranks())
    log::info("{} more ranks embed the documents for each refresh", refresh_ranks->count());
  log::info("run folder {} | {}", folder_->path().string(),
            step_ > 0 ? concat("resumed after step ", step_) : std::string("from the start"));
  const retriever::RetrieverConfig& retriever = config_.retriever;
  if (!retriever.gold && retriever.documents > 0 && config_.data.identity_probability > 0)
    log::warn(
        "data.identity_probability={} with retriever.gold=false: a made-up identity is in no "
        "index, so such inputs seldom "
        "read their own document, and teach retrieval little. Set it to 0.",
        config_.data.identity_probability);
}

TrainResult Trainer::run() {
  const int64_t end = config_.train.stop_at > 0 ? config_.train.stop_at : config_.train.steps;
  TrainResult result;
  result.parameters = session_->model().parameters().num_elements();
  data::LoaderOptions options;
  options.first_step = step_;
  options.end_step = end;
  options.threads = static_cast<int>(config_.data.threads);
  options.depth = static_cast<int>(config_.data.prefetch);
  data::Loader<PreparedStep> loader(
      [this, mine = prepared_share(config_, session_->engine().groups())](int64_t step) {
        return maker_->make(step, mine);
      },
      options);
  if (writes() && !std::filesystem::exists(folder_->file("trace.json"))) {
    parallel::write_trace(trace_model(config_, session_->model()), folder_->file("trace.json"));
  }
  std::optional<Progress> progress;
  if (writes()) progress.emplace("training", end).start_at(step_);
  int64_t examples = 0;

  while (step_ < end && !stop_agreed()) {
    set_phase("data");
    const double start = now_s();
    PreparedStep prepared = *loader.next();
    const double wait = now_s() - start;
    fault_point("data");
    set_phase("retrieval");
    Lookup lookup = look_up(config_, *session_, prepared);
    group(config_, *session_, prepared, lookup);
    set_phase("forward and backward");
    const Share share = share_of(config_, session_->engine().groups());
    const StepStats stats =
        forward_backward(config_, session_->model(), session_->engine(), prepared,
                         assemble(config_, share, session_->documents(), prepared, lookup), &lookup,
                         loss_scale_.scale());
    set_phase("optimizer");
    const double grad_norm = optimizer_->clip(loss_scale_.scale());
    const bool skip =
        !loss_scale_.accepts(grad_norm);  // on all ranks alike: the norm is that of all gradients
    require_finite(stats, skip ? 0.0 : grad_norm,
                   step_ + 1);  // before anything moves; all ranks have the same figures
    const double rate = rate_at(config_.optimizer, step_, config_.train.steps);
    if (!skip) optimizer_->step(rate);
    ++step_;
    if (step_ == config_.parallel.timeline_step && config_.parallel.pp > 1) {
      write_timeline(session_->engine(), std::filesystem::path(config_.run.dir) / "timeline.json");
    }
    set_phase("refresh");
    const bool refreshed = session_->retriever().after_step(step_);
    const double seconds = now_s() - start;
    result.seconds += seconds;
    examples += static_cast<int64_t>(prepared.inputs.size());
    train_s_ += seconds;
    samples_seen_ += static_cast<int64_t>(prepared.inputs.size());
    if (writes()) {
      if (refreshed) metrics_->append({{"step", step_}, {"refresh", true}});
      log_step(step_, stats, rate, grad_norm, seconds, wait, refreshed);
      if (refreshed) warn_if_stale();
      progress->update(step_, concat("loss ", std::round(stats.loss * 1000) / 1000));
    }
    if (due(config_.eval.every, step_) && !config_.data.dev.empty()) evaluate(step_);
    if (due(config_.checkpoint.every, step_) || step_ == end) save(step_);
    set_deadline(config_.parallel.timeout_s);
  }
  if (step_ < end) save(step_);
  finish_save(/*wait=*/true);
  if (auto* refresh_ranks = session_->refresh_ranks()) refresh_ranks->end(/*stopped=*/step_ < end);
  if (step_ < end) {
    result.stopped_by_signal = true;
    if (writes())
      log::warn("stopped by a signal after step {}: saved. Continue with --resume.", step_);
  }
  result.steps = step_;
  result.examples_per_s = result.seconds > 0 ? static_cast<double>(examples) / result.seconds : 0.0;
  return result;
}

bool Trainer::stop_agreed() {
  auto* refresh_ranks = writes() ? session_->refresh_ranks() : nullptr;
  const bool stop = (refresh_ranks && refresh_ranks->told_to_stop()) || stop_requested();
  const at::Tensor told =
      at::tensor({stop ? 1 : 0, saving_ && !saving_->written() ? 1 : 0}, at::kLong);
  if (const auto& world = session_->engine().groups().world)
    world->all_reduce(told, parallel::ReduceOp::kMax).wait();
  if (saving_ && told[1].item<int64_t>() == 0) finish_save(/*wait=*/false);
  return told[0].item<int64_t>() != 0;
}

void Trainer::set_phase(const char* phase) const {
  if (parallel::Communicator* ranks = session_->engine().groups().everyone())
    ranks->set_phase(phase);
}

void Trainer::set_deadline(int64_t seconds) const {
  if (parallel::Communicator* ranks = session_->engine().groups().everyone())
    ranks->set_deadline(static_cast<double>(seconds));
}

void Trainer::log_step(int64_t step, const StepStats& stats, double rate, double grad_norm,
                       double seconds, double wait_s, bool refreshed) {
  static const double kPeak =
      measure_peak_flops(session_->model().dtype(), session_->model().device());
  const double recall =
      static_cast<double>(stats.first_hits) / static_cast<double>(config_.train.batch_size);
  const auto per_s = [&](double amount) { return amount / seconds; };
  Json record{{"step", step},
              {"loss", stats.loss},
              {"contrastive", stats.contrastive},
              {"samples_seen", samples_seen_},
              {"recall_at_1", recall},
              {"lr", rate},
              {"grad_norm", grad_norm},
              {"seconds", seconds},
              {"data_wait_s", wait_s},
              {"examples_per_s", per_s(static_cast<double>(config_.train.batch_size))},
              {"tokens_per_s", per_s(static_cast<double>(stats.rows))},
              {"mfu", per_s(stats.flops) / kPeak},
              {"slots", stats.slots},
              {"distinct_documents", stats.distinct},
              {"encoded_documents", stats.encoded},
              {"sent_bytes", stats.sent_bytes},
              {"staleness", step - session_->retriever().refreshed_at()},
              {"time_s", train_s_}};
  if (loss_scale_.on())
    record.update({{"loss_scale", loss_scale_.scale()}, {"skipped_steps", loss_scale_.skipped()}});
  if (refreshed && session_->retriever().staleness()) {
    const retriever::Staleness& stale = *session_->retriever().staleness();
    record["stale_steps"] = stale.steps;
    record["stale_cosine"] = stale.cosine;
    record["stale_recall"] = stale.recall;
  }
  std::string objectives;
  for (const auto& [name, value] : stats.objectives) {
    record[name] = value;
    objectives += concat("  ", name, ": ", std::round(value * 1e4) / 1e4);
    board_->scalar(concat("train/", name), step, static_cast<float>(value));
  }
  metrics_->append(record);
  for (const char* key : {"loss", "contrastive", "recall_at_1", "lr", "grad_norm", "examples_per_s",
                          "tokens_per_s", "mfu"}) {
    board_->scalar(concat("train/", key), step, record[key].get<float>());
  }
  if (!due(config_.train.log_every, step)) return;
  log::info(
      "step: {}  loss: {:.4f}  contrastive: {:.4f}{}  recall@1: {:.2f}  grad_norm: {:.3f}  lr: "
      "{:.2e}  examples/s: {:.1f}  "
      "tokens/s: {:.0f}  mfu: {:.1f}%",
      step, stats.loss, stats.contrastive, objectives, recall, grad_norm, rate,
      per_s(static_cast<double>(config_.train.batch_size)), per_s(static_cast<double>(stats.rows)),
      100 * per_s(stats.flops) / kPeak);
}

void Trainer::warn_if_stale() {
  // Where gold documents are read whatever the index says, an old one costs little.
  const auto& found = session_->retriever().staleness();
  if (warned_stale_ || config_.retriever.gold || !found) return;
  const std::string warning = retriever::staleness_warning(*found);
  if (warning.empty()) return;
  log::warn("step: {}  {}", step_, warning);
  warned_stale_ = true;
}

void Trainer::evaluate(int64_t step) {
  set_phase("evaluation");
  // Replicas with fewer or shorter answers to write wait for the others.
  set_deadline(config_.parallel.first_timeout_s);
  const Json figures =
      Evaluator(*session_).quick(*dev_, Evaluator::choose(*dev_, config_.eval.examples));
  if (writes()) {
    metrics_->append({{"step", step}, {"time_s", train_s_}, {"eval", figures}});
    board_->scalar("dev/em_retrieved", step, figures["em"]["retrieved"].get<float>());
    board_->scalar("dev/em_gold", step, figures["em"]["gold"].get<float>());
    board_->scalar("dev/recall_at_1", step, figures["recall_at"]["1"].get<float>());
    log::info("step: {}  dev: {}", step, figures.dump());
  }
  const double score = figures["em"]["retrieved"].get<double>();  // the same on all ranks
  if (score <= best_score_) return;
  best_score_ = score;
  best_step_ = step;
  if (config_.checkpoint.keep_best && config_.checkpoint.every > 0) save(step);
}

void Trainer::save(int64_t step) {
  // Nothing has changed since: writing it anew would only put the one complete checkpoint at risk.
  if (step == saved_step_) return;
  const double start = now_s();
  finish_save(/*wait=*/true);
  set_phase("save");
  parallel::Checkpoint checkpoint;
  checkpoint.step = step;
  optimizer_->save(checkpoint.files["model"], checkpoint.files["optimizer"],
                   /*copies=*/config_.checkpoint.async);
  saved_step_ = step;
  parallel::Communicator* world = session_->engine().groups().world.get();
  save_retriever(session_->retriever(), writes(), checkpoint);
  if (writes()) {
    checkpoint.state["config"] = to_json(config_);
    checkpoint.state["retriever"]["corpus"] = corpus_mark_;
    checkpoint.state["best"] = {{"score", best_score_}, {"step", best_step_}};
    checkpoint.state["train_s"] = train_s_;
    checkpoint.state["samples_seen"] = samples_seen_;
    if (loss_scale_.on()) checkpoint.state["loss_scale"] = loss_scale_.state();
  }
  set_deadline(config_.parallel.first_timeout_s);  // disks differ
  saving_ = std::make_unique<parallel::CheckpointSave>(checkpoints(), std::move(checkpoint), world);
  if (!config_.checkpoint.async) finish_save(/*wait=*/true);
  if (writes()) metrics_->append({{"step", step}, {"save_stall_s", now_s() - start}});
}

void Trainer::finish_save(bool wait) {
  if (!saving_) return;
  set_phase("save");
  if (wait) set_deadline(config_.parallel.first_timeout_s);  // disks differ
  saving_->finish();
  saving_.reset();
  if (!writes()) return;
  metrics_->sync();
  parallel::prune_checkpoints(checkpoints(), config_.checkpoint.keep_last,
                              config_.checkpoint.keep_best && best_step_ >= 0
                                  ? std::optional<int64_t>(best_step_)
                                  : std::nullopt);
}

void Trainer::load(const parallel::Checkpoint& checkpoint) {
  optimizer_->load(checkpoint.files.at("model"), checkpoint.files.at("optimizer"));
  best_score_ = json_get<double>(checkpoint.state.at("best"), "score", "state.json");
  best_step_ = json_get<int64_t>(checkpoint.state.at("best"), "step", "state.json");
  train_s_ = json_get<double>(checkpoint.state, "train_s", "state.json");
  step_ = saved_step_ = checkpoint.step;
  samples_seen_ = checkpoint.state.contains("samples_seen")
                      ? json_get<int64_t>(checkpoint.state, "samples_seen", "state.json")
                      : step_ * config_.train.batch_size;
  if (checkpoint.state.contains("loss_scale"))
    loss_scale_.load(checkpoint.state["loss_scale"], "state.json");
}

}  // namespace contexture::train
