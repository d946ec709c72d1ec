#include <algorithm>

#include "core/did_you_mean.h"
#include "core/error.h"
#include "retriever/retriever.h"

namespace contexture::retriever {

void RetrieverConfig::validate() const {
  CONTEXTURE_USAGE_REQUIRE(documents >= 0, "retriever.documents=", documents,
                           " must not be negative.");
  CONTEXTURE_USAGE_REQUIRE(refresh_every >= 0, "retriever.refresh_every=", refresh_every,
                           " must not be negative.");
  CONTEXTURE_USAGE_REQUIRE(
      refresh_every == 0 || refresh_schedule.empty(), "retriever.refresh_every=", refresh_every,
      " and retriever.refresh_schedule=", refresh_schedule, " both say when. Keep one.");
  const int64_t shortest = schedule().shortest();
  CONTEXTURE_USAGE_REQUIRE(refresh_lag >= 0 && (refresh_lag == 0 || refresh_lag <= shortest),
                           "retriever.refresh_lag=", refresh_lag,
                           " must lie between 0 and the steps between two refreshes, ", shortest,
                           ": one refresh must be swapped in before the next starts.");
  CONTEXTURE_USAGE_REQUIRE(refresh_ranks >= 0 && (refresh_ranks == 0 || refresh_lag > 0),
                           "retriever.refresh_ranks=", refresh_ranks,
                           " must not be negative, and such ranks embed while the others train on: "
                           "they need retriever.refresh_lag above 0.");
  CONTEXTURE_USAGE_REQUIRE(partial_every >= 0 && partial_documents >= 0 &&
                               (partial_every > 0) == (partial_documents > 0),
                           "retriever.partial_every=", partial_every,
                           " and retriever.partial_documents=", partial_documents,
                           " go together: set both, or neither.");
  CONTEXTURE_USAGE_REQUIRE(
      partial_every == 0 || refresh_lag == 0, "retriever.partial_every=", partial_every,
      " and retriever.refresh_lag=", refresh_lag,
      ": a late refresh would put older vectors over newer ones. Set one of them to 0.");
  CONTEXTURE_USAGE_REQUIRE(
      overretrieve == 0 || overretrieve >= documents, "retriever.overretrieve=", overretrieve,
      " is less than retriever.documents=", documents, ". Raise it, or set it to 0.");
  const std::vector<std::string>& computed = model::ObjectiveOptions::names();
  std::vector<std::string> known{"reader", "attentive", "contrastive"};
  known.insert(known.end(), computed.begin(), computed.end());
  for (const auto& [name, value] : objectives) {
    CONTEXTURE_USAGE_REQUIRE(std::find(known.begin(), known.end(), name) != known.end(),
                             "retriever.objectives names '", name, "', which is no objective.",
                             did_you_mean_hint(name, known));
    CONTEXTURE_USAGE_REQUIRE(value >= 0, "retriever.objectives.", name, "=", value,
                             " must not be negative.");
    const bool reads = std::find(computed.begin(), computed.end(), name) != computed.end();
    CONTEXTURE_USAGE_REQUIRE(!reads || value == 0 || documents > 0, "retriever.objectives.", name,
                             "=", value,
                             " is about retrieved documents, but retriever.documents=0.");
    const bool distils = name == "emdr2" || name == "pdist" || name == "loop" || name == "adist";
    CONTEXTURE_USAGE_REQUIRE(
        !distils || value == 0 || !frozen, "retriever.objectives.", name, "=", value,
        " trains nothing but the retriever, and retriever.frozen=true. Drop one.");
  }
  for (const char* name : {"attentive", "adist"}) {
    CONTEXTURE_USAGE_REQUIRE(
        weight(name) == 0 || weight("reader") > 0, "retriever.objectives.", name, "=", weight(name),
        " is about the reader of all documents at once, which has no weight here (rag_sequence, "
        "rag_token and "
        "realm read one at a time). Set retriever.objectives.reader=1, or drop ",
        name, ".");
  }
  CONTEXTURE_USAGE_REQUIRE(weight("reader") + weight("rag_sequence") + weight("rag_token") +
                                   weight("realm") + weight("contrastive") >
                               0,
                           "retriever.objectives train neither a reader nor, by contrast, a "
                           "retriever. Give one of reader, rag_sequence, "
                           "rag_token, realm or contrastive a weight.");
  CONTEXTURE_USAGE_REQUIRE(hard_negatives >= 0 && (hard_negatives == 0 || documents > 0),
                           "retriever.hard_negatives=", hard_negatives,
                           " must not be negative, and needs retriever.documents above 0: they "
                           "come with the documents' search.");
  CONTEXTURE_USAGE_REQUIRE(false_negatives == "gold" || false_negatives == "answer",
                           "retriever.false_negatives=", false_negatives,
                           " is not known. Use gold or answer.");
  CONTEXTURE_USAGE_REQUIRE(likelihood == "token" || likelihood == "sequence",
                           "retriever.likelihood=", likelihood,
                           " is not known. Use token or sequence.");
  CONTEXTURE_USAGE_REQUIRE(target_temperature > 0,
                           "retriever.target_temperature=", target_temperature,
                           " must be positive.");
  CONTEXTURE_USAGE_REQUIRE(kl_reduction == "batchmean" || kl_reduction == "mean",
                           "retriever.kl_reduction=", kl_reduction,
                           " is not known. Use batchmean or mean.");
}

RefreshSchedule RetrieverConfig::schedule() const {
  return refresh_schedule.empty() ? RefreshSchedule::every(refresh_every)
                                  : RefreshSchedule::parse(refresh_schedule);
}

double RetrieverConfig::weight(const std::string& objective) const {
  if (const auto it = objectives.find(objective); it != objectives.end()) return it->second;
  if (objective != "reader") return 0.0;
  return weight("rag_sequence") + weight("rag_token") + weight("realm") > 0 ? 0.0 : 1.0;
}

model::ObjectiveOptions RetrieverConfig::objective_options() const {
  model::ObjectiveOptions options;
  for (const std::string& name : model::ObjectiveOptions::names())
    options.weights[name] = weight(name);
  options.target = {likelihood == "sequence", target_temperature};
  options.kl_mean = kl_reduction == "mean";
  options.trains_retriever = !frozen;
  options.joint = weight("reader") > 0;
  return options;
}

}  // namespace contexture::retriever
