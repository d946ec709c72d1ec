#include "train/step_data.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "train/document_pairs.h"
#include "train/masked_spans.h"

namespace contexture::train {

std::pair<size_t, size_t> Share::run(size_t inputs, int64_t m, int64_t total) {
  const auto n = static_cast<int64_t>(inputs);
  return {static_cast<size_t>(n * m / total), static_cast<size_t>(n * (m + 1) / total)};
}

std::pair<size_t, size_t> Share::mine(size_t inputs) const {
  return {run(inputs, first(), total()).first,
          run(inputs, first() + microbatches - 1, total()).second};
}

ExampleEncoder::ExampleEncoder(const RunConfig& config, const data::Tokenizer& tokenizer,
                               const retriever::Documents& documents,
                               std::shared_ptr<const retriever::TextReader> reader)
    : config_(&config),
      tokenizer_(&tokenizer),
      documents_(&documents),
      reader_(std::move(reader)) {}

void ExampleEncoder::set_query_text(model::Sequence& query, const std::string& text) const {
  query.tokens = tokenizer_->encode(text);
  if (static_cast<int64_t>(query.tokens.size()) > config_->data.max_question_tokens)
    query.tokens.resize(config_->data.max_question_tokens);
  if (reader_) query.words = reader_->read(text);
}

PreparedInput ExampleEncoder::encode(const data::Example& example, const std::string& answer,
                                     const data::Image* picture, uint64_t key) const {
  using data::Tokenizer;
  const DataConfig& data = config_->data;
  CONTEXTURE_DATA_REQUIRE(!reader_ || !example.question.empty(), "example '", example.id,
                          "' has no question, and model.text_encoder embeds text alone.");
  PreparedInput out = encode_answer(example, answer);
  model::Patches patches =
      picture != nullptr ? model::make_patches(config_->model, picture->rgb.data()) : nullptr;
  set_query_text(out.query, example.question);
  std::vector<int32_t> question = out.query.tokens;
  out.query.key = out.prompt.key = key;
  const bool with_picture = data.query != "text" && patches != nullptr;
  if (with_picture) out.query.patches = patches;
  if (with_picture && data.query != "both") out.query.tokens.clear();
  if (out.query.tokens.empty() && !out.query.patches) out.query.tokens = {Tokenizer::kQuery};
  out.prompt.patches = patches;
  out.prompt.tokens = std::move(question);
  out.prompt.tokens.push_back(Tokenizer::kBos);
  return out;
}

PreparedInput ExampleEncoder::encode_answer(const data::Example& example,
                                            const std::string& answer) const {
  PreparedInput out;
  out.example = &example;
  if (!answer.empty()) {
    out.target = tokenizer_->encode(answer);
    const auto most = static_cast<size_t>(config_->data.max_answer_tokens);
    if (out.target.size() >= most) out.target.resize(most - 1);
    out.target.push_back(data::Tokenizer::kEos);
  }
  for (const std::string& id : example.documents) {
    if (const auto row = documents_->corpus().find(id)) out.gold.push_back(*row);
  }
  const auto source = example.meta.find("source_document");
  if (source != example.meta.end() && source->is_string())
    out.source = documents_->corpus().find(source->get<std::string>()).value_or(-1);
  return out;
}

PictureSet::PictureSet(const RunConfig& config, const std::string& path,
                       const std::vector<std::string>& types, const retriever::Documents& documents,
                       data::BadRecords& bad)
    : set(data::read_examples(data_path(config.data, path), bad)) {
  std::erase_if(set.examples, [&](const data::Example& e) { return !is_of(types, e); });
  std::erase_if(set.examples, [&](const data::Example& e) {
    const auto unknown =
        std::find_if(e.documents.begin(), e.documents.end(),
                     [&](const std::string& id) { return !documents.corpus().find(id); });
    if (unknown == e.documents.end()) return false;
    bad.add(path, "unknown document", e.id + " names " + *unknown);
    return true;
  });
  CONTEXTURE_DATA_REQUIRE(!set.examples.empty(), path, " has no usable example. ", bad.summary());
  data::ImageCache::Options options;
  options.height = options.width = static_cast<int>(config.model.image_size);
  pictures = std::make_unique<data::ImageCache>(set.images, options);
  data::drop_unreadable_images(set, *pictures, bad);
}

std::shared_ptr<const data::Image> PictureSet::picture(const data::Example& example) const {
  return example.image.empty() ? nullptr : pictures->get(example.image);
}

bool is_of(const std::vector<std::string>& types, const data::Example& example) {
  return types.empty() || std::find(types.begin(), types.end(), example.type) != types.end();
}

data::SamplerConfig sampling_of(const RunConfig& config) {
  data::SamplerConfig out;
  out.seed = config.run.seed;
  out.batch_size = config.train.batch_size;
  out.group_size = config.data.group_size;
  out.window = config.data.window;
  for (const TrainingSet& set : config.data.train) out.weights.push_back(set.weight);
  if (std::none_of(out.weights.begin(), out.weights.end(), [](double w) { return w > 0; }))
    out.weights.clear();
  return out;
}

StepMaker::StepMaker(const RunConfig& config, const ExampleEncoder& encoder,
                     const retriever::Documents& documents,
                     std::shared_ptr<const data::Tokenizer> tokenizer, data::BadRecords& bad)
    : config_(&config), encoder_(&encoder), documents_(&documents) {
  std::vector<const data::ExampleSet*> sets;
  std::set<int64_t> training_rows;
  std::vector<data::Example> examples;
  for (const TrainingSet& set : config.data.train) {
    sets_.push_back(set.spans.empty()
                        ? std::make_unique<PictureSet>(config, set.path, set.types, documents, bad)
                        : nullptr);
    if (sets_.back() == nullptr) continue;
    for (const data::Example& e : sets_.back()->set.examples) {
      examples.push_back(e);
      for (const std::string& id : e.documents) training_rows.insert(documents.corpus().row_of(id));
    }
  }
  data::BadRecords reported_elsewhere(
      data::BadRecords::Policy::kSkip);  // by whoever evaluates on these sets
  for (const std::string& path : {config.data.dev, config.data.test}) {
    if (path.empty()) continue;
    for (const data::Example& e :
         data::read_examples(data_path(config.data, path), reported_elsewhere).examples) {
      for (const std::string& id : e.documents) {
        const auto row = documents.corpus().find(id);
        if (row && training_rows.count(*row) == 0) held_out_.insert(*row);
      }
    }
  }
  for (const TrainingSet& set : config.data.train) {
    masked_.push_back(set.spans.empty()
                          ? nullptr
                          : std::make_unique<MaskedSpans>(set.spans, config, encoder.tokenizer(),
                                                          documents, held_out_));
  }
  if (!config.data.pairs.empty() && config.data.pairs_per_step > 0)
    pairs_ = std::make_unique<PairSet>(config, documents, bad);
  if (config.data.inverse_cloze_per_step + config.data.picture_text_per_step > 0) {
    document_pairs_ = std::make_unique<DocumentPairs>(config, encoder, documents, held_out_);
  }
  for (size_t d = 0; d < sets_.size(); ++d) sets.push_back(&set(d));
  sampler_ = std::make_unique<data::Sampler>(sampling_of(config), sets);
  data::CounterfactualConfig swaps = config.data.counterfactual;
  swaps.seed += config.run.seed;
  std::vector<const data::Document*> training;
  for (const int64_t row : training_rows) training.push_back(&documents.corpus().document(row));
  counterfactual_ =
      std::make_unique<data::Counterfactual>(swaps, training, examples, std::move(tokenizer));
}

StepMaker::~StepMaker() = default;

const data::ExampleSet& StepMaker::set(size_t dataset) const {
  return sets_[dataset] ? sets_[dataset]->set : masked_[dataset]->set();
}

int64_t StepMaker::num_examples() const {
  int64_t n = 0;
  for (size_t d = 0; d < sets_.size(); ++d) n += static_cast<int64_t>(set(d).examples.size());
  return n;
}

namespace {

// The answer to train on: the first that stands in the document, so that reading is what finds it;
// else the first.
std::string readable_answer(const std::vector<std::string>& answers, const std::string& text) {
  const auto found = std::find_if(answers.begin(), answers.end(), [&](const std::string& a) {
    return data::contains_words(text, a);
  });
  return found != answers.end() ? *found : answers[0];
}

}  // namespace

Stream StepMaker::identity_stream(int64_t step, int64_t row) const {
  return Stream(config_->run.seed, "identity", static_cast<uint64_t>(step),
                static_cast<uint64_t>(row));
}

std::optional<data::Identity> StepMaker::identity_of(Stream& stream) const {
  const bool made_up = stream.uniform() < config_->data.identity_probability;
  const data::Identity identity =
      data::random_identity(stream);  // drawn always: what follows must not depend on the chance
  return made_up ? std::optional(identity) : std::nullopt;
}

model::Sequence StepMaker::edited(int64_t row, const data::EditedDocument& edit,
                                  int64_t step) const {
  model::Sequence sequence = documents_->sequence(row);
  if (!edit.swaps.empty()) documents_->set_text(sequence, edit.title, edit.text);
  const data::Image* picture = documents_->picture(row);
  if (picture == nullptr) return sequence;
  Stream stream = identity_stream(step, row);
  const std::optional<data::Identity> identity = identity_of(stream);
  data::Image image = identity ? data::apply_identity(*picture, *identity) : *picture;
  image = data::augment(image, config_->data.document_augment, stream);
  if (image != *picture) sequence.patches = model::make_patches(config_->model, image.rgb.data());
  return sequence;
}

PreparedStep StepMaker::make(int64_t step, const Share& share) const {
  const DataConfig& data = config_->data;
  PreparedStep out;
  out.step = step;
  out.held_out = &held_out_;
  const std::vector<data::Pick> picks = sampler_->batch_at(step);
  const auto [begin, end] = share.mine(picks.size());
  // A gold document is edited once a step, for all the examples that read it.
  std::map<int64_t, std::vector<const data::Example*>> readers;
  std::set<int64_t> mine;
  std::vector<const data::Example*> drawn;        // [picks]
  std::map<size_t, std::vector<int32_t>> masked;  // question pieces of some
  for (size_t i = 0; i < picks.size(); ++i) {
    const auto dataset = static_cast<size_t>(picks[i].dataset);
    if (masked_[dataset] == nullptr) {
      drawn.push_back(&sets_[dataset]->set.examples[picks[i].index]);
      continue;
    }
    Stream stream(config_->run.seed, "masked span", static_cast<uint64_t>(step), i);
    MaskedSpans::Masked one = masked_[dataset]->draw(picks[i].index, stream);
    out.drawn.push_back(std::make_shared<const data::Example>(std::move(one.example)));
    drawn.push_back(out.drawn.back().get());
    masked[i] = std::move(one.pieces);
  }
  const auto gold_row = [&](const data::Example& example) {
    return example.documents.empty() ? int64_t{-1}
                                     : documents_->corpus().row_of(example.documents[0]);
  };
  for (size_t i = 0; i < picks.size(); ++i) {
    const data::Example* example = drawn[i];
    const int64_t row = gold_row(*example);
    if (row < 0) continue;
    readers[row].push_back(example);
    if (begin <= i && i < end) mine.insert(row);
  }
  std::map<int64_t, data::EditedDocument> edits;
  for (const auto& [row, examples] : readers) {
    const data::EditedDocument& edit = edits[row] =
        counterfactual_->edit(documents_->corpus().document(row), examples, step);
    if (mine.count(row) != 0) {
      out.edited[row] = edited(row, edit, step);
    } else {
      out.edited_elsewhere[row] = [this, row = row, edit, step] { return edited(row, edit, step); };
    }
  }
  for (size_t i = 0; i < picks.size(); ++i) {
    const data::Example* example = drawn[i];
    std::vector<std::string> answers = example->answers;
    const int64_t row = gold_row(*example);
    if (row >= 0) answers = counterfactual_->answers(*example, edits.at(row));
    const std::string answer =
        answers.empty() ? "" : readable_answer(answers, row >= 0 ? edits.at(row).text : "");
    if (i < begin || i >= end) {
      out.inputs.push_back(encoder_->encode_answer(*example, answer));
      continue;
    }
    const uint64_t key = (static_cast<uint64_t>(step) << 20) + i + (uint64_t{1} << 60);
    if (const auto pieces = masked.find(i); pieces != masked.end()) {
      PreparedInput& input =
          out.inputs.emplace_back(encoder_->encode(*example, answer, nullptr, key));
      input.query.tokens = input.prompt.tokens =
          pieces->second;  // with the mask piece, which no text encodes to
      input.prompt.tokens.push_back(data::Tokenizer::kBos);
      continue;
    }
    const std::shared_ptr<const data::Image> picture = sets_[picks[i].dataset]->picture(*example);
    data::Image image;
    if (picture != nullptr) {
      Stream chance = identity_stream(step, row);
      const std::optional<data::Identity> identity = row >= 0 ? identity_of(chance) : std::nullopt;
      image = identity ? data::apply_identity(*picture, *identity) : *picture;
      Stream stream(config_->run.seed, "augment", static_cast<uint64_t>(step), i);
      image = data::augment(image, data.augment, stream);
    }
    out.inputs.push_back(
        encoder_->encode(*example, answer, picture != nullptr ? &image : nullptr, key));
  }
  std::set<int64_t> taken;
  for (const PreparedInput& input : out.inputs) taken.insert(input.gold.begin(), input.gold.end());
  if (pairs_ != nullptr) out.pairs = pairs_->draw(step, data.pairs_per_step, taken, share);
  if (document_pairs_ != nullptr) {
    for (const PreparedPair& pair : out.pairs) taken.insert(pair.row);
    for (PreparedPair& pair : document_pairs_->draw(step, taken))
      out.pairs.push_back(std::move(pair));
  }
  return out;
}

PairSet::PairSet(const RunConfig& config, const retriever::Documents& documents,
                 data::BadRecords& bad)
    : config_(&config) {
  const std::string path = data_path(config.data, config.data.pairs);
  data::ImageCache::Options options;
  options.height = options.width = static_cast<int>(config.model.image_size);
  pictures_ = std::make_unique<data::ImageCache>(
      data::folder_images(std::filesystem::path(path).parent_path().string()), options);
  data::for_each_jsonl(read_file(path), path, bad, [&](int64_t line, Json record) {
    const std::string where = concat(path, ":", line);
    try {
      Pair pair{json_get<std::string>(record, "document", where),
                json_get<std::vector<std::string>>(record, "queries", where),
                documents.corpus()
                    .find(json_get<std::string>(record, "id", where))
                    .value_or(-1 - size())};
      CONTEXTURE_DATA_REQUIRE(!pair.queries.empty(), where, ": queries is empty");
      const std::vector<std::string>& kinds = config.data.pair_kinds;
      if (!kinds.empty() &&
          std::count(kinds.begin(), kinds.end(), json_get<std::string>(record, "kind", where)) == 0)
        return;
      pictures_->get(pair.document);
      for (const std::string& query : pair.queries) pictures_->get(query);
      pairs_.push_back(std::move(pair));
    } catch (const DataError& error) {
      bad.add(where, "picture pair", error.what());
    }
  });
  CONTEXTURE_DATA_REQUIRE(!pairs_.empty(), path, " holds no usable picture pair. ", bad.summary());
}

PairSet::Drawing PairSet::draw_one(const Pair& pair, Stream& stream) const {
  const bool made_up = stream.uniform() < config_->data.identity_probability;
  const data::Identity identity = made_up ? data::random_identity(stream) : data::Identity();
  // Now and then the document's own picture asks, so that a style of its own is no condition for a
  // match.
  const bool own = stream.uniform() < 0.2;
  const std::string& name = own ? pair.document : pair.queries[stream.below(pair.queries.size())];
  return {data::apply_identity(*pictures_->get(name), identity),
          data::apply_identity(*pictures_->get(pair.document), identity)};
}

std::vector<PreparedPair> PairSet::draw(int64_t step, int64_t count, const std::set<int64_t>& taken,
                                        const Share& share) const {
  struct Patchwork {
    Drawing ground, part;
    data::Seam seam;
  };
  const uint64_t seed = config_->run.seed;
  std::vector<PreparedPair> out;
  std::set<int64_t> used = taken;
  std::optional<Patchwork> before;
  for (int64_t i = 0; i < std::min(count, size()); ++i) {
    const int64_t place = step * count + i;
    const Pair& pair =
        pairs_[permutation_at(size(), seed, static_cast<uint64_t>(place / size()), place % size())];
    Stream stream(seed, "pair", static_cast<uint64_t>(step), static_cast<uint64_t>(i));
    Drawing drawing = draw_one(pair, stream);
    int64_t row = pair.row;
    if (stream.uniform() < config_->data.patchwork_probability) {
      Patchwork work{std::move(drawing), draw_one(pairs_[stream.below(pairs_.size())], stream),
                     data::random_seam(stream)};
      // Every second one differs from the one before in its ground or in its part alone: a
      // look-alike to tell apart.
      if (before) {
        work.seam = before->seam;
        if (stream.below(2) == 0) {
          work.ground = before->ground;
        } else {
          work.part = before->part;
        }
        before.reset();
      } else {
        before = work;
      }
      drawing = {data::join(work.ground.query, work.part.query, work.seam),
                 data::join(work.ground.document, work.part.document, work.seam)};
      row = -1 - size() - i;  // nobody's
    } else if (!used.insert(row).second) {
      continue;
    }
    if (!share.has_pair(out.size())) {
      out.push_back({{}, {}, row});
      continue;
    }
    const data::Image query = data::augment(drawing.query, config_->data.augment, stream);
    const data::Image document =
        data::augment(drawing.document, config_->data.document_augment, stream);
    const uint64_t key =
        (static_cast<uint64_t>(step) << 20) + static_cast<uint64_t>(i) + (uint64_t{3} << 60);
    out.push_back(
        {{{}, model::make_patches(config_->model, query.rgb.data()), key},
         {{}, model::make_patches(config_->model, document.rgb.data()), key + (uint64_t{1} << 19)},
         row});
  }
  return out;
}

}  // namespace contexture::train
