// N rows, D model width, M memory rows, P segments, V vocabulary.
#include "eval/internal/writer.h"

#include <algorithm>

#include "core/error.h"
#include "parallel/device.h"

namespace contexture::eval {
namespace {

using model::ops::Segments;

at::Tensor to_tensor(const std::vector<int64_t>& values) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::kLong);
}

// The segments that some lines read, each with so many query rows, and the bias they carry.
struct Reading {
  Segments segments;
  at::Tensor bias_P;
};

Reading reading(const std::vector<const std::vector<Run>*>& runs,
                const std::vector<int64_t>& queries, const at::Tensor& slot_log_prob, bool causal) {
  std::vector<int64_t> query_begin{0}, segment_begin{0}, key_begin, key_end, places, slots;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const Run& run : *runs[i]) {
      if (run.slot >= 0) {
        places.push_back(static_cast<int64_t>(key_begin.size()));
        slots.push_back(run.slot);
      }
      key_begin.push_back(run.begin);
      key_end.push_back(run.end);
    }
    segment_begin.push_back(static_cast<int64_t>(key_begin.size()));
    query_begin.push_back(query_begin.back() + queries[i]);
  }
  const auto device = slot_log_prob.device();
  return {
      {to_tensor(query_begin), to_tensor(segment_begin), to_tensor(key_begin), to_tensor(key_end),
       causal},
      model::segment_bias(slot_log_prob.index_select(0, parallel::to_device(to_tensor(slots), device)),
                          parallel::to_device(to_tensor(places), device), static_cast<int64_t>(key_begin.size()))};
}

// Reads a Segments feed back as runs per input; slot_of names the slot of each segment, or -1.
std::vector<std::vector<Run>> runs_of(const Segments& s, const std::vector<int64_t>& slot_of) {
  std::vector<std::vector<Run>> runs(s.num_sequences());
  const int64_t *segment = s.segment_begin.data_ptr<int64_t>(),
                *begin = s.key_begin.data_ptr<int64_t>(), *end = s.key_end.data_ptr<int64_t>();
  for (size_t i = 0; i < runs.size(); ++i) {
    for (int64_t p = segment[i]; p < segment[i + 1]; ++p)
      runs[i].push_back({begin[p], end[p], slot_of[p]});
  }
  return runs;
}

std::vector<int64_t> slot_of_segment(const at::Tensor& slot_segment, int64_t num_segments) {
  std::vector<int64_t> slot_of(num_segments, -1);
  const at::Tensor cpu = slot_segment.cpu();
  for (int64_t slot = 0; slot < cpu.numel(); ++slot) slot_of[cpu.data_ptr<int64_t>()[slot]] = slot;
  return slot_of;
}

struct Encoded {
  at::Tensor memory_MD;      // undefined in prefix mode
  at::Tensor slot_log_prob;  // [slots]
  at::Tensor query_BE, doc_UE;
};

Encoded encode(const model::Model& model, const model::Microbatch& microbatch,
               const parallel::Pass& pass, DocumentCache* cache) {
  const parallel::Executor executor(model.blocks());
  const bool prefix = model.config().fusion == "prefix", fid = model.config().fusion == "fid";
  if (cache == nullptr || fid || microbatch.documents.empty()) {
    std::vector<std::string> wanted{"slot.log_prob", "query.embedding", "doc.embedding"};
    if (!prefix) wanted.push_back(model.memory_wire());
    const auto run = executor.forward(pass, /*grad=*/false, wanted);
    return {prefix ? at::Tensor() : run.wire(model.memory_wire()), run.wire("slot.log_prob"),
            run.wire("query.embedding"), run.wire("doc.embedding")};
  }
  std::vector<const model::Sequence*> missing;
  for (const auto& document : microbatch.documents) {
    const bool known = cache->entries.count(document.key) != 0;
    (known ? cache->hits : cache->misses) += 1;
    if (!known) missing.push_back(&document);
  }
  if (!missing.empty()) {
    parallel::Feeds feeds;
    model::add_encoding_feeds(model.config(), "doc", missing, model.dtype(), model.device(), feeds);
    const parallel::Pass documents(feeds);
    const auto run = executor.forward(documents, /*grad=*/false, {"doc.states", "doc.embedding"});
    const int64_t* begin = feeds.at("doc.begin").data_ptr<int64_t>();
    for (size_t i = 0; i < missing.size(); ++i) {
      cache->entries[missing[i]->key] = {
          run.wire("doc.states").narrow(0, begin[i], begin[i + 1] - begin[i]).clone(),
          run.wire("doc.embedding")[static_cast<int64_t>(i)].clone()};
    }
  }
  std::vector<at::Tensor> states, embeddings;
  for (const auto& document : microbatch.documents) {
    states.push_back(cache->entries.at(document.key).states_MD);
    embeddings.push_back(cache->entries.at(document.key).embedding_E);
  }
  const auto query = executor.forward(pass, /*grad=*/false, {"query.embedding"});
  const model::Score score(model.parameters(), model.config());
  const at::Tensor embedded = at::stack(embeddings);
  return {prefix ? at::Tensor() : at::cat(states),
          score.forward({query.wire("query.embedding"), embedded}, pass)[0],
          query.wire("query.embedding"), embedded};
}

// log p(document | query) is over all of an input's documents, whatever its readings read.
std::vector<std::vector<double>> probabilities(const model::Microbatch& microbatch,
                                               const Encoded& encoded, double temperature) {
  std::vector<std::vector<double>> out;
  for (size_t i = 0; i < microbatch.inputs.size(); ++i) {
    out.emplace_back();
    const std::vector<int32_t>& documents = microbatch.inputs[i].documents;
    if (documents.empty()) continue;
    const at::Tensor rows =
        parallel::to_device(to_tensor({documents.begin(), documents.end()}), encoded.doc_UE.device());
    const at::Tensor prob =
        (encoded.doc_UE.index_select(0, rows).mv(encoded.query_BE[static_cast<int64_t>(i)]) /
         temperature)
            .softmax(0)
            .to(at::kDouble)
            .cpu();
    out.back().assign(prob.data_ptr<double>(), prob.data_ptr<double>() + prob.numel());
  }
  return out;
}

}  // namespace

Writer::Writer(const model::Model& model, model::Microbatch microbatch, DocumentCache* cache)
    : model_(&model), microbatch_(std::move(microbatch)) {
  const at::NoGradGuard no_grad;
  for (auto& input : microbatch_.inputs) input.target.clear();
  const model::ModelConfig& config = model.config();
  const bool prefix = config.fusion == "prefix";
  feeds_ = model::make_feeds(config, microbatch_, model.dtype(), model.device());
  const parallel::Pass pass(feeds_);
  Encoded encoded = encode(model, microbatch_, pass, cache);
  document_prob_ = probabilities(microbatch_, encoded, config.score_temperature);
  slot_log_prob_ = encoded.slot_log_prob;
  memory_MD_ = encoded.memory_MD;

  const Segments self = model::segments_feed(pass, "dec.self", true),
                 memory = model::segments_feed(pass, "memory", false);
  const auto no_slots = [](const Segments& s) {
    return std::vector<int64_t>(s.num_segments(), -1);
  };
  const auto slots = [&](const Segments& s) {
    return slot_of_segment(feeds_.at("memory.slot_segment"), s.num_segments());
  };
  const std::vector<std::vector<Run>> self_runs =
      runs_of(self, prefix ? slots(self) : no_slots(self));
  memory_ = runs_of(memory, prefix ? no_slots(memory) : slots(memory));
  const int64_t *query_begin = self.query_begin.data_ptr<int64_t>(),
                *shape = feeds_.at("pointer.shape").data_ptr<int64_t>();
  const at::Tensor key_row = feeds_.at("pointer.key_row").cpu(),
                   key_slot = feeds_.at("pointer.key_slot").cpu();
  const at::Tensor token = feeds_.at("dec.token").cpu();
  const auto count = static_cast<int64_t>(self_runs.size());
  for (int64_t r = 0; r < count; ++r) {
    Line& line = start_.emplace_back();
    line.reading = r;
    line.rows = self_runs[r];
    line.attention.assign(memory_[r].size(), 0.0);
    prompt_rows_.push_back(query_begin[r + 1] - query_begin[r]);
    last_prompt_token_.push_back(
        static_cast<int32_t>(token.data_ptr<int64_t>()[query_begin[r + 1] - 1]));
    copy_keys_.emplace_back();
    for (int64_t j = r * shape[2]; j < (r + 1) * shape[2]; ++j) {
      const int64_t slot = key_slot.data_ptr<int64_t>()[j];
      if (slot < slot_log_prob_.size(0))
        copy_keys_.back().emplace_back(key_row.data_ptr<int64_t>()[j], slot);
    }
  }
  for (const model::DecoderLayer* layer : model.decoder_layers()) {
    model::LayerCache& c = caches_.emplace_back();
    if (layer->reads_documents())
      std::tie(c.memory_k_MGK, c.memory_v) = layer->project_memory(memory_MD_);
  }
  const int64_t rows = feeds_.at("dec.token").numel();
  make_room(rows);
  used_rows_ = rows;
  std::vector<Line*> lines;
  for (Line& line : start_) lines.push_back(&line);
  const at::Tensor states =
      advance(pass, lines, prompt_rows_, at::arange(rows, at::kLong), /*share=*/false);
  for (int64_t r = 0; r < count; ++r) start_[r].state_D = states[query_begin[r + 1] - 1];
  if (prefix) memory_MD_ = states;  // what can be copied from
}

void Writer::make_room(int64_t rows) {
  const model::ModelConfig& config = model_->config();
  const int64_t have = caches_.front().k_MGK.defined() ? caches_.front().k_MGK.size(0) : 0;
  if (rows <= have) return;
  const int64_t capacity = std::max(rows, have + have / 2);
  for (model::LayerCache& c : caches_) {
    for (at::Tensor* rows_MGK : {&c.k_MGK, &c.v_MGK}) {
      const at::Tensor larger =
          at::zeros({capacity, config.kv_heads, config.head_width},
                    at::TensorOptions().dtype(model_->dtype()).device(model_->device()));
      if (have > 0) larger.narrow(0, 0, have).copy_(*rows_MGK);
      *rows_MGK = larger;
    }
  }
}

// All layers over new rows, so many for each line; their states.
at::Tensor Writer::advance(const parallel::Pass& pass, const std::vector<Line*>& lines,
                           const std::vector<int64_t>& rows_of, const at::Tensor& cache_rows,
                           bool share) {
  const bool prefix = model_->config().fusion == "prefix";
  at::Tensor x_ND = model_->decoder_embed().forward({}, pass)[0];
  std::vector<const std::vector<Run>*> self_runs, memory_runs;
  for (const Line* line : lines) {
    self_runs.push_back(&line->rows);
    memory_runs.push_back(&memory_[line->reading]);
  }
  const Reading self = reading(self_runs, rows_of, slot_log_prob_, true),
                memory = reading(memory_runs, rows_of, slot_log_prob_, false);
  const at::Tensor rows_N = parallel::to_device(cache_rows, model_->device());
  for (size_t l = 0; l < caches_.size(); ++l) {
    const model::DecoderLayer& layer = *model_->decoder_layers()[l];
    if (share && layer.reads_documents()) {
      const at::Tensor s = layer.memory_share(x_ND, memory.segments, memory.bias_P, caches_[l])
                               .to(at::kDouble)
                               .cpu();
      int64_t p = 0;
      for (Line* line : lines) {
        for (double& sum : line->attention) sum += s.data_ptr<double>()[p++];
        line->attention_count += 1;
      }
    }
    x_ND =
        layer.step(x_ND, pass.feed("dec.position"), rows_N, self.segments,
                   prefix ? self.bias_P : at::Tensor(), memory.segments, memory.bias_P, caches_[l]);
  }
  return model_->decoder_norm().forward({x_ND}, pass)[0];
}

at::Tensor Writer::next(const std::vector<const Line*>& lines) const {
  const at::NoGradGuard no_grad;
  const std::string tower = model_->memory_wire().substr(0, model_->memory_wire().find('.'));
  std::vector<model::PointerRuns> pointers(lines.size());
  std::vector<at::Tensor> states;
  for (size_t s = 0; s < lines.size(); ++s) {
    const auto& written = lines[s]->tokens;
    const size_t n = written.size();
    pointers[s].keys = copy_keys_[lines[s]->reading];
    pointers[s].predict(static_cast<int64_t>(s), n > 0 ? written[n - 1] : -1,
                        n > 1 ? written[n - 2] : -1);
    states.push_back(lines[s]->state_D);
  }
  parallel::Feeds feeds;
  for (const char* name : {".token", ".previous", ".before"})
    feeds[tower + name] = feeds_.at(tower + name);
  model::add_pointer_feeds(pointers, slot_log_prob_.size(0), model_->device(), feeds);
  return model_->head()
      .log_probs(at::stack(states), memory_MD_, slot_log_prob_, parallel::Pass(feeds))
      .to(at::kDouble)
      .cpu()
      .contiguous();
}

// The next row of the line's own block, or the first of a fresh one: after a fork only one of the
// two goes on in the old one.
int64_t Writer::row_for(Line& line) {
  constexpr int64_t kBlockRows = 16;
  if (line.block && line.block->next < line.block->end &&
      line.rows.back().end == line.block->next) {
    line.rows.back().end += 1;
    return line.block->next++;
  }
  line.block = std::make_shared<Block>(Block{used_rows_ + 1, used_rows_ + kBlockRows});
  line.rows.push_back({used_rows_, used_rows_ + 1, -1});
  used_rows_ += kBlockRows;
  return line.rows.back().begin;
}

void Writer::append(const std::vector<Line*>& lines, const std::vector<int32_t>& tokens) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> token, previous, position, rows;
  for (size_t s = 0; s < lines.size(); ++s) {
    Line& line = *lines[s];
    token.push_back(tokens[s]);
    previous.push_back(line.tokens.empty() ? last_prompt_token_[line.reading] : line.tokens.back());
    position.push_back(prompt_rows_[line.reading] + static_cast<int64_t>(line.tokens.size()));
    rows.push_back(row_for(line));
    line.tokens.push_back(tokens[s]);
  }
  make_room(used_rows_);
  const auto device = model_->device();
  const at::Tensor none = at::empty({0}, at::TensorOptions().dtype(at::kLong).device(device));
  const parallel::Feeds feeds{
      {"dec.token", parallel::to_device(to_tensor(token), device)},
      {"dec.previous", parallel::to_device(to_tensor(previous), device)},
      {"dec.position", parallel::to_device(to_tensor(position), device)},
      {"dec.patch_row", none},
      {"dec.patch_index", none},
      {"dec.patches", at::empty({0, model_->config().patch_width()},
                                at::TensorOptions().dtype(model_->dtype()).device(device))}};
  const parallel::Pass pass(feeds);
  const at::Tensor states =
      advance(pass, lines, std::vector<int64_t>(lines.size(), 1), to_tensor(rows), /*share=*/true);
  for (size_t s = 0; s < lines.size(); ++s) lines[s]->state_D = states[static_cast<int64_t>(s)];
}

}  // namespace contexture::eval
