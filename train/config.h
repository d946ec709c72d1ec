// Everything a run can be told. Declared once: files, --set, --help and the dump in the run folder
// visit these.
#pragma once
#include <string>
#include <vector>

#include "data/augment.h"
#include "data/counterfactual.h"
#include "data/tokenizer.h"
#include "eval/generate.h"
#include "model/config.h"
#include "parallel/config.h"
#include "retriever/retriever.h"
#include "train/loss_scale.h"
#include "train/optimizer.h"

namespace contexture::train {

struct RunSettings {
  std::string dir = "runs/run";
  uint64_t seed = 1;
  int64_t threads = 0;
  std::string device = "auto";
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("dir", dir, "folder of the run: config, metrics, checkpoints, report");
    visit("seed", seed, "of initialisation, sample order, augmentation and dropout");
    visit("threads", threads, "threads of the tensor operators; 0: all cores");
    visit("device", device,
          "cpu, cuda (the GPU of the rank's local number), or auto: cuda where there is a GPU");
  }
};

struct TrainingSet {
  std::string path;
  double weight = 0.0;
  std::vector<std::string> types;
  std::string spans = "";
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("path", path, "JSONL file, tar, or brace list of tars, below data.root");
    visit("weight", weight, "share of the mixture; all 0: by number of examples");
    visit("types", types, "only examples of these types; empty: all");
    visit("spans", spans,
          "instead of a path: masked sentences of data.corpus, of which salient (names, numbers, "
          "dates) or random spans are asked for");
  }
};

struct DataConfig {
  std::string root = ".";
  std::string corpus = "corpus.jsonl";
  std::vector<TrainingSet> train;
  std::string pairs;
  int64_t pairs_per_step = 0;
  std::vector<std::string> pair_kinds;
  int64_t inverse_cloze_per_step = 0;
  int64_t picture_text_per_step = 0;
  double patchwork_probability = 0.0;
  std::string dev;
  std::string test;
  std::string tokenizer;
  std::string tokenizer_text = "tokenizer.txt";
  data::TokenizerTrainOptions tokenizer_options;
  std::string bad_records = "fail";
  std::string query = "picture";
  int64_t max_document_tokens = 128;
  int64_t max_question_tokens = 48;
  int64_t max_answer_tokens = 24;
  int64_t group_size = 1;
  std::string assembly = "arrival";
  int64_t window = 1;
  double identity_probability = 0.0;
  data::AugmentConfig augment;
  data::AugmentConfig document_augment;
  data::CounterfactualConfig counterfactual;
  int64_t threads = 1;
  int64_t prefetch = 4;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("root", root,
          "folder of the data; a leading ~ is the home folder, {cache} the XDG cache folder");
    visit("corpus", corpus, "documents, below data.root");
    visit("train", train, "training sets");
    visit("pairs", pairs,
          "JSONL of picture pairs {id, document, queries} for the contrastive loss alone, below "
          "data.root; empty: none");
    visit("pairs_per_step", pairs_per_step,
          "picture pairs added to each step's contrastive loss; nothing reads them");
    visit("pair_kinds", pair_kinds, "only pairs of these kinds; empty: all");
    visit("inverse_cloze_per_step", inverse_cloze_per_step,
          "pairs added to each step's contrastive loss: a sentence, and the document it was taken "
          "out of");
    visit("picture_text_per_step", picture_text_per_step,
          "pairs added to each step's contrastive loss: a document's picture, and its text");
    visit("patchwork_probability", patchwork_probability,
          "chance that a picture pair is joined from two: a part of one identity in the other, in "
          "both styles alike");
    visit("dev", dev, "examples to evaluate on while training, below data.root; empty: none");
    visit("test", test, "examples for the final evaluation, below data.root; empty: none");
    visit("tokenizer", tokenizer, "sentencepiece model file; empty: train one into the run folder");
    visit("tokenizer_text", tokenizer_text,
          "text that a new tokenizer is trained on, below data.root");
    visit("tokenizer_options", tokenizer_options, "how a new tokenizer is trained");
    visit("bad_records", bad_records, "fail or skip (skipped ones are counted and named)");
    visit("query", query, "what the retriever embeds: picture, text or both");
    visit("max_document_tokens", max_document_tokens, "documents are cut to this many pieces");
    visit("max_question_tokens", max_question_tokens, "questions are cut to this many pieces");
    visit("max_answer_tokens", max_answer_tokens, "answers are cut to this many pieces");
    visit("group_size", group_size,
          "examples of a batch that share a gold document, which is then encoded once");
    visit("assembly", assembly,
          "which inputs of a batch meet in a microbatch: arrival (as drawn), or grouped (those "
          "that read the same documents, which are then encoded once)");
    visit("window", window,
          "steps whose examples are sorted by gold document and dealt out anew, so that each step "
          "reads fewer different documents; changes the order of samples; 1: off");
    visit(
        "identity_probability", identity_probability,
        "chance of a made-up identity: query and document pictures recoloured and mirrored alike");
    visit("augment", augment, "changes to query pictures while training");
    visit("document_augment", document_augment,
          "changes to gold documents' pictures while training");
    visit("counterfactual", counterfactual,
          "facts of gold documents swapped, and the answers with them");
    visit("threads", threads, "loader threads");
    visit("prefetch", prefetch, "steps prepared ahead");
  }
};

struct TrainConfig {
  int64_t steps = 1000;
  int64_t stop_at = 0;
  int64_t batch_size = 16;
  std::string precision = "fp32";
  std::string start_from;
  LossScaleConfig loss_scale;
  int64_t log_every = 10;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("steps", steps, "optimizer steps of the whole schedule");
    visit("stop_at", stop_at, "stop after this step, schedule unchanged; 0: at the end");
    visit("batch_size", batch_size, "examples per step");
    visit("precision", precision,
          "fp32, bf16 (fp32 masters), fp16 (fp32 masters, loss scaling), fp64, or auto: bf16 where "
          "the processor or GPU multiplies it, else fp32");
    visit("start_from", start_from,
          "weights to start from, by name: a folder of checkpoint export, or a run (its newest "
          "checkpoint); empty: drawn from run.seed");
    visit("loss_scale", loss_scale, "what fp16 multiplies the loss by");
    visit("log_every", log_every, "steps between log lines");
  }
};

struct EvalConfig {
  int64_t every = 0;
  int64_t examples = 256;
  int64_t batch_size = 64;
  int64_t documents = 0;
  int64_t max_new_tokens = 24;
  std::string decoder = "auto";
  int64_t beams = 1;
  bool thorough = true;
  std::vector<std::string> types;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("every", every, "steps between evaluations on data.dev; 0: none");
    visit("examples", examples, "dev examples used (evenly spaced); 0: all");
    visit("batch_size", batch_size, "examples decoded together");
    visit("documents", documents, "documents read when evaluating; 0: retriever.documents");
    visit("max_new_tokens", max_new_tokens, "longest answer");
    visit("decoder", decoder,
          "joint (all documents at once), rag_token, rag_sequence, or auto: what the run's "
          "objectives train");
    visit("beams", beams, "hypotheses of the beam search; 1: greedy");
    visit("thorough", thorough,
          "rag_sequence: score every answer found under every document; false: only where it was "
          "found");
    visit("types", types, "only examples of these types; empty: all");
  }
};

struct CheckpointConfig {
  int64_t every = 0;
  int64_t keep_last = 2;
  bool keep_best = true;
  bool async = false;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("every", every, "steps between checkpoints; 0: only at the end and on a signal");
    visit("keep_last", keep_last, "newest checkpoints kept; 0: all");
    visit("keep_best", keep_best, "also keep the checkpoint nearest to the best evaluation");
    visit("async", async,
          "training goes on while a thread writes a copy of the state: costs memory for the copy");
  }
};

struct RunConfig {
  RunSettings run;
  model::ModelConfig model;
  DataConfig data;
  retriever::RetrieverConfig retriever;
  TrainConfig train;
  parallel::ParallelConfig parallel;
  OptimizerConfig optimizer;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("run", run, "the run");
    visit("model", model, "the model");
    visit("data", data, "corpus, examples, tokenizer");
    visit("retriever", retriever, "index, refresh, objectives");
    visit("train", train, "the loop");
    visit("parallel", parallel, "how the model is spread over ranks");
    visit("optimizer", optimizer, "AdamW");
    visit("eval", eval, "evaluation while training");
    visit("checkpoint", checkpoint, "checkpoints");
  }
  void validate() const;                           // throws UsageError naming keys and values
  eval::GenerateOptions generate_options() const;  // as eval.* says
};

// fp32, bf16, fp16 or fp64 as a dtype; auto asks the processor, or the GPU.
at::ScalarType precision_of(const std::string& name, at::Device device = at::kCPU);

// data.root with ~ and {cache} resolved, joined with `path` unless that is absolute.
std::string data_path(const DataConfig& config, const std::string& path);

}  // namespace contexture::train
