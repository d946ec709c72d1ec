#include "train/corpus_mark.h"

#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"

namespace contexture::train {

Json corpus_mark(const retriever::Corpus& corpus) {
  Sha256 ids, texts;
  const auto put = [](Sha256& hash, const std::string& text) {
    hash.update(std::to_string(text.size()) + ":");  // so that "ab", "c" is not "a", "bc"
    hash.update(text);
  };
  for (int64_t row = 0; row < corpus.size(); ++row) {
    const data::Document& document = corpus.document(row);
    put(ids, document.id);
    for (const std::string* text : {&document.title, &document.text, &document.image})
      put(texts, *text);
  }
  return {{"ids", ids.finish_hex()}, {"texts", texts.finish_hex()}};
}

void require_same_corpus(const Json& found, const Json& saved) {
  const auto same = [&](const char* what) {
    return json_get<std::string>(saved, what, "state.json") == found.at(what).get<std::string>();
  };
  CONTEXTURE_DATA_REQUIRE(saved.is_null() || same("ids"),
                          "The checkpoint holds vectors of other documents than data.corpus has, "
                          "or of these in another order: the ids differ. Resume with the corpus "
                          "that the run began with, or train on this one in a new run.dir.");
  if (saved.is_null()) {
    log::warn(
        "The checkpoint, of an earlier version, does not say which documents its vectors are of. "
        "If data.corpus is not the file that the run began with, they lie on the wrong ones.");
  } else if (!same("texts")) {
    log::warn(
        "Titles, texts or pictures in data.corpus are not those that the checkpoint's vectors were "
        "made from: documents that changed are found by what they said before, until the next "
        "refresh (retriever.refresh_every).");
  }
}

}  // namespace contexture::train
