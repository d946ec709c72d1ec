// Which corpus the vectors of a checkpoint are of, so that a run is not resumed with another one:
// every vector would then lie on the wrong document, and nothing would say so.
#pragma once
#include "core/json.h"
#include "retriever/corpus.h"

namespace contexture::train {

// {"ids", "texts"}: SHA-256 over the ids, and over what vectors are made from (titles, texts, names
// of pictures), in row order. Reads every text once.
Json corpus_mark(const retriever::Corpus& corpus);

// found: of data.corpus. saved: of the checkpoint, or null: of an earlier version, which had none.
// Throws DataError when the ids differ. Where the texts alone do, or nobody can tell, a warning: an
// edited document is the user's own doing.
void require_same_corpus(const Json& found, const Json& saved);

}  // namespace contexture::train
