#include "train/config.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "parallel/device.h"

namespace contexture::train {

void RunConfig::validate() const {
  model.validate();
  model.validate_split(parallel.tp);
  retriever.validate();
  for (const char* name : {"rag_sequence", "rag_token", "realm"}) {
    CONTEXTURE_USAGE_REQUIRE(
        retriever.weight(name) == 0 || model.fusion != "fid", "retriever.objectives.", name, "=",
        retriever.weight(name),
        " sums over documents read one at a time, but model.fusion=fid is a decoder that "
        "reads all at once. Use fusion=memory or prefix, or emdr2, pdist, loop or adist.");
  }
  CONTEXTURE_USAGE_REQUIRE(
      retriever.weight("adist") == 0 || model.fusion != "prefix",
      "retriever.objectives.adist=", retriever.weight("adist"),
      " needs cross-attention, which model.fusion=prefix has none of. Use memory or fid.");
  parallel.validate();
  optimizer.validate();
  data.augment.validate();
  data.document_augment.validate();
  data.counterfactual.validate();
  generate_options().validate();
  precision_of(train.precision);
  CONTEXTURE_USAGE_REQUIRE(parallel::is_device_name(run.device), "run.device=", run.device,
                           " is not known. Use auto, cpu or cuda.");
  train.loss_scale.validate();
  data::BadRecords::parse_policy(data.bad_records);
  CONTEXTURE_USAGE_REQUIRE(train.steps > 0, "train.steps=", train.steps, " must be at least 1.");
  CONTEXTURE_USAGE_REQUIRE(train.stop_at >= 0 && train.stop_at <= train.steps,
                           "train.stop_at=", train.stop_at,
                           " lies beyond train.steps=", train.steps, ".");
  const int64_t replicas = std::max<int64_t>(1, parallel.dp),
                runs = replicas * parallel.microbatches;
  CONTEXTURE_USAGE_REQUIRE(train.batch_size >= runs, "train.batch_size=", train.batch_size,
                           " is less than parallel.dp=", replicas,
                           " x parallel.microbatches=", parallel.microbatches, " = ", runs,
                           ": a microbatch would be empty.");
  CONTEXTURE_USAGE_REQUIRE(
      !retriever.group_lookup || replicas == 1 ||
          train.batch_size % (data.group_size * replicas) == 0,
      "retriever.group_lookup needs whole groups in each replica: train.batch_size=",
      train.batch_size, " over parallel.dp=", replicas,
      " is no multiple of data.group_size=", data.group_size, ".");
  CONTEXTURE_USAGE_REQUIRE(data.group_size > 0 && train.batch_size % data.group_size == 0,
                           "train.batch_size=", train.batch_size,
                           " is not a multiple of data.group_size=", data.group_size, ".");
  CONTEXTURE_USAGE_REQUIRE(data.query == "picture" || data.query == "text" || data.query == "both",
                           "data.query=", data.query, " is not known. Use picture, text or both.");
  const bool text_alone = !model.text_encoder.empty();
  CONTEXTURE_USAGE_REQUIRE(
      !text_alone || data.query != "picture",
      "data.query=picture leaves model.text_encoder nothing to embed: it reads text "
      "alone. Use data.query=text (or both: the reader then sees the picture, too).");
  CONTEXTURE_USAGE_REQUIRE(
      !text_alone || data.pairs.empty() || data.pairs_per_step == 0,
      "data.pairs_per_step=", data.pairs_per_step,
      " asks for pairs of pictures, and model.text_encoder embeds text alone. Set it to 0.");
  CONTEXTURE_USAGE_REQUIRE(
      !text_alone || data.picture_text_per_step == 0,
      "data.picture_text_per_step=", data.picture_text_per_step,
      " asks with pictures, and model.text_encoder embeds text alone. Set it to 0.");
  CONTEXTURE_USAGE_REQUIRE(data.assembly == "arrival" || data.assembly == "grouped",
                           "data.assembly=", data.assembly,
                           " is not known. Use arrival or grouped.");
  CONTEXTURE_USAGE_REQUIRE(!data.train.empty(), "data.train names no training set. Add one: ",
                           R"("train": [{"path": "train.jsonl"}])", ".");
  for (const TrainingSet& set : data.train) {
    CONTEXTURE_USAGE_REQUIRE(set.spans.empty() || set.spans == "salient" || set.spans == "random",
                             "data.train: spans '", set.spans,
                             "' is not known. Use salient or random.");
    CONTEXTURE_USAGE_REQUIRE(
        set.path.empty() != set.spans.empty() && (set.spans.empty() || set.types.empty()),
        "data.train: a set has either a path (and perhaps types) or spans, but one has path '",
        set.path, "' and spans '", set.spans, "'.");
  }
  CONTEXTURE_USAGE_REQUIRE(
      data.max_document_tokens > 0 && data.max_question_tokens > 0 && data.max_answer_tokens > 1,
      "data.max_document_tokens, max_question_tokens and max_answer_tokens must be positive.");
  CONTEXTURE_USAGE_REQUIRE(
      data.tokenizer_options.vocab_size == model.vocab || !data.tokenizer.empty(),
      "model.vocab=", model.vocab,
      " but data.tokenizer_options.vocab_size=", data.tokenizer_options.vocab_size,
      ". Set both to the same number.");
}

eval::GenerateOptions RunConfig::generate_options() const {
  eval::GenerateOptions out;
  out.decoder = eval.decoder;
  if (eval.decoder == "auto") {
    out.decoder = "joint";
    for (const char* name : {"rag_token", "rag_sequence"}) {
      if (retriever.weight("reader") == 0 && retriever.weight(name) > 0) out.decoder = name;
    }
  }
  out.beams = eval.beams;
  out.thorough = eval.thorough;
  out.max_new_tokens = eval.max_new_tokens;
  return out;
}

at::ScalarType precision_of(const std::string& name, at::Device device) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  if (name == "fp64") return at::kDouble;
  CONTEXTURE_USAGE_REQUIRE(name == "auto", "train.precision=", name,
                           " is not known. Use fp32, bf16, fp16, fp64 or auto.");
  if (device.is_cuda()) {  // from compute capability 8.0 on
    return parallel::visible_gpus().at(static_cast<size_t>(device.index())).major >= 8
               ? at::kBFloat16
               : at::kFloat;
  }
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) return at::kBFloat16;
#endif
  return at::kFloat;
}

std::string data_path(const DataConfig& config, const std::string& path) {
  std::string root = config.root;
  const char* home = std::getenv("HOME");
  const std::string home_dir = home != nullptr ? home : ".";
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const std::string cache = xdg != nullptr && *xdg != '\0' ? xdg : home_dir + "/.cache";
  if (const size_t at = root.find("{cache}"); at != std::string::npos) root.replace(at, 7, cache);
  if (root == "~" || root.rfind("~/", 0) == 0) root.replace(0, 1, home_dir);
  return (std::filesystem::path(root) / path).string();
}

}  // namespace contexture::train
