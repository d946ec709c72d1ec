#include "model/model.h"

#include <algorithm>
#include <deque>

#include "core/error.h"
#include "model/text_tower.h"

namespace contexture::model {

Model::Model(const ModelConfig& config, std::shared_ptr<parallel::Communicator> tp,
             bool shares_rows, const ObjectiveOptions& objectives)
    : config_(config), objectives_(objectives), store_(std::move(tp), shares_rows) {
  config.validate();
  config.validate_split(store_.part().size);
  CONTEXTURE_INVARIANT(config.text_encoder.empty() || config.text,
                       "the folder of model.text_encoder has not been read");
  const std::string documents = "encoder";
  const std::string queries = config.towers == "separate" ? "query_encoder" : documents;
  if (config.text) {
    for (const char* tower : {"query", "doc"})
      add_text_tower(store_, *config.text, config.dropout, tower, blocks_);
    if (config.has_document_tower()) add_tower("doc", documents, documents + ".role.document");
  } else {
    add_tower("query", queries, queries + ".role.query");
    add_tower("doc", documents, documents + ".role.document");
    for (const std::string tower : {"query", "doc"}) {
      blocks_.push_back(
          std::make_unique<Pool>(store_, config, tower, tower == "query" ? queries : documents));
    }
  }
  blocks_.push_back(std::make_unique<Score>(store_, config));
  if (objectives.any()) blocks_.push_back(std::make_unique<Candidates>(store_, config, objectives));
  memory_wire_ = "doc.states";
  if (config.fusion == "fid") {
    add_tower("reader", documents, documents + ".role.reader");
    memory_wire_ = "reader.states";
  }
  if (config.fusion == "prefix") memory_wire_ = "dec.states";
  blocks_.push_back(std::make_unique<Embed>(store_, config, "dec", ""));
  std::vector<std::string> mass_wires;
  for (int64_t i = 0; i < config.decoder_layers; ++i) {
    const bool writes_mass = objectives.weight("adist") > 0 && config.reads_documents(i);
    if (writes_mass) mass_wires.push_back(concat("dec.mass.", i));
    blocks_.push_back(std::make_unique<DecoderLayer>(store_, config, i, memory_wire_, writes_mass));
  }
  blocks_.push_back(std::make_unique<FinalNorm>(
      store_, config, concat("dec.h.", config.decoder_layers), "dec.states", "decoder.norm"));
  blocks_.push_back(std::make_unique<Head>(store_, config, memory_wire_));
  if (objectives.any()) blocks_.push_back(std::make_unique<ObjectiveLoss>(objectives, mass_wires));
  executor_ = std::make_unique<parallel::Executor>(blocks_);
}

void Model::add_tower(const std::string& tower, const std::string& prefix,
                      const std::string& role) {
  blocks_.push_back(std::make_unique<Embed>(store_, config_, tower, role));
  for (int64_t i = 0; i < config_.encoder_layers; ++i) {
    blocks_.push_back(std::make_unique<EncoderLayer>(store_, config_, tower, prefix, i));
  }
  blocks_.push_back(std::make_unique<FinalNorm>(store_, config_,
                                                concat(tower, ".h.", config_.encoder_layers),
                                                tower + ".states", prefix + ".norm"));
}

void Model::materialise(at::ScalarType dtype, at::Device device, uint64_t seed,
                        const std::function<bool(const parallel::Parameter&)>& owned) {
  dtype_ = dtype;
  device_ = device;
  store_.materialise(dtype, device, seed, owned);
}

at::Tensor Model::embed(const std::string& tower, const std::vector<const Sequence*>& sequences,
                        int64_t max_rows) const {
  const std::string wire = tower + ".embedding";
  const auto run = [&](const parallel::Pass& pass) {
    return executor_->forward(pass, /*grad=*/false, {wire}).wire(wire);
  };
  return embed(
      tower, sequences, run, [](int64_t passes) { return passes; }, max_rows);
}

at::Tensor Model::embed(const std::string& tower, const std::vector<const Sequence*>& given,
                        const RunPass& run, const std::function<int64_t(int64_t)>& agree_on_passes,
                        int64_t max_rows) const {
  const at::NoGradGuard no_grad;
  // Where only patches are pooled, and patches see only patches, the text beside a picture changes
  // nothing.
  std::vector<const Sequence*> sequences = given;
  std::deque<Sequence> pictures;
  if (!config_.text && config_.pooling == "patches" && config_.closed_pictures) {
    for (const Sequence*& s : sequences) {
      if (s->patches && !s->tokens.empty())
        s = &pictures.emplace_back(Sequence{{}, s->patches, s->key});
    }
  }
  const auto rows = [&](size_t i) {
    if (config_.text) return static_cast<int64_t>(sequences[i]->words.size());
    return static_cast<int64_t>(sequences[i]->tokens.size()) +
           (sequences[i]->patches ? config_.num_patches() : 0);
  };
  std::vector<std::pair<size_t, size_t>> cuts;
  for (size_t begin = 0; begin < sequences.size(); begin = cuts.back().second) {
    size_t end = begin;
    int64_t total = 0;
    while (end < sequences.size() && (end == begin || total + rows(end) <= max_rows))
      total += rows(end++);
    cuts.emplace_back(begin, end);
  }
  at::Tensor out = at::empty({static_cast<int64_t>(sequences.size()), config_.retrieval_width()},
                             parallel::wide_dtype(dtype_));
  const auto passes = static_cast<size_t>(agree_on_passes(static_cast<int64_t>(cuts.size())));
  const Sequence filler{{0}, nullptr, 0, {0}};
  for (size_t c = 0; c < passes; ++c) {
    std::vector<const Sequence*> some{&filler};  // takes part in a pass that others need
    if (c < cuts.size())
      some.assign(sequences.begin() + cuts[c].first, sequences.begin() + cuts[c].second);
    parallel::Feeds feeds;
    if (config_.text) {
      add_text_feeds(*config_.text, tower + ".text", some, device_, feeds);
    } else {
      add_tower_feeds(config_, tower, some, false, dtype_, device_, feeds);
    }
    parallel::Pass pass(feeds);
    pass.device = device_;
    const at::Tensor embedded = run(pass);
    if (c < cuts.size()) out.narrow(0, cuts[c].first, some.size()).copy_(embedded);
  }
  return out;
}

double Model::forward_flops(const parallel::Pass& pass) const {
  double flops = 0.0;
  for (const auto& block : blocks_) flops += block->forward_flops(pass);
  return flops;
}

}  // namespace contexture::model
