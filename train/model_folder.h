// A model apart from its run: a folder with its weights by name, config.json and the tokenizer
// (docs/formats/model.md). `contexture checkpoint export` writes it; train.start_from starts
// another run from it, or from a run as it is.
#pragma once
#include <filesystem>
#include <functional>

#include "parallel/checkpoint.h"
#include "parallel/parameters.h"
#include "train/config.h"

namespace contexture::train {

// The tokenizer of a run's settings: data.tokenizer, or the one in its folder.
std::filesystem::path tokenizer_of(const RunConfig& config);

// The weights of a run's checkpoint (step -1: the newest). Throws DataError when there is none.
parallel::Checkpoint model_checkpoint(const std::filesystem::path& run_dir, int64_t step = -1);

// Writes the folder. Throws DataError as settings_of and model_checkpoint, UsageError when `to`
// exists.
void export_model(const std::filesystem::path& run_dir, const std::filesystem::path& to,
                  int64_t step = -1);

// The tokenizer of what train.start_from names. Throws DataError when that is neither an exported
// folder nor a run.
std::filesystem::path starting_tokenizer(const std::filesystem::path& from);

// The values that config.train.start_from has for the parameters, in the form that
// AdamW::start_from takes: only what is asked for is read. Throws DataError listing every name that
// is missing there, or here, or has another shape; and where the tokenizers differ. warns: of model
// settings that differ.
std::function<at::Tensor(const parallel::Parameter&)> starting_values(
    const RunConfig& config, const parallel::ParameterStore& store, bool warns);

}  // namespace contexture::train
