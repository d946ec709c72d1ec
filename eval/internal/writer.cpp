// N rows, D model width, M memory rows, P segments, V vocabulary.
#include "eval/internal/writer.h"

#include <algorithm>

#include "core/error.h"
#include "parallel/device.h"

namespace contexture::eval {
namespace {

using model::to_tensor;
using model::ops::Segments;
using parallel::Feeds;
using parallel::WireValues;

// What some lines read, each with one query row: segments, and where among them document slots lie.
struct Reading {
  std::vector<int64_t> segment_begin{0}, key_begin, key_end, places, slots;
  void add(const std::vector<Run>& runs) {
    for (const Run& run : runs) {
      if (run.slot >= 0) {
        places.push_back(static_cast<int64_t>(key_begin.size()));
        slots.push_back(run.slot);
      }
      key_begin.push_back(run.begin);
      key_end.push_back(run.end);
    }
    segment_begin.push_back(static_cast<int64_t>(key_begin.size()));
  }
  void feed(const std::string& prefix, Feeds& feeds) const {
    const at::Tensor query_begin =
        at::arange(static_cast<int64_t>(segment_begin.size()), at::kLong);
    model::feed_segments(
        {query_begin, to_tensor(segment_begin), to_tensor(key_begin), to_tensor(key_end)}, prefix,
        feeds);
  }
};

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

// Embeddings of the microbatch's documents and, where the decoder reads them, states, from the
// cache as far as it knows them.
WireValues encoded(const model::Model& model, const parallel::Inference& inference,
                   const model::Microbatch& microbatch, DocumentCache& cache) {
  const bool with_states = model.config().fusion == "memory";
  std::vector<const model::Sequence*> missing;
  for (const auto& document : microbatch.documents) {
    const bool known = cache.entries.count(document.key) != 0;
    (known ? cache.hits : cache.misses) += 1;
    if (!known) missing.push_back(&document);
  }
  if (!missing.empty()) {
    Feeds feeds;
    model::add_encoding_feeds(model.config(), "doc", missing, model.dtype(), model.device(), feeds);
    parallel::Pass documents(feeds);
    documents.device = model.device();
    std::vector<std::string> wanted{"doc.embedding"};
    if (with_states) wanted.push_back("doc.states");
    const WireValues found = inference.run(documents, wanted);
    for (size_t i = 0; i < missing.size(); ++i) {
      auto& entry = cache.entries[missing[i]->key];
      entry.embedding_E = found.at("doc.embedding")[static_cast<int64_t>(i)].clone();
      if (!with_states) continue;
      const int64_t* begin = feeds.at("doc.begin").data_ptr<int64_t>() + i;
      entry.states_MD = found.at("doc.states").narrow(0, begin[0], begin[1] - begin[0]).clone();
    }
  }
  std::vector<at::Tensor> states, embeddings;
  for (const auto& document : microbatch.documents) {
    states.push_back(cache.entries.at(document.key).states_MD);
    embeddings.push_back(cache.entries.at(document.key).embedding_E);
  }
  WireValues out{{"doc.embedding", at::stack(embeddings)}};
  if (with_states) out["doc.states"] = at::cat(states);
  return out;
}

// log p(document | query) is over all of an input's documents, whatever its readings read.
std::vector<std::vector<double>> probabilities(const model::Microbatch& microbatch,
                                               const at::Tensor& query_BE, const at::Tensor& doc_UE,
                                               double temperature) {
  std::vector<std::vector<double>> out;
  for (size_t i = 0; i < microbatch.inputs.size(); ++i) {
    out.emplace_back();
    const std::vector<int32_t>& documents = microbatch.inputs[i].documents;
    if (documents.empty()) continue;
    const at::Tensor rows =
        parallel::to_device(to_tensor({documents.begin(), documents.end()}), doc_UE.device());
    const at::Tensor prob =
        (doc_UE.index_select(0, rows).mv(query_BE[static_cast<int64_t>(i)]) / temperature)
            .softmax(0)
            .to(at::kDouble)
            .cpu();
    out.back().assign(prob.data_ptr<double>(), prob.data_ptr<double>() + prob.numel());
  }
  return out;
}

}  // namespace

Writer::Writer(const model::Model& model, const parallel::Inference& inference,
               model::Microbatch microbatch, DocumentCache* cache)
    : model_(&model), inference_(&inference), microbatch_(std::move(microbatch)) {
  const at::NoGradGuard no_grad;
  for (auto& input : microbatch_.inputs) input.target.clear();
  const model::ModelConfig& config = model.config();
  const bool prefix = config.fusion == "prefix";
  feeds_ = model::make_feeds(config, microbatch_, model.dtype(), model.device());
  const parallel::Pass all(feeds_);
  const Segments self = model::segments_feed(all, "dec.self", true),
                 memory = model::segments_feed(all, "memory", false);
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
  const int64_t num_slots = feeds_.at("memory.slot_segment").numel();
  std::vector<model::PointerRuns> pointers(self_runs.size());
  for (int64_t r = 0; r < static_cast<int64_t>(self_runs.size()); ++r) {
    Line& line = start_.emplace_back();
    line.reading = r;
    line.rows = self_runs[r];
    const int64_t last = query_begin[r + 1] - 1;
    prompt_rows_.push_back(query_begin[r + 1] - query_begin[r]);
    last_prompt_token_.push_back(static_cast<int32_t>(token.data_ptr<int64_t>()[last]));
    copy_keys_.emplace_back();
    for (int64_t j = r * shape[2]; j < (r + 1) * shape[2]; ++j) {
      const int64_t slot = key_slot.data_ptr<int64_t>()[j];
      if (slot < num_slots) copy_keys_.back().emplace_back(key_row.data_ptr<int64_t>()[j], slot);
    }
    pointers[r].keys = copy_keys_.back();
    pointers[r].predict(last, -1, -1);
  }
  model::add_pointer_feeds(pointers, num_slots, model.device(), feeds_);
  read_prompts(cache);
}

// Everything up to the first tokens' log-probabilities, in one pass.
void Writer::read_prompts(DocumentCache* cache) {
  const model::ModelConfig& config = model_->config();
  used_rows_ = feeds_.at("dec.token").numel();
  decoding_.place(parallel::to_device(at::arange(used_rows_, at::kLong), model_->device()),
                  used_rows_);
  if (cache != nullptr && config.fusion != "fid" && !microbatch_.documents.empty())
    given_ = encoded(*model_, *inference_, microbatch_, *cache);
  parallel::Pass pass(feeds_);
  pass.device = model_->device();
  pass.decoding = &decoding_;
  std::vector<std::string> wanted{"slot.log_prob", "query.embedding"};
  if (given_.empty()) wanted.push_back("doc.embedding");
  WireValues found = inference_->run(pass, wanted, given_, {kNext});
  found.insert(given_.begin(), given_.end());
  document_prob_ = probabilities(microbatch_, found.at("query.embedding"),
                                 found.at("doc.embedding"), config.score_temperature);
  slot_log_prob_ = found.at("slot.log_prob");
  const bool has_head = found.count(kNext) != 0;
  const at::Tensor next_RV = has_head ? found.at(kNext).to(at::kDouble).cpu() : at::Tensor();
  for (size_t r = 0; has_head && r < start_.size(); ++r)
    start_[r].next_V = next_RV[static_cast<int64_t>(r)];
  // Layers and head now have what they need of the documents.
  given_ = {{"slot.log_prob", slot_log_prob_}};
  if (config.fusion != "prefix") given_[model_->memory_wire()] = at::Tensor();
  decoding_.noting = microbatch_.readings.joint;
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

bool Writer::append(const std::vector<Line*>& lines, const std::vector<int32_t>& tokens) {
  const at::NoGradGuard no_grad;
  if (inference_->most(lines.empty() ? 0 : 1) == 0) return false;
  parallel::Pass pass(feeds_);
  pass.device = model_->device();
  pass.decoding = &decoding_;
  if (lines.empty()) {  // the newest pass anew, which changes nothing
    inference_->run(pass, {}, given_, {kNext});
    return true;
  }
  std::vector<int64_t> token, previous, position, rows;
  Reading self, memory;
  std::vector<model::PointerRuns> pointers(lines.size());
  for (size_t s = 0; s < lines.size(); ++s) {
    Line& line = *lines[s];
    const int64_t r = line.reading;
    token.push_back(tokens[s]);
    previous.push_back(line.tokens.empty() ? last_prompt_token_[r] : line.tokens.back());
    position.push_back(prompt_rows_[r] + static_cast<int64_t>(line.tokens.size()));
    rows.push_back(row_for(line));
    pointers[s].predict(static_cast<int64_t>(s), tokens[s],
                        line.tokens.empty() ? -1 : line.tokens.back());
    line.tokens.push_back(tokens[s]);
    self.add(line.rows);
    memory.add(memory_[r]);
  }
  // Slots of this pass: each line's documents. Self-attention reads them in prefix fusion, memory
  // otherwise.
  const bool prefix = model_->config().fusion == "prefix";
  const Reading& documents = prefix ? self : memory;
  size_t slot = 0;
  for (size_t s = 0; s < lines.size(); ++s) {
    std::map<int64_t, int64_t> here;
    for (const Run& run : prefix ? lines[s]->rows : memory_[lines[s]->reading]) {
      if (run.slot >= 0) here.emplace(run.slot, static_cast<int64_t>(slot++));
    }
    for (const auto& [row, of] : copy_keys_[lines[s]->reading])
      pointers[s].keys.emplace_back(row, here.at(of));
  }
  const auto device = model_->device();
  const at::Tensor none = at::empty({0}, at::TensorOptions().dtype(at::kLong).device(device));
  feeds_ = {{"dec.token", parallel::to_device(to_tensor(token), device)},
            {"dec.previous", parallel::to_device(to_tensor(previous), device)},
            {"dec.position", parallel::to_device(to_tensor(position), device)},
            {"dec.patch_row", none},
            {"dec.patch_index", none},
            {"dec.patches", at::empty({0, model_->config().patch_width()},
                                      at::TensorOptions().dtype(model_->dtype()).device(device))},
            {"memory.slot_segment", parallel::to_device(to_tensor(documents.places), device)}};
  self.feed("dec.self", feeds_);
  memory.feed("memory", feeds_);
  model::add_pointer_feeds(pointers, static_cast<int64_t>(slot), device, feeds_);
  given_["slot.log_prob"] =
      slot_log_prob_.index_select(0, parallel::to_device(to_tensor(documents.slots), device));
  decoding_.place(parallel::to_device(to_tensor(rows), device), used_rows_);
  const WireValues found = inference_->run(pass, {}, given_, {kNext});
  if (decoding_.noting) note_attention(lines, static_cast<int64_t>(memory.key_begin.size()));
  for (Line* line : lines) line->next_V = at::Tensor();
  if (found.count(kNext) == 0) return true;
  const at::Tensor next_NV = found.at(kNext).to(at::kDouble).cpu();
  for (size_t s = 0; s < lines.size(); ++s) lines[s]->next_V = next_NV[static_cast<int64_t>(s)];
  return true;
}

void Writer::note_attention(const std::vector<Line*>& lines, int64_t num_segments) {
  std::vector<at::Tensor> layers;
  for (int64_t l = 0; l < model_->config().decoder_layers; ++l) {
    if (!model_->config().reads_documents(l)) continue;
    const auto mine = decoding_.notes.find(concat("dec.layer.", l));
    layers.push_back(mine != decoding_.notes.end() ? mine->second.to(at::kDouble).cpu()
                                                   : at::zeros({num_segments}, at::kDouble));
  }
  if (layers.empty()) return;
  notes_.push_back(at::stack(layers));
  for (Line* line : lines) {
    line->noted.push_back(num_noted_);
    num_noted_ += static_cast<int64_t>(memory_[line->reading].size());
  }
}

std::vector<std::vector<double>> Writer::attention(const std::vector<const Line*>& lines) const {
  std::vector<std::vector<double>> out(lines.size());
  if (notes_.empty()) return out;
  const at::Tensor all_LP = at::cat(notes_, 1);
  inference_->sum_over_stages(all_LP);  // of which one alone has each layer's
  const auto share = all_LP.accessor<double, 2>();
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::vector<int64_t>& noted = lines[i]->noted;
    if (noted.empty()) continue;
    out[i].assign(memory_[lines[i]->reading].size(), 0.0);
    for (const int64_t begin : noted) {
      for (int64_t l = 0; l < share.size(0); ++l) {
        for (size_t p = 0; p < out[i].size(); ++p)
          out[i][p] += share[l][begin + static_cast<int64_t>(p)];
      }
    }
    for (double& sum : out[i])
      sum /= static_cast<double>(noted.size()) * static_cast<double>(share.size(0));
  }
  return out;
}

}  // namespace contexture::eval
