// S inputs still being written, D model width, M memory rows, P segments.
#include "eval/generate.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/rng.h"

namespace contexture::eval {
namespace {

using model::ops::Segments;

constexpr int32_t kEos = 3;  // data/tokenizer.h

at::Tensor to_tensor(const std::vector<int64_t>& values) { return at::tensor(at::ArrayRef<int64_t>(values), at::kLong); }

struct Run {
  int64_t begin, end;
  int64_t slot;  // document slot whose log-probability is its bias; -1: none
};

// The segments of some inputs, each with `queries[i]` query rows, and the bias they carry.
struct Reading {
  Segments segments;
  at::Tensor bias_P;
};

Reading reading(const std::vector<std::vector<Run>>& runs, const std::vector<int64_t>& inputs,
                const std::vector<int64_t>& queries, const at::Tensor& slot_log_prob, bool causal) {
  std::vector<int64_t> query_begin{0}, segment_begin{0}, key_begin, key_end, places, slots;
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (const Run& run : runs[inputs[i]]) {
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
  return {{to_tensor(query_begin), to_tensor(segment_begin), to_tensor(key_begin), to_tensor(key_end), causal},
          model::segment_bias(slot_log_prob.index_select(0, to_tensor(slots).to(device)), to_tensor(places).to(device),
                              static_cast<int64_t>(key_begin.size()))};
}

// Reads a Segments feed back as runs per input; slot_of names the slot of each segment, or -1.
std::vector<std::vector<Run>> runs_of(const Segments& s, const std::vector<int64_t>& slot_of) {
  std::vector<std::vector<Run>> runs(s.num_sequences());
  const int64_t *segment = s.segment_begin.data_ptr<int64_t>(), *begin = s.key_begin.data_ptr<int64_t>(),
                *end = s.key_end.data_ptr<int64_t>();
  for (size_t i = 0; i < runs.size(); ++i) {
    for (int64_t p = segment[i]; p < segment[i + 1]; ++p) runs[i].push_back({begin[p], end[p], slot_of[p]});
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
};

Encoded encode(const model::Model& model, const model::Microbatch& microbatch, const parallel::Pass& pass,
               DocumentCache* cache) {
  const parallel::Executor executor(model.blocks());
  const bool prefix = model.config().fusion == "prefix", fid = model.config().fusion == "fid";
  if (cache == nullptr || fid || microbatch.documents.empty()) {
    std::vector<std::string> wanted{"slot.log_prob"};
    if (!prefix) wanted.push_back(model.memory_wire());
    const auto run = executor.forward(pass, /*grad=*/false, wanted);
    return {prefix ? at::Tensor() : run.wire(model.memory_wire()), run.wire("slot.log_prob")};
  }
  std::vector<const model::Sequence*> missing;
  for (const auto& document : microbatch.documents) {
    const bool known = cache->entries.count(document.key) != 0;
    (known ? cache->hits : cache->misses) += 1;
    if (!known) missing.push_back(&document);
  }
  if (!missing.empty()) {
    parallel::Feeds feeds;
    model::add_tower_feeds(model.config(), "doc", missing, false, model.dtype(), model.device(), feeds);
    const parallel::Pass documents(feeds);
    const auto run = executor.forward(documents, /*grad=*/false, {"doc.states", "doc.embedding"});
    const int64_t* begin = feeds.at("doc.begin").data_ptr<int64_t>();
    for (size_t i = 0; i < missing.size(); ++i) {
      cache->entries[missing[i]->key] = {run.wire("doc.states").narrow(0, begin[i], begin[i + 1] - begin[i]).clone(),
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
  return {prefix ? at::Tensor() : at::cat(states), score.forward({query.wire("query.embedding"), at::stack(embeddings)}, pass)[0]};
}

int32_t pick(const float* log_prob, int64_t vocab, double temperature, Stream& stream) {
  if (temperature <= 0.0) return static_cast<int32_t>(std::max_element(log_prob, log_prob + vocab) - log_prob);
  const double best = *std::max_element(log_prob, log_prob + vocab);
  double total = 0.0;
  for (int64_t v = 0; v < vocab; ++v) total += std::exp((log_prob[v] - best) / temperature);
  double left = stream.uniform() * total;
  for (int64_t v = 0; v < vocab; ++v) {
    left -= std::exp((log_prob[v] - best) / temperature);
    if (left <= 0.0) return static_cast<int32_t>(v);
  }
  return static_cast<int32_t>(vocab - 1);
}

}  // namespace

std::vector<Generated> generate(const model::Model& model, const model::Microbatch& microbatch,
                                const GenerateOptions& options, DocumentCache* cache) {
  const at::NoGradGuard no_grad;
  CONTEXTURE_REQUIRE(options.max_new_tokens > 0, "max_new_tokens=", options.max_new_tokens, " must be at least 1.");
  const model::ModelConfig& config = model.config();
  const bool prefix = config.fusion == "prefix";
  model::Microbatch prompts = microbatch;
  for (auto& input : prompts.inputs) input.target.clear();
  const int64_t num_inputs = static_cast<int64_t>(prompts.inputs.size());
  std::vector<Generated> out(num_inputs);
  if (num_inputs == 0) return out;
  const parallel::Feeds feeds = model::make_feeds(config, prompts, model.dtype(), model.device());
  const parallel::Pass pass(feeds);
  const Encoded encoded = encode(model, prompts, pass, cache);
  const auto device = model.device();

  // Each input's rows get a stretch of the cache: its prompt (and in prefix mode its documents), then room to write.
  const Segments prompt_self = model::segments_feed(pass, "dec.self", true);
  const Segments memory = model::segments_feed(pass, "memory", false);
  const int64_t* query_begin = prompt_self.query_begin.data_ptr<int64_t>();
  std::vector<int64_t> base(num_inputs), length(num_inputs), cache_row, everyone(num_inputs), prompt_rows(num_inputs);
  int64_t capacity = 0;
  for (int64_t i = 0; i < num_inputs; ++i) {
    base[i] = capacity;
    length[i] = query_begin[i + 1] - query_begin[i];
    for (int64_t p = 0; p < length[i]; ++p) cache_row.push_back(capacity + p);
    capacity += length[i] + options.max_new_tokens;
    everyone[i] = i;
    prompt_rows[i] = length[i];
  }
  auto self_runs = runs_of(prompt_self, prefix ? slot_of_segment(feeds.at("memory.slot_segment"), prompt_self.num_segments())
                                               : std::vector<int64_t>(prompt_self.num_segments(), -1));
  for (int64_t i = 0; i < num_inputs; ++i) {
    for (Run& run : self_runs[i]) {
      run.begin += base[i] - query_begin[i];
      run.end += base[i] - query_begin[i];
    }
  }
  const auto memory_runs = runs_of(memory, prefix ? std::vector<int64_t>(memory.num_segments(), -1)
                                                  : slot_of_segment(feeds.at("memory.slot_segment"), memory.num_segments()));
  // What each input may copy from, as (memory row, slot) pairs.
  std::vector<std::vector<std::pair<int64_t, int64_t>>> copy_keys(num_inputs);
  {
    const int64_t *shape = feeds.at("pointer.shape").data_ptr<int64_t>();
    const at::Tensor key_row = feeds.at("pointer.key_row").cpu(), key_slot = feeds.at("pointer.key_slot").cpu();
    for (int64_t i = 0; i < num_inputs; ++i) {
      for (int64_t j = i * shape[2]; j < (i + 1) * shape[2]; ++j) {
        const int64_t slot = key_slot.data_ptr<int64_t>()[j];
        if (slot < encoded.slot_log_prob.size(0)) copy_keys[i].emplace_back(key_row.data_ptr<int64_t>()[j], slot);
      }
    }
  }

  const auto options_rows = at::TensorOptions().dtype(model.dtype()).device(device);
  std::vector<model::LayerCache> caches;
  for (const model::DecoderLayer* layer : model.decoder_layers()) {
    model::LayerCache c;
    c.k_MGK = at::zeros({capacity, config.kv_heads, config.head_width}, options_rows);
    c.v_MGK = at::zeros_like(c.k_MGK);
    if (layer->reads_documents()) std::tie(c.memory_k_MGK, c.memory_v) = layer->project_memory(encoded.memory_MD);
    caches.push_back(std::move(c));
  }

  std::vector<std::vector<double>> share_sum(num_inputs);
  std::vector<int64_t> share_count(num_inputs, 0);
  for (int64_t i = 0; i < num_inputs; ++i) share_sum[i].assign(memory_runs[i].size(), 0.0);
  // One pass over new rows: all layers, then the last row's state of each input.
  const auto advance = [&](const parallel::Pass& rows_pass, const std::vector<int64_t>& inputs,
                           const std::vector<int64_t>& queries, const std::vector<int64_t>& rows, bool share) {
    at::Tensor x_ND = model.decoder_embed().forward({}, rows_pass)[0];
    const at::Tensor rows_N = to_tensor(rows).to(device);
    const Reading self = reading(self_runs, inputs, queries, encoded.slot_log_prob, true);
    const Reading mem = reading(memory_runs, inputs, queries, encoded.slot_log_prob, false);
    for (size_t l = 0; l < caches.size(); ++l) {
      const model::DecoderLayer& layer = *model.decoder_layers()[l];
      if (share && layer.reads_documents()) {
        const at::Tensor s = layer.memory_share(x_ND, mem.segments, mem.bias_P, caches[l]).to(at::kDouble).cpu();
        int64_t p = 0;
        for (const int64_t i : inputs) {
          for (double& sum : share_sum[i]) sum += s.data_ptr<double>()[p++];
          share_count[i] += 1;
        }
      }
      x_ND = layer.step(x_ND, rows_pass.feed("dec.position"), rows_N, self.segments,
                        prefix ? self.bias_P : at::Tensor(), mem.segments, mem.bias_P, caches[l]);
    }
    return model.decoder_norm().forward({x_ND}, rows_pass)[0];
  };

  std::vector<int64_t> last_row;
  int64_t rows_so_far = 0;
  for (int64_t i = 0; i < num_inputs; ++i) last_row.push_back((rows_so_far += length[i]) - 1);
  const at::Tensor prompt_states = advance(pass, everyone, prompt_rows, cache_row, false);
  at::Tensor state_SD = prompt_states.index_select(0, to_tensor(last_row).to(device));
  const std::string tower = prefix ? "dec" : model.memory_wire().substr(0, model.memory_wire().find('.'));
  const at::Tensor memory_MD = prefix ? prompt_states : encoded.memory_MD;
  std::vector<int64_t> active = everyone;
  std::vector<Stream> streams;
  for (int64_t i = 0; i < num_inputs; ++i) streams.emplace_back(options.seed, "generate", static_cast<uint64_t>(i));
  for (int64_t t = 0; t < options.max_new_tokens && !active.empty(); ++t) {
    std::vector<model::PointerRuns> pointers(active.size());
    for (size_t s = 0; s < active.size(); ++s) {
      const auto& written = out[active[s]].tokens;
      const size_t n = written.size();
      pointers[s].keys = copy_keys[active[s]];
      pointers[s].predict(static_cast<int64_t>(s), n > 0 ? written[n - 1] : -1, n > 1 ? written[n - 2] : -1);
    }
    parallel::Feeds pointer_feeds;
    for (const char* name : {".token", ".previous", ".before"}) pointer_feeds[tower + name] = feeds.at(tower + name);
    model::add_pointer_feeds(pointers, encoded.slot_log_prob.size(0), device, pointer_feeds);
    const parallel::Pass pointer_pass(pointer_feeds);
    const at::Tensor log_prob = model.head().log_probs(state_SD, memory_MD, encoded.slot_log_prob, pointer_pass)
                                    .to(at::kFloat).cpu().contiguous();
    std::vector<int64_t> still, next_token, previous, position, rows;
    for (size_t s = 0; s < active.size(); ++s) {
      const int64_t i = active[s];
      const float* row = log_prob.data_ptr<float>() + static_cast<int64_t>(s) * log_prob.size(1);
      const int32_t token = pick(row, log_prob.size(1), options.temperature, streams[i]);
      out[i].log_prob += row[token];
      if (token == kEos) continue;
      previous.push_back(out[i].tokens.empty() ? prompts.inputs[i].prompt.tokens.back() : out[i].tokens.back());
      out[i].tokens.push_back(token);
      still.push_back(i);
      next_token.push_back(token);
      position.push_back(length[i]);
      rows.push_back(base[i] + length[i]);
      self_runs[i].back().end += 1;
      length[i] += 1;
    }
    active = std::move(still);
    if (active.empty() || t + 1 == options.max_new_tokens) break;
    const at::Tensor empty = at::empty({0}, at::kLong);
    const parallel::Feeds step_feeds{{"dec.token", to_tensor(next_token).to(device)}, {"dec.previous", to_tensor(previous).to(device)},
                                     {"dec.position", to_tensor(position).to(device)}, {"dec.patch_row", empty},
                                     {"dec.patch_index", empty}, {"dec.patches", at::empty({0, config.patch_width()}, options_rows)}};
    const parallel::Pass step_pass(step_feeds);
    state_SD = advance(step_pass, active, std::vector<int64_t>(active.size(), 1), rows, true);
  }

  const at::Tensor prob = encoded.slot_log_prob.exp().to(at::kDouble).cpu();
  int64_t slot = 0;
  for (int64_t i = 0; i < num_inputs; ++i) {
    for (size_t k = 0; k < prompts.inputs[i].documents.size(); ++k, ++slot) {
      const double p = prob.data_ptr<double>()[slot];
      out[i].document_prob.push_back(p);
      // memory_runs holds the null key first, then the documents.
      out[i].document_share.push_back(share_count[i] > 0 ? share_sum[i][k + 1] / static_cast<double>(share_count[i]) : p);
    }
  }
  return out;
}

}  // namespace contexture::eval
