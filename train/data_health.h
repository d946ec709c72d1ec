// What a run read before training, and what it had to leave out: RUN/data_health.json, for the
// report (docs/formats/metrics.md).
#pragma once
#include "core/json.h"
#include "retriever/documents.h"

namespace contexture::train {

Json data_health(const retriever::Documents& documents, int64_t training_examples,
                 int64_t dev_examples, const data::BadRecords& bad);

}  // namespace contexture::train
