#include "train/masked_spans.h"

#include <algorithm>

#include "core/error.h"
#include "data/spans.h"

namespace contexture::train {

MaskedSpans::MaskedSpans(const std::string& spans, const RunConfig& config,
                         const data::Tokenizer& tokenizer, const retriever::Documents& documents,
                         const std::set<int64_t>& held_out)
    : salient_(spans == "salient"),
      config_(&config),
      tokenizer_(&tokenizer),
      documents_(&documents) {
  for (int64_t row = 0; row < documents.size(); ++row) {
    if (held_out.count(row) != 0) continue;
    const data::Document& document = documents.corpus().document(row);
    const std::vector<std::string> all = data::sentences(document.text);
    const bool any = std::any_of(all.begin(), all.end(), [this](const std::string& sentence) {
      return salient_ ? !data::salient_spans(sentence).empty() : data::words(sentence).size() > 1;
    });
    if (!any) continue;
    data::Example example;
    example.id = document.id;
    example.meta["source_document"] = document.id;
    set_.examples.push_back(std::move(example));
  }
  CONTEXTURE_USAGE_REQUIRE(
      !set_.examples.empty(), "data.train asks for ", spans, " spans, but no document of ",
      config.data.corpus, " has one",
      held_out.empty() ? "." : " that is not held out by data.dev and data.test.");
}

MaskedSpans::Masked MaskedSpans::draw(int64_t index, Stream& stream) const {
  Masked out{set_.examples.at(static_cast<size_t>(index)), {}};
  const data::Document& document =
      documents_->corpus().document(documents_->corpus().row_of(out.example.id));
  const std::vector<std::string> all = data::sentences(document.text);
  std::vector<std::pair<const std::string*, data::TextSpan>>
      choices;  // any salient span; of random ones the sentence alone
  for (const std::string& sentence : all) {
    if (salient_) {
      for (const data::TextSpan& span : data::salient_spans(sentence))
        choices.emplace_back(&sentence, span);
    } else if (data::words(sentence).size() > 1) {
      choices.emplace_back(&sentence, data::TextSpan{});
    }
  }
  const auto& [sentence, chosen] = choices.at(stream.below(choices.size()));
  const data::TextSpan span = salient_ ? chosen : data::random_span(*sentence, stream).value();
  const std::string before = sentence->substr(0, span.begin), after = sentence->substr(span.end);
  out.example.question = before + "[MASK]" + after;
  out.example.answers = {sentence->substr(span.begin, span.end - span.begin)};
  std::vector<int32_t> left = tokenizer_->encode(before), right = tokenizer_->encode(after);
  const auto room = static_cast<size_t>(config_->data.max_question_tokens - 1);
  const size_t on_left =
      std::min(left.size(), std::max(room / 2, room - std::min(room, right.size())));
  const size_t on_right = std::min(right.size(), room - on_left);
  out.pieces.assign(left.end() - static_cast<std::ptrdiff_t>(on_left), left.end());
  out.pieces.push_back(data::Tokenizer::kMask);
  out.pieces.insert(out.pieces.end(), right.begin(),
                    right.begin() + static_cast<std::ptrdiff_t>(on_right));
  return out;
}

}  // namespace contexture::train
