// A run whose retriever starts from a published encoder (model.text_encoder). All that it needs of
// the Hugging Face folder besides the weights is kept in RUN/encoder, so that the run can be
// resumed and used when that folder is gone; the weights are in its checkpoints.
#pragma once
#include <filesystem>
#include <functional>

#include "parallel/parameters.h"
#include "train/config.h"

namespace contexture::train {

std::filesystem::path kept_encoder(const std::filesystem::path& run_dir);  // RUN/encoder

// Reads the encoder's shape into config.model, where model.text_encoder names one: from that
// folder, or from RUN/encoder if it is gone. For commands that have no Session. Throws as
// SentenceEncoderConfig::read.
void read_text_encoder(RunConfig& config);

// Writes the folder anew without weights: config.json and the tokenizer's files as they are, and
// pooling as sentence-transformers writes it (`config`'s, normalised: that is how a run embeds).
void write_encoder_folder(const std::filesystem::path& from,
                          const model::SentenceEncoderConfig& config,
                          const std::filesystem::path& to);

// The published values of the retriever's parameters, undefined for others: what training starts
// from. Reads a tensor when it is asked for it. Throws DataError as ForeignWeights and
// published_value.
std::function<at::Tensor(const parallel::Parameter&)> published_values(
    const model::ModelConfig& config);

// Writes a run's encoder, as trained up to a checkpoint (step -1: the newest), as a Hugging Face
// folder that `index build --encoder` and sentence-transformers read. Throws DataError when the run
// has none, UsageError when `to` exists.
void export_encoder(const std::filesystem::path& run_dir, const std::filesystem::path& to,
                    int64_t step = -1);

}  // namespace contexture::train
