#include "train/timeline.h"

#include "core/files.h"
#include "core/json.h"

namespace contexture::train {
namespace {

constexpr int64_t kColumns = 8;  // replica, pipeline rank, stage, work, microbatch, start, end, waited

at::Tensor rows_of(const parallel::Groups& groups, const std::vector<parallel::TimedAction>& timeline) {
  std::vector<double> cells;
  if (groups.tp_rank() == 0) {  // tensor-parallel ranks do the same together
    for (const parallel::TimedAction& t : timeline) {
      for (const double cell : {static_cast<double>(groups.dp_rank()), static_cast<double>(groups.pp_rank()), static_cast<double>(t.action.stage),
                                static_cast<double>(t.action.work), static_cast<double>(t.action.microbatch), t.start_s, t.end_s, t.wait_s}) {
        cells.push_back(cell);
      }
    }
  }
  return at::tensor(cells, at::kDouble).view({-1, kColumns});
}

// Of all ranks, one below another.
at::Tensor gathered(const parallel::Groups& groups, const at::Tensor& mine) {
  if (groups.world == nullptr) return mine;
  const at::Tensor counts = at::empty({groups.world->size()}, at::kLong);
  groups.world->all_gather(counts, at::tensor({mine.size(0)}, at::kLong)).wait();
  const int64_t most = counts.max().item<int64_t>();
  const at::Tensor padded = at::zeros({most, kColumns}, at::kDouble), all = at::empty({groups.world->size() * most, kColumns}, at::kDouble);
  padded.narrow(0, 0, mine.size(0)).copy_(mine);
  groups.world->all_gather(all, padded).wait();
  std::vector<at::Tensor> parts;
  for (int64_t r = 0; r < counts.size(0); ++r) parts.push_back(all.narrow(0, r * most, counts[r].item<int64_t>()));
  return at::cat(parts);
}

}  // namespace

void write_timeline(const parallel::Engine& engine, const std::vector<parallel::TimedAction>& timeline, const std::filesystem::path& path) {
  const at::Tensor rows = gathered(engine.groups(), rows_of(engine.groups(), timeline));
  if (engine.groups().rank() != 0) return;
  Json events = Json::array();
  const auto cells = rows.accessor<double, 2>();
  for (int64_t r = 0; r < rows.size(0); ++r) {
    const auto whole = [&](int column) { return static_cast<int>(cells[r][column]); };
    const parallel::Action action{whole(2), static_cast<parallel::Work>(whole(3)), whole(4)};
    events.push_back({{"name", parallel::to_text(action)},
                      {"cat", action.work == parallel::Work::kForward ? "forward" : action.work == parallel::Work::kWeightGrad ? "weight gradient" : "backward"},
                      {"ph", "X"},
                      {"pid", whole(0)},
                      {"tid", whole(1)},
                      {"ts", 1e6 * cells[r][5]},
                      {"dur", 1e6 * (cells[r][6] - cells[r][5])},
                      {"args", {{"waited_us", 1e6 * cells[r][7]}}}});
  }
  write_file_atomic(path, Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(1) + "\n");
}

}  // namespace contexture::train
