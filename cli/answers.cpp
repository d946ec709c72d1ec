#include "cli/answers.h"

#include "data/image.h"

namespace contexture::cli {

void WritingFlags::add_to(CLI::App& app) {
  app.add_option("--max-new-tokens", max_new_tokens, "longest answer")->capture_default_str();
  app.add_option("--temperature", temperature, "0: the likeliest answer; above: sampled")
      ->capture_default_str();
  app.add_option("--seed", seed, "of the sampling")->capture_default_str();
}

eval::GenerateOptions WritingFlags::options(const train::RunConfig& config) const {
  eval::GenerateOptions out = config.generate_options();
  out.max_new_tokens = max_new_tokens;
  out.temperature = temperature;
  out.seed = seed;
  return out;
}

Json answer_with_sources(train::Session& session, const Question& question,
                         const eval::GenerateOptions& options, eval::DocumentCache* cache) {
  data::Example example;
  example.id = question.id;
  example.question = question.text;
  data::Image picture;
  if (!question.picture.empty()) {
    const int side = static_cast<int>(session.config().model.image_size);
    picture = data::resize_padded(data::load_image(question.picture), side, side);
  }
  const train::PreparedInput prepared =
      session.encoder().encode(example, "", question.picture.empty() ? nullptr : &picture, 0);
  const int64_t k = session.config().eval.documents > 0 ? session.config().eval.documents
                                                        : session.config().retriever.documents;
  const auto ranking = train::rankings(session.search({&prepared.query}, k))[0];
  model::Microbatch batch;
  model::Input input{prepared.query, prepared.prompt, {}, {}};
  for (const retriever::Hit& hit : ranking) {
    input.documents.push_back(static_cast<int32_t>(batch.documents.size()));
    batch.documents.push_back(session.documents().sequence(hit.row));
  }
  batch.inputs.push_back(std::move(input));
  const eval::Generated generated =
      eval::generate(session.model(), session.inference(), batch, options, cache)[0];
  Json out{{"id", question.id},
           {"question", question.text},
           {"answer", session.tokenizer()->decode(generated.tokens)},
           {"log_prob", generated.log_prob},
           {"documents", Json::array()}};
  for (size_t i = 0; i < ranking.size(); ++i) {
    const data::Document& document = session.corpus().document(ranking[i].row);
    out["documents"].push_back({{"id", document.id},
                                {"title", document.title},
                                {"text", document.text},
                                {"score", ranking[i].score},
                                {"probability", generated.document_prob[i]},
                                {"attention", generated.document_share[i]}});
  }
  return out;
}

}  // namespace contexture::cli
