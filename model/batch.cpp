#include "model/batch.h"

#include <algorithm>

#include "core/error.h"
#include "model/internal/readings.h"
#include "model/text_tower.h"
#include "parallel/device.h"

namespace contexture::model {
namespace {

using internal::Reading;

struct SegmentLists {
  std::vector<int64_t> query_begin{0}, segment_begin{0}, key_begin, key_end;
  void read(int64_t begin, int64_t end) {
    key_begin.push_back(begin);
    key_end.push_back(end);
  }
  void close(int64_t query_end) {
    query_begin.push_back(query_end);
    segment_begin.push_back(static_cast<int64_t>(key_begin.size()));
  }
  void feed(const std::string& prefix, parallel::Feeds& feeds) const {
    feed_segments({to_tensor(query_begin), to_tensor(segment_begin), to_tensor(key_begin),
                   to_tensor(key_end)},
                  prefix, feeds);
  }
};

int64_t num_rows(const ModelConfig& config, const Sequence& s) {
  return static_cast<int64_t>(s.tokens.size()) + (s.patches ? config.num_patches() : 0);
}

// The decoder reads prompt and target as one sequence, the last target token excepted (it is only
// predicted).
Sequence decoder_sequence(const Input& input) {
  Sequence s = input.prompt;
  if (!input.target.empty())
    s.tokens.insert(s.tokens.end(), input.target.begin(), input.target.end() - 1);
  return s;
}

Sequence joined(const Sequence& question, const Sequence& document) {
  Sequence s = document;
  s.tokens.insert(s.tokens.begin(), question.tokens.begin(), question.tokens.end());
  s.key = question.key * 0x9E3779B97F4A7C15ULL + document.key;
  return s;
}

std::vector<const Sequence*> pointers(const std::vector<Sequence>& sequences) {
  std::vector<const Sequence*> out;
  for (const Sequence& s : sequences) out.push_back(&s);
  return out;
}

std::vector<int64_t> row_offsets(const ModelConfig& config,
                                 const std::vector<const Sequence*>& sequences) {
  std::vector<int64_t> begin{0};
  for (const Sequence* s : sequences) begin.push_back(begin.back() + num_rows(config, *s));
  return begin;
}

}  // namespace

int64_t Microbatch::target_tokens() const {
  int64_t n = 0;
  for (const Input& input : inputs) n += static_cast<int64_t>(input.target.size());
  return n;
}

int64_t Microbatch::rows(const ModelConfig& config) const {
  int64_t n = 0;
  const auto words = [](const Sequence& s) { return static_cast<int64_t>(s.words.size()); };
  const auto query_rows = [&](const Sequence& s) {
    return config.text ? words(s) : num_rows(config, s);
  };
  for (const Sequence& document : documents)
    n += (config.has_document_tower() ? num_rows(config, document) : 0) + words(document);
  for (const Sequence& query : extra_queries) n += query_rows(query);
  for (const Input& input : inputs) {
    const auto count = static_cast<int64_t>(input.documents.size());
    n +=
        query_rows(input.query) + readings.count(count) * num_rows(config, decoder_sequence(input));
    for (const int32_t d : input.documents) {
      const int64_t document = num_rows(config, documents.at(d));
      if (config.fusion == "fid") n += document + static_cast<int64_t>(input.prompt.tokens.size());
      if (config.fusion == "prefix")
        n += document * (readings.joint + readings.single + readings.left_out * (count - 1));
    }
  }
  return n;
}

void add_tower_feeds(const ModelConfig& config, const std::string& tower,
                     const std::vector<const Sequence*>& sequences, bool causal,
                     at::ScalarType dtype, at::Device device, parallel::Feeds& feeds) {
  constexpr int64_t kPad = 0, kImage = 4;  // the tokenizer's reserved pieces (data/tokenizer.h)
  const std::vector<int64_t> begin = row_offsets(config, sequences);
  const int64_t num_patches = config.num_patches(), patch_width = config.patch_width();
  std::vector<int64_t> token, previous, before, position, row_key, row_sequence, patch_row,
      patch_index, picture_seq, plain_seq;
  token.reserve(begin.back());
  SegmentLists self;
  int64_t num_pictures = 0;
  for (const Sequence* s : sequences) num_pictures += s->patches ? 1 : 0;
  at::Tensor pixels = at::empty({num_pictures * num_patches, patch_width}, at::kFloat);
  float* pixel = pixels.data_ptr<float>();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = *sequences[i];
    const int64_t row0 = begin[i], rows = begin[i + 1] - row0;
    CONTEXTURE_DATA_REQUIRE(rows > 0, "sequence ", i, " of the ", tower,
                            " tower is empty: it has neither text nor a picture");
    (s.patches ? picture_seq : plain_seq).push_back(static_cast<int64_t>(i));
    int64_t text_row = row0;
    if (s.patches) {
      CONTEXTURE_DATA_REQUIRE(static_cast<int64_t>(s.patches->size()) == num_patches * patch_width,
                              "a picture has ", s.patches->size(),
                              " numbers where model.image_size and model.patch_size make ",
                              num_patches * patch_width);
      pixel = std::copy(s.patches->begin(), s.patches->end(), pixel);
      for (int64_t p = 0; p < num_patches; ++p) {
        patch_row.push_back(row0 + p);
        patch_index.push_back(p);
        token.push_back(kImage);
        previous.push_back(kPad);
        before.push_back(kPad);
      }
      text_row += num_patches;
    }
    int64_t last = kPad, last_but_one = kPad;
    for (const int32_t id : s.tokens) {
      CONTEXTURE_DATA_REQUIRE(id >= 0 && id < config.vocab, "token ", id,
                              " is outside model.vocab=", config.vocab,
                              ". The tokenizer and the model differ.");
      token.push_back(id);
      previous.push_back(last);
      before.push_back(last_but_one);
      last_but_one = last;
      last = id;
    }
    for (int64_t p = 0; p < rows; ++p) {
      position.push_back(p);
      row_sequence.push_back(static_cast<int64_t>(i));
      row_key.push_back(
          static_cast<int64_t>(s.key * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(p)));
    }
    if (config.closed_pictures && !causal && s.patches) {
      self.read(row0, text_row);
      self.close(text_row);
      if (text_row == begin[i + 1]) continue;
    }
    self.read(row0, begin[i + 1]);
    self.close(begin[i + 1]);
  }
  const auto put = [&](const char* name, const std::vector<int64_t>& values) {
    feeds[tower + "." + name] = parallel::to_device(to_tensor(values), device);
  };
  put("token", token);
  put("previous", previous);
  put("before", before);
  put("position", position);
  put("row_key", row_key);
  put("row_sequence", row_sequence);
  put("patch_row", patch_row);
  put("patch_index", patch_index);
  put("picture_seq", picture_seq);
  put("plain_seq", plain_seq);
  feeds[tower + ".begin"] = to_tensor(begin);
  feeds[tower + ".patches"] = parallel::to_device(pixels.to(dtype), device);
  self.feed(tower + ".self", feeds);
}

void add_encoding_feeds(const ModelConfig& config, const std::string& tower,
                        const std::vector<const Sequence*>& sequences, at::ScalarType dtype,
                        at::Device device, parallel::Feeds& feeds) {
  if (tower == "doc" ? config.has_document_tower() : !config.text)
    add_tower_feeds(config, tower, sequences, false, dtype, device, feeds);
  if (config.text) add_text_feeds(*config.text, tower + ".text", sequences, device, feeds);
}

parallel::Feeds make_feeds(const ModelConfig& config, const Microbatch& microbatch,
                           at::ScalarType dtype, at::Device device) {
  parallel::Feeds feeds;
  const std::vector<const Sequence*> documents = pointers(microbatch.documents);
  std::vector<const Sequence*> queries;
  std::vector<Sequence> decoder, reader;
  for (const Input& input : microbatch.inputs) {
    queries.push_back(&input.query);
    decoder.push_back(decoder_sequence(input));
    for (const int32_t d : input.documents) {
      CONTEXTURE_INVARIANT(d >= 0 && d < static_cast<int32_t>(documents.size()), "document slot ",
                           d, " of ", documents.size());
      if (config.fusion == "fid") reader.push_back(joined(input.prompt, *documents[d]));
    }
  }
  for (const Sequence& query : microbatch.extra_queries) queries.push_back(&query);
  add_encoding_feeds(config, "doc", documents, dtype, device, feeds);
  add_encoding_feeds(config, "query", queries, dtype, device, feeds);
  // In prefix mode an input's documents stand before its prompt, and the decoder reads them as its
  // own rows.
  const bool prefix = config.fusion == "prefix";
  size_t most = 0;
  for (const Input& input : microbatch.inputs) most = std::max(most, input.documents.size());
  const std::vector<Reading> readings = internal::readings_of(microbatch, most);
  std::vector<const Sequence*> decoder_rows;
  for (const Reading& reading : readings) {
    if (prefix) {
      for (const size_t k : reading.places)
        decoder_rows.push_back(documents[microbatch.inputs[reading.input].documents[k]]);
    }
    decoder_rows.push_back(&decoder[reading.input]);
  }
  add_tower_feeds(config, "dec", decoder_rows, true, dtype, device, feeds);
  if (config.fusion == "fid")
    add_tower_feeds(config, "reader", pointers(reader), false, dtype, device, feeds);

  const std::vector<int64_t> document_begin = row_offsets(config, documents);
  const std::vector<int64_t> reader_begin = row_offsets(config, pointers(reader));
  const std::vector<int64_t> decoder_begin = row_offsets(config, decoder_rows);
  const int64_t memory_rows = config.fusion == "fid" ? reader_begin.back() : document_begin.back();
  std::vector<int64_t> slot_query, slot_doc, slot_cell, slot_segment, target_row, target_token;
  std::vector<PointerRuns> pointer;
  SegmentLists memory, self;
  std::vector<int64_t> position;
  std::vector<size_t> first_reader{
      0};  // fid: an input's documents, joined with its question, follow one another
  for (const Input& input : microbatch.inputs)
    first_reader.push_back(first_reader.back() + input.documents.size());
  const size_t columns = std::max<size_t>(1, most);
  size_t row = 0;
  int64_t joint_targets = 0;
  for (size_t r = 0; r < readings.size(); ++r) {
    const Reading& reading = readings[r];
    const Input& input = microbatch.inputs[reading.input];
    int64_t start = decoder_begin[row];  // the reading's first decoder row
    const int64_t first = start;
    PointerRuns& runs = pointer.emplace_back();
    memory.read(memory_rows, memory_rows + 1);  // the null key, after the documents' rows
    for (size_t j = 0; j < reading.places.size(); ++j) {
      const size_t k = reading.places[j];
      const int32_t d = input.documents[k];
      const size_t slot = slot_query.size();
      slot_query.push_back(static_cast<int64_t>(reading.input));
      slot_doc.push_back(d);
      slot_cell.push_back(static_cast<int64_t>(r * columns + j));
      const int64_t text =
          static_cast<int64_t>(documents[d]->tokens.size());  // only text can be copied
      if (prefix) {
        slot_segment.push_back(static_cast<int64_t>(self.key_begin.size()));
        self.read(decoder_begin[row], decoder_begin[row + 1]);
        runs.read(slot, decoder_begin[row + 1] - text, decoder_begin[row + 1]);
        start = decoder_begin[++row];
      } else {
        const auto& begin = config.fusion == "fid" ? reader_begin : document_begin;
        const size_t at =
            config.fusion == "fid" ? first_reader[reading.input] + k : static_cast<size_t>(d);
        slot_segment.push_back(static_cast<int64_t>(memory.key_begin.size()));
        memory.read(begin[at], begin[at + 1]);
        runs.read(slot, begin[at + 1] - text, begin[at + 1]);
      }
    }
    const int64_t end = decoder_begin[++row];
    if (prefix) {
      self.read(start, end);
      self.close(end);
      for (int64_t p = 0; p < end - first; ++p) position.push_back(p);
    }
    memory.close(end);
    const int64_t predictions = static_cast<int64_t>(input.target.size());
    if (reading.kind == Reading::Kind::kJoint) joint_targets += predictions;
    for (int64_t t = 0; t < predictions; ++t) {
      target_row.push_back(end - predictions + t);
      target_token.push_back(input.target[t]);
      runs.predict(end - predictions + t, t > 0 ? input.target[t - 1] : -1,
                   t > 1 ? input.target[t - 2] : -1);
    }
  }
  if (prefix) {
    self.feed("dec.self", feeds);
    feeds["dec.position"] = parallel::to_device(to_tensor(position), device);
  }
  memory.feed("memory", feeds);
  add_pointer_feeds(pointer, static_cast<int64_t>(slot_query.size()), device, feeds);
  feeds["memory.slot_segment"] = parallel::to_device(to_tensor(slot_segment), device);
  feeds["slot.query"] = parallel::to_device(to_tensor(slot_query), device);
  feeds["slot.doc"] = parallel::to_device(to_tensor(slot_doc), device);
  feeds["slot.cell"] = parallel::to_device(to_tensor(slot_cell), device);
  feeds["slot.shape"] =
      to_tensor({static_cast<int64_t>(readings.size()), static_cast<int64_t>(columns)});
  feeds["target.row"] = parallel::to_device(to_tensor(target_row), device);
  feeds["target.token"] = parallel::to_device(to_tensor(target_token), device);
  const int64_t divisor = microbatch.global_target_tokens > 0
                              ? microbatch.global_target_tokens
                              : std::max<int64_t>(1, microbatch.target_tokens());
  feeds["loss.tokens"] = at::full({}, static_cast<double>(divisor), at::kDouble);
  feeds["loss.rows"] = at::full({}, joint_targets, at::kLong);
  if (microbatch.readings.objectives)
    internal::add_objective_feeds(microbatch, readings, most, joint_targets, device, feeds);
  feeds["score.attentive_weight"] = at::full({}, microbatch.attentive_weight, at::kDouble);
  return feeds;
}

parallel::Feeds slice_feeds(const parallel::Feeds& feeds, int64_t begin, int64_t end) {
  parallel::Feeds out = feeds;
  for (const char* name : {"dec.token", "dec.previous", "dec.before", "dec.position", "dec.row_key",
                           "dec.row_sequence"}) {
    out[name] = feeds.at(name).narrow(0, begin, end - begin);
  }
  // Sequences that lie before or after the slice have no query in it, and later rows are nobody's
  // keys.
  for (const char* name : {"dec.self.query_begin", "memory.query_begin"})
    out[name] = feeds.at(name).clamp(begin, end) - begin;
  for (const char* name : {"dec.self.key_begin", "dec.self.key_end"})
    out[name] = feeds.at(name).clamp_max(end);
  // Of ascending rows, those in the slice: which is the first, and how many.
  const auto within = [&](const at::Tensor& rows) {
    const int64_t first = rows.lt(begin).sum().item<int64_t>();
    return std::pair{first, rows.lt(end).sum().item<int64_t>() - first};
  };
  const auto [first_patch, patches] = within(feeds.at("dec.patch_row"));
  out["dec.patch_row"] = feeds.at("dec.patch_row").narrow(0, first_patch, patches) - begin;
  for (const char* name : {"dec.patch_index", "dec.patches"})
    out[name] = feeds.at(name).narrow(0, first_patch, patches);
  if (feeds.count("mass.row") != 0) {
    const auto [first, count] = within(feeds.at("mass.row"));
    out["mass.row"] = feeds.at("mass.row").narrow(0, first, count) - begin;
    out["mass.query_begin"] = feeds.at("mass.query_begin").clamp(first, first + count) - first;
  }
  return out;
}

void add_pointer_feeds(const std::vector<PointerRuns>& inputs, int64_t num_slots, at::Device device,
                       parallel::Feeds& feeds) {
  size_t most_rows = 1, most_keys = 1;
  for (const PointerRuns& input : inputs) {
    most_rows = std::max(most_rows, input.rows.size());
    most_keys = std::max(most_keys, input.keys.size());
  }
  std::vector<int64_t> key_row, key_slot, row, last, before, cell;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PointerRuns& input = inputs[i];
    for (size_t j = 0; j < most_keys; ++j) {
      key_row.push_back(j < input.keys.size() ? input.keys[j].first : 0);
      key_slot.push_back(j < input.keys.size() ? input.keys[j].second : num_slots);
    }
    for (size_t t = 0; t < most_rows; ++t) {
      const bool real = t < input.rows.size();
      if (real) cell.push_back(static_cast<int64_t>(i * most_rows + t));
      row.push_back(real ? input.rows[t].row : 0);
      last.push_back(real ? input.rows[t].last : -1);
      before.push_back(real ? input.rows[t].before : -1);
    }
  }
  const auto put = [&](const char* name, const std::vector<int64_t>& values) {
    feeds[name] = parallel::to_device(to_tensor(values), device);
  };
  put("pointer.key_row", key_row);
  put("pointer.key_slot", key_slot);
  put("pointer.row", row);
  put("pointer.last", last);
  put("pointer.before", before);
  put("pointer.cell", cell);
  feeds["pointer.shape"] =
      to_tensor({static_cast<int64_t>(inputs.size()), static_cast<int64_t>(most_rows),
                 static_cast<int64_t>(most_keys)});
}

at::Tensor to_tensor(const std::vector<int64_t>& values) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::kLong);
}

void feed_segments(const ops::Segments& segments, const std::string& prefix,
                   parallel::Feeds& feeds) {
  feeds[prefix + ".query_begin"] = segments.query_begin;
  feeds[prefix + ".segment_begin"] = segments.segment_begin;
  feeds[prefix + ".key_begin"] = segments.key_begin;
  feeds[prefix + ".key_end"] = segments.key_end;
}

ops::Segments segments_feed(const parallel::Pass& pass, const std::string& prefix, bool causal) {
  return {pass.feed(prefix + ".query_begin"), pass.feed(prefix + ".segment_begin"),
          pass.feed(prefix + ".key_begin"), pass.feed(prefix + ".key_end"), causal};
}

Patches make_patches(const ModelConfig& config, const uint8_t* rgb) {
  const int64_t side = config.image_size, patch = config.patch_size, per_side = side / patch;
  auto out = std::make_shared<std::vector<float>>();
  out->reserve(config.num_patches() * config.patch_width());
  for (int64_t p = 0; p < config.num_patches(); ++p) {
    const int64_t y0 = (p / per_side) * patch, x0 = (p % per_side) * patch;
    for (int64_t y = y0; y < y0 + patch; ++y) {
      const uint8_t* line = rgb + (y * side + x0) * 3;
      for (int64_t i = 0; i < 3 * patch; ++i)
        out->push_back(static_cast<float>(line[i]) / 127.5f - 1.0f);
    }
  }
  return out;
}

}  // namespace contexture::model
