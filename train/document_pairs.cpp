#include "train/document_pairs.h"

#include "core/error.h"
#include "core/rng.h"
#include "data/spans.h"

namespace contexture::train {

DocumentPairs::DocumentPairs(const RunConfig& config, const ExampleEncoder& encoder,
                             const retriever::Documents& documents,
                             const std::set<int64_t>& held_out)
    : config_(&config), encoder_(&encoder), documents_(&documents) {
  for (int64_t row = 0; row < documents.size(); ++row) {
    if (held_out.count(row) != 0) continue;
    const data::Document& document = documents.corpus().document(row);
    if (data::sentences(document.text).size() > 1) with_sentences_.push_back(row);
    if (documents.picture(row) != nullptr && !documents.sequence(row).tokens.empty())
      with_pictures_.push_back(row);
  }
  CONTEXTURE_USAGE_REQUIRE(config.data.inverse_cloze_per_step == 0 || !with_sentences_.empty(),
                           "data.inverse_cloze_per_step=", config.data.inverse_cloze_per_step,
                           ", but no document of ", config.data.corpus, " has two sentences.");
  CONTEXTURE_USAGE_REQUIRE(config.data.picture_text_per_step == 0 || !with_pictures_.empty(),
                           "data.picture_text_per_step=", config.data.picture_text_per_step,
                           ", but no document of ", config.data.corpus,
                           " has a picture and a text.");
}

std::vector<PreparedPair> DocumentPairs::draw(int64_t step, std::set<int64_t>& taken) const {
  constexpr double kSentenceStays = 0.1;  // as in the paper
  const DataConfig& data = config_->data;
  std::vector<PreparedPair> out;
  const auto each = [&](const std::vector<int64_t>& rows, int64_t count, const char* kind,
                        const auto& make) {
    // An order of its own for each kind: over the same rows in the same order one would take all
    // that the other wants.
    const uint64_t order = Stream(config_->run.seed, kind).next_u64();
    const auto n = static_cast<int64_t>(rows.size());
    for (int64_t i = 0; i < std::min(count, n); ++i) {
      const int64_t place = step * count + i;
      const int64_t row =
          rows[permutation_at(static_cast<uint64_t>(n), order, static_cast<uint64_t>(place / n),
                              static_cast<uint64_t>(place % n))];
      if (!taken.insert(row).second) continue;
      Stream stream(config_->run.seed, kind, static_cast<uint64_t>(step),
                    static_cast<uint64_t>(row));
      PreparedPair pair{{}, documents_->sequence(row), row};
      make(row, stream, pair);
      pair.query.key = (static_cast<uint64_t>(step) << 20) + out.size() + (uint64_t{5} << 60);
      pair.document.key = pair.query.key + (uint64_t{1} << 19);
      out.push_back(std::move(pair));
    }
  };
  each(with_sentences_, data.inverse_cloze_per_step, "inverse cloze",
       [&](int64_t row, Stream& stream, PreparedPair& pair) {
         const data::Document& document = documents_->corpus().document(row);
         const std::vector<std::string> all = data::sentences(document.text);
         const size_t chosen = stream.below(all.size());
         encoder_->set_query_text(pair.query, all[chosen]);
         if (pair.query.tokens.empty()) pair.query.tokens = {data::Tokenizer::kQuery};
         if (stream.uniform() < kSentenceStays) return;
         std::string rest;
         for (size_t s = 0; s < all.size(); ++s) {
           if (s != chosen) rest += (rest.empty() ? "" : " ") + all[s];
         }
         documents_->set_text(pair.document, document.title, rest);
       });
  each(with_pictures_, data.picture_text_per_step, "picture and text",
       [&](int64_t row, Stream& stream, PreparedPair& pair) {
         const data::Image picture = data::augment(*documents_->picture(row), data.augment, stream);
         pair.query.patches = model::make_patches(config_->model, picture.rgb.data());
         pair.document.patches = nullptr;
       });
  return out;
}

}  // namespace contexture::train
