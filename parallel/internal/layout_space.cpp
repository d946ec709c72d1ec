#include "parallel/internal/layout_space.h"

#include <algorithm>

#include "core/error.h"

namespace contexture::parallel {
namespace {

const char* const kSchedules[] = {"1f1b", "zb_h1", "interleaved", "gpipe"};
const char* const kOrders[] = {"dp,pp,tp", "pp,dp,tp", "dp,tp,pp",
                               "tp,dp,pp", "pp,tp,dp", "tp,pp,dp"};
const std::vector<int> kChunks = {2, 4};  // of interleaved
// Token slices; 0: cut by plan_token_slices. With fewer rows than this in each, matrices are too
// small for a GPU, and the work is no longer in proportion to them.
const std::vector<int64_t> kSlices = {1, 2, 4, 8, 16, 0};
constexpr int64_t kRowsASlice = 64;
constexpr int kBlocksAStage =
    2;  // at least, with interleaved: shorter stages only multiply messages

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) out.push_back(d);
  }
  return out;
}

bool allows(int64_t fixed, int64_t value) { return fixed == 0 || fixed == value; }

bool can_slice(const std::string& schedule) { return schedule == "1f1b" || schedule == "gpipe"; }

class Space {
 public:
  Space(LayoutCosts& costs, const PlannedModel& model, const Cluster& cluster,
        const FixedLayout& fixed)
      : costs_(costs),
        model_(model),
        gpus_(cluster.num_gpus()),
        fixed_(fixed),
        num_blocks_(costs.num_blocks()),
        rows_(model.token_slices ? costs.rows() : 0) {
    require_consistent();
  }

  std::vector<Layout> layouts() {
    std::string refusal;
    for (const int64_t tp : divisors(gpus_)) {
      for (const int64_t pp : divisors(gpus_ / tp)) {
        const int64_t dp = gpus_ / tp / pp;
        if (!allows(fixed_.tp, tp) || !allows(fixed_.pp, pp) || !allows(fixed_.dp, dp)) continue;
        const std::string why =
            refuses(static_cast<int>(dp), static_cast<int>(pp), static_cast<int>(tp));
        if (!why.empty()) {
          refusal = why;
          continue;
        }
        place({.dp = static_cast<int>(dp), .pp = static_cast<int>(pp), .tp = static_cast<int>(tp)});
      }
    }
    CONTEXTURE_USAGE_REQUIRE(!layouts_.empty(), "no layout of ", gpus_, " GPUs is possible: ",
                             refusal.empty() ? concat("none has parallel.dp x pp x tp = ", gpus_,
                                                      " with ", in_words(), ".")
                                             : refusal);
    return std::move(layouts_);
  }

 private:
  std::string in_words() const {
    std::string out;
    for (const auto& [name, value] : {std::pair{"dp", int64_t{fixed_.dp}},
                                      {"pp", int64_t{fixed_.pp}},
                                      {"tp", int64_t{fixed_.tp}},
                                      {"microbatches", fixed_.microbatches}}) {
      if (value > 0) out += concat(out.empty() ? "" : ", ", "parallel.", name, "=", value);
    }
    if (fixed_.token_slices >= 0)
      out += concat(out.empty() ? "" : ", ", "parallel.token_slices=", fixed_.token_slices);
    if (!fixed_.schedule.empty())
      out += concat(out.empty() ? "" : ", ", "parallel.schedule=", fixed_.schedule);
    return out;
  }

  void require_consistent() const {
    int64_t product = 1;
    for (const int fixed : {fixed_.dp, fixed_.pp, fixed_.tp}) {
      CONTEXTURE_USAGE_REQUIRE(fixed >= 0, "parallel.dp=", fixed_.dp, ", pp=", fixed_.pp,
                               " and tp=", fixed_.tp, " must not be negative.");
      product *= std::max(1, fixed);
    }
    CONTEXTURE_USAGE_REQUIRE(gpus_ % product == 0, "the cluster has ", gpus_, " GPUs, which ",
                             in_words(), " do not divide.");
    CONTEXTURE_USAGE_REQUIRE(fixed_.dp == 0 || fixed_.pp == 0 || fixed_.tp == 0 || product == gpus_,
                             in_words(), " make ", product, " ranks, but the cluster has ", gpus_,
                             " GPUs. Leave one of them free, or change the cluster.");
    const bool known = fixed_.schedule.empty() ||
                       std::find(std::begin(kSchedules), std::end(kSchedules), fixed_.schedule) !=
                           std::end(kSchedules);
    CONTEXTURE_USAGE_REQUIRE(known, "parallel.schedule=", fixed_.schedule,
                             " cannot be planned. Use gpipe, 1f1b, interleaved or zb_h1.");
    CONTEXTURE_USAGE_REQUIRE(
        fixed_.token_slices < 0 || fixed_.token_slices == 1 ||
            (rows_ > 0 && (fixed_.schedule.empty() || can_slice(fixed_.schedule))),
        "parallel.token_slices=", fixed_.token_slices, " cannot be planned ",
        rows_ > 0 ? concat("with parallel.schedule=", fixed_.schedule, ". Use 1f1b or gpipe.")
                  : std::string("for this model and its objectives: none of its blocks runs in "
                                "slices. Set it to 1."));
    CONTEXTURE_USAGE_REQUIRE(fixed_.token_slices < 0 || fixed_.token_slices == 1 || fixed_.pp != 1,
                             "parallel.token_slices=", fixed_.token_slices,
                             " needs a pipeline to go through, and parallel.pp=1.");
    CONTEXTURE_USAGE_REQUIRE(fixed_.zero <= 3, "parallel.zero=", fixed_.zero,
                             " is not known. Use 0, 1, 2 or 3.");
    CONTEXTURE_USAGE_REQUIRE(
        fixed_.chunks <= 1 || fixed_.schedule.empty() || fixed_.schedule == "interleaved",
        "parallel.chunks=", fixed_.chunks, " needs parallel.schedule=interleaved, not ",
        fixed_.schedule, ".");
  }

  std::string refuses(int dp, int pp, int tp) const {
    if (dp > model_.batch_size)
      return concat("train.batch_size=", model_.batch_size,
                    " has no input for each of parallel.dp=", dp, " replicas.");
    if (pp > num_blocks_)
      return concat("the model's ", num_blocks_, " blocks do not fill parallel.pp=", pp,
                    " stages.");
    return model_.refuses ? model_.refuses(dp, tp) : "";
  }

  // The mesh in every order that makes a difference, the model's first.
  void place(Layout layout) {
    std::vector<std::string> orders = {fixed_.order.empty() ? model_.order : fixed_.order};
    if (fixed_.order.empty()) orders.insert(orders.end(), std::begin(kOrders), std::end(kOrders));
    std::vector<const MeshLinks*> seen;
    for (const std::string& order : orders) {
      layout.order = order;
      const MeshLinks& links = costs_.links(layout);
      if (std::any_of(seen.begin(), seen.end(),
                      [&](const MeshLinks* other) { return *other == links; }))
        continue;
      seen.push_back(&links);
      add(layout);
    }
  }

  // All that can still vary for a mesh.
  void add(Layout layout) {
    const int64_t share = (model_.batch_size + layout.dp - 1) / layout.dp;
    const std::vector<int64_t> counts =
        fixed_.microbatches > 0 ? std::vector<int64_t>{fixed_.microbatches} : divisors(share);
    for (const int64_t m : counts) {
      if (m > share) continue;
      layout.microbatches = m;
      for (const char* schedule : kSchedules) {
        if (!fixed_.schedule.empty() ? fixed_.schedule != schedule
                                     : layout.pp == 1 && schedule != kSchedules[0])
          continue;
        layout.schedule = schedule;
        const bool interleaved = layout.schedule == "interleaved" && layout.pp > 1;
        for (const int chunks : !interleaved        ? std::vector<int>{1}
                                : fixed_.chunks > 0 ? std::vector<int>{fixed_.chunks}
                                                    : kChunks) {
          const bool asked = fixed_.chunks == chunks;
          if (!allows(fixed_.chunks, chunks) || layout.pp * chunks > num_blocks_ ||
              (interleaved && m % layout.pp != 0))
            continue;
          if (interleaved && !asked && layout.pp * chunks * kBlocksAStage > num_blocks_) continue;
          layout.chunks = chunks;
          assemble(layout);
        }
      }
    }
  }

  void assemble(Layout layout) {
    layout.assembly = fixed_.assembly.empty() ? model_.assembly : fixed_.assembly;
    if (!fixed_.assembly.empty() || !costs_.assembly_matters(layout)) return slice(layout);
    for (const char* assembly : {"arrival", "grouped"}) {
      layout.assembly = assembly;
      slice(layout);
    }
  }

  void slice(Layout layout) {
    const bool sliceable = layout.pp > 1 && rows_ > 0 && can_slice(layout.schedule);
    const int64_t rows = rows_ * costs_.inputs(layout);
    for (const int64_t slices :
         fixed_.token_slices >= 0 ? std::vector<int64_t>{fixed_.token_slices} : kSlices) {
      if (slices != 1 && !sliceable) continue;
      const bool short_ones = slices != 1 && std::max<int64_t>(slices, 2) * kRowsASlice > rows;
      if (short_ones && fixed_.token_slices < 0) continue;
      layout.token_slices = slices;
      add_states(layout);
    }
  }

  void add_states(Layout layout) {
    for (int zero = 0; zero <= (layout.dp > 1 || fixed_.zero >= 0 ? 3 : 0); ++zero) {
      if (fixed_.zero >= 0 && zero != fixed_.zero) continue;
      layout.zero = zero;
      if (fixed_.recompute) {
        layout.recompute = *fixed_.recompute;
        layouts_.push_back(layout);
        continue;
      }
      for (const auto& recompute : model_.recompute) {
        layout.recompute = recompute;
        layouts_.push_back(layout);
      }
    }
  }

  LayoutCosts& costs_;
  const PlannedModel& model_;
  const int64_t gpus_;
  const FixedLayout& fixed_;
  const int num_blocks_;
  const int64_t rows_;  // of an input; 0: nothing runs in slices
  std::vector<Layout> layouts_;
};

}  // namespace

std::vector<Layout> layout_space(LayoutCosts& costs, const PlannedModel& model,
                                 const Cluster& cluster, const FixedLayout& fixed) {
  return Space(costs, model, cluster, fixed).layouts();
}

}  // namespace contexture::parallel
