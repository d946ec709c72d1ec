// A microbatch as the model reads it: the distinct documents once, the inputs with the slots that
// name their documents, everything packed without padding into the feeds that the blocks read by
// name.
//
// Feeds of a tower t (doc, query, reader, dec): t.token, t.previous, t.before (the token two back),
// t.position [N] int64; t.begin [S + 1] int64; t.patches [Q, patch_width], t.patch_row,
// t.patch_index [Q] int64; t.self.{query_begin, segment_begin, key_begin, key_end} int64 CPU
// (ops::Segments); t.picture_seq, t.plain_seq: sequences with and without a picture; t.row_key [N]:
// what dropout masks are keyed by; t.row_sequence [N]. Others: slot.query, slot.doc, slot.cell
// [slots], slot.shape [2] (inputs, most slots); memory.* (Segments), memory.slot_segment;
// target.row, target.token [M]; pointer.* (below); loss.tokens, score.attentive_weight: fp64
// scalars on the CPU; loss.rows: how many targets, the first ones, loss.reader counts. A slot is a
// document of a reading (below): with one joint reading an input, a document of an input. Where
// objectives are asked for: candidate.query, .doc, .cell [input and document], candidate.null_cell
// [B or 0], candidate.shape [2] = B, most candidates C; read.shape [3] = B, C, longest target T;
// read.tokens [B] fp64; read.single_row, .single_cell, read.left_out_row, .left_out_cell: which
// targets of such readings lie where in B * C * T; mass.row, mass.query_begin: the decoder rows of
// joint targets; loss.inputs. With model.text_encoder the feeds query.text.* and doc.text.*
// (model/text_tower.h) stand in place of query's and doc's; in memory fusion those of doc, whose
// states the decoder reads, stand beside.
#pragma once
#include <memory>
#include <vector>

#include "model/config.h"
#include "model/ops.h"
#include "parallel/block.h"

namespace contexture::model {

using Patches = std::shared_ptr<const std::vector<float>>;  // [num_patches, patch_width],
                                                            // row-major; null: no picture

// A sequence of a picture's patches (if any) and then text pieces.
struct Sequence {
  std::vector<int32_t> tokens;
  Patches patches;
  uint64_t key = 0;  // identity of the content's owner (document or sample): keys its dropout masks
  // Queries and documents with model.text_encoder: the text as that reads it, [CLS] and [SEP]
  // included.
  std::vector<int32_t> words{};
};

struct Input {
  Sequence query;                  // what the retriever embeds
  Sequence prompt;                 // what the decoder reads before the target; not empty
  std::vector<int32_t> target;     // ends with the end piece; empty when generating
  std::vector<int32_t> documents;  // indices into Microbatch::documents, best first; may be empty
};

// What the decoder reads at once: each reading is a sequence of decoder rows of its own, over
// documents that are encoded once (in prefix fusion documents are decoder rows, and read anew).
struct Readings {
  bool joint = true;      // all documents of an input
  bool single = false;    // each by itself
  bool none = false;      // no document, as one more candidate
  bool left_out = false;  // all but each
  // Sequences are in this order: joint ones; then of each input the single ones and that of no
  // document; then left-out ones.
  bool objectives = false;  // make the feeds of model/objective_loss.h, too
  int64_t count(int64_t documents) const { return joint + none + documents * (single + left_out); }
};

struct Microbatch {
  std::vector<Sequence> documents;  // distinct
  std::vector<Input> inputs;
  std::vector<Sequence>
      extra_queries;  // only embedded, after the inputs' queries: contrastive pairs
  Readings readings;
  int64_t global_target_tokens = 0;  // of the whole global batch; 0: count this microbatch's own
  int64_t global_inputs = 0;         // likewise
  double attentive_weight = 1.0;     // scales the reader's gradient on the retrieval scores
  int64_t target_tokens() const;     // of this microbatch
  int64_t rows(
      const ModelConfig& config) const;  // tokens and patches that are read, none of them padding
};

// Throws DataError when a document or prompt is empty, a token is outside the vocabulary, a picture
// has the wrong size.
parallel::Feeds make_feeds(const ModelConfig& config, const Microbatch& microbatch,
                           at::ScalarType dtype, at::Device device);

// The feeds for the decoder's rows [begin, end) as a token slice: its keys are the rows before
// `end`, the documents are the same.
parallel::Feeds slice_feeds(const parallel::Feeds& feeds, int64_t begin, int64_t end);

// The feeds of one tower only, for encoding documents or queries by themselves.
void add_tower_feeds(const ModelConfig& config, const std::string& tower,
                     const std::vector<const Sequence*>& sequences, bool causal,
                     at::ScalarType dtype, at::Device device, parallel::Feeds& feeds);

// The feeds of what encodes documents or queries ("doc" or "query"), for encoding some by
// themselves: of the tower, if the model has it, and of the published encoder's text tower, if
// there is one.
void add_encoding_feeds(const ModelConfig& config, const std::string& tower,
                        const std::vector<const Sequence*>& sequences, at::ScalarType dtype,
                        at::Device device, parallel::Feeds& feeds);

// What the copy head of one input points from and to. Padded to rectangles in the feeds:
// pointer.shape [3] = inputs B, most rows T, most keys L; pointer.key_row, pointer.key_slot [B * L]
// (padding: slot = number of slots), pointer.row, pointer.last, pointer.before [B * T] (padding:
// row 0), pointer.cell [M]: where target m lies in B * T.
struct PointerRuns {
  struct Row {
    int64_t row;           // of the decoder
    int64_t last, before;  // the target tokens one and two back; -1: none
  };
  std::vector<std::pair<int64_t, int64_t>> keys;  // memory row, document slot
  std::vector<Row> rows;
  void read(size_t slot, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) keys.emplace_back(r, static_cast<int64_t>(slot));
  }
  void predict(int64_t row, int64_t last, int64_t before) { rows.push_back({row, last, before}); }
};
void add_pointer_feeds(const std::vector<PointerRuns>& inputs, int64_t num_slots, at::Device device,
                       parallel::Feeds& feeds);

// Writes a Segments to the feeds `prefix`.query_begin and so on, and reads it from there.
void feed_segments(const ops::Segments& segments, const std::string& prefix,
                   parallel::Feeds& feeds);
ops::Segments segments_feed(const parallel::Pass& pass, const std::string& prefix, bool causal);

at::Tensor to_tensor(const std::vector<int64_t>& values);  // int64, on the CPU

// A picture of image_size x image_size RGB bytes (HWC) as patch rows, scaled to about [-1, 1].
Patches make_patches(const ModelConfig& config, const uint8_t* rgb);

}  // namespace contexture::model
