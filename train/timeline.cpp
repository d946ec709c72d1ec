#include "train/timeline.h"

#include "core/files.h"
#include "parallel/chrome_trace.h"
#include "parallel/gather.h"

namespace contexture::train {
namespace {

constexpr int64_t kColumns =
    8;  // replica, pipeline rank, stage, work, microbatch, start, end, waited

at::Tensor rows_of(const parallel::Groups& groups,
                   const std::vector<parallel::TimedAction>& timeline) {
  std::vector<double> cells;
  if (groups.tp_rank() == 0) {  // tensor-parallel ranks do the same together
    for (const parallel::TimedAction& t : timeline) {
      for (const double cell :
           {static_cast<double>(groups.dp_rank()), static_cast<double>(groups.pp_rank()),
            static_cast<double>(t.action.stage), static_cast<double>(t.action.work),
            static_cast<double>(t.action.microbatch), t.start_s, t.end_s, t.wait_s}) {
        cells.push_back(cell);
      }
    }
  }
  return at::tensor(cells, at::kDouble).view({-1, kColumns});
}

}  // namespace

void write_timeline(parallel::Engine& engine, const std::filesystem::path& path) {
  const parallel::Groups& groups = engine.groups();
  const at::Tensor rows =
      parallel::gather_rows(groups.world.get(), rows_of(groups, engine.pipeline().timeline()));
  if (groups.rank() != 0) return;
  Json events = Json::array();
  const auto cells = rows.accessor<double, 2>();
  for (int64_t r = 0; r < rows.size(0); ++r) {
    const auto whole = [&](int column) { return static_cast<int>(cells[r][column]); };
    const parallel::Action action{whole(2), static_cast<parallel::Work>(whole(3)), whole(4)};
    Json& event = events.emplace_back(
        parallel::chrome_event(parallel::to_text(action),
                               action.work == parallel::Work::kForward      ? "forward"
                               : action.work == parallel::Work::kWeightGrad ? "weight gradient"
                                                                            : "backward",
                               whole(0), whole(1), cells[r][5], cells[r][6] - cells[r][5]));
    event["args"] = {{"waited_us", 1e6 * cells[r][7]}};
  }
  write_file_atomic(path, parallel::chrome_trace_file(std::move(events)).dump(1) + "\n");
}

}  // namespace contexture::train
