#include "parallel/schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "core/error.h"
#include "parallel/internal/schedule_links.h"

namespace contexture::parallel {

StageGraph chain(int num_ranks, int chunks) {
  CONTEXTURE_INVARIANT(num_ranks >= 1 && chunks >= 1, num_ranks, " ranks, ", chunks, " chunks");
  StageGraph graph;
  graph.num_stages = num_ranks * chunks;
  graph.num_ranks = num_ranks;
  for (int stage = 0; stage < graph.num_stages; ++stage) {
    graph.rank_of.push_back(stage % num_ranks);
    if (stage > 0) graph.edges.emplace_back(stage - 1, stage);
  }
  return graph;
}

StageLinks links_of(const StageGraph& graph) {
  const int num_stages = graph.num_stages;
  CONTEXTURE_REQUIRE(num_stages >= 1 && graph.num_ranks >= 1,
                     "a pipeline needs a stage and a rank, not ", num_stages, " stages on ",
                     graph.num_ranks, " ranks");
  CONTEXTURE_INVARIANT(static_cast<int>(graph.rank_of.size()) == num_stages, graph.rank_of.size(),
                       " places for ", num_stages, " stages");
  for (int stage = 0; stage < num_stages; ++stage) {
    CONTEXTURE_REQUIRE(graph.rank_of[stage] >= 0 && graph.rank_of[stage] < graph.num_ranks,
                       "stage ", stage, " is placed on rank ", graph.rank_of[stage],
                       ", but the ranks are 0 to ", graph.num_ranks - 1);
  }
  StageLinks links;
  links.writers.resize(num_stages);
  links.readers.resize(num_stages);
  std::set<std::pair<int, int>> seen;
  for (int edge = 0; edge < static_cast<int>(graph.edges.size()); ++edge) {
    const auto& [writer, reader] = graph.edges[edge];
    CONTEXTURE_REQUIRE(writer >= 0 && writer < reader && reader < num_stages, "stage edge ", writer,
                       " -> ", reader, " is impossible with ", num_stages,
                       " stages: a wire goes from a lower to a higher stage. Number the stages in "
                       "topological order.");
    CONTEXTURE_INVARIANT(seen.insert(graph.edges[edge]).second, "edge ", writer, " -> ", reader,
                         " is listed twice");
    links.readers[writer].push_back({reader, edge});
    links.writers[reader].push_back({writer, edge});
  }
  const auto by_stage = [](const StageLinks::Neighbour& a, const StageLinks::Neighbour& b) {
    return a.stage < b.stage;
  };
  for (auto& list : links.writers) std::sort(list.begin(), list.end(), by_stage);
  for (auto& list : links.readers) std::sort(list.begin(), list.end(), by_stage);
  return links;
}

int num_microbatches_of(const Schedule& schedule) {
  size_t num_actions = 0;
  for (const auto& actions : schedule.by_rank) num_actions += actions.size();
  int highest = -1;
  for (const auto& actions : schedule.by_rank) {
    for (const Action& action : actions) {
      if (action.microbatch < static_cast<int64_t>(num_actions)) {
        highest = std::max(highest, action.microbatch);
      }
    }
  }
  return highest + 1;
}

StageTimes unit_times(int num_stages) {
  const std::vector<double> ones(num_stages, 1.0);
  return {.forward = ones, .input_grad = ones, .weight_grad = ones, .transfer = {}, .scale = {}};
}

void require_times(const StageGraph& graph, const StageTimes& times, int num_microbatches) {
  const size_t num_stages = graph.num_stages;
  CONTEXTURE_INVARIANT(times.forward.size() == num_stages &&
                       times.input_grad.size() == num_stages &&
                       times.weight_grad.size() == num_stages);
  CONTEXTURE_INVARIANT(times.transfer.empty() || times.transfer.size() == graph.edges.size());
  CONTEXTURE_INVARIANT(times.scale.empty() ||
                       static_cast<int>(times.scale.size()) >= num_microbatches);
  for (const auto* list :
       {&times.forward, &times.input_grad, &times.weight_grad, &times.transfer, &times.scale}) {
    for (const double time : *list) CONTEXTURE_INVARIANT(std::isfinite(time) && time >= 0.0, time);
  }
}

double duration(const StageTimes& times, const Action& action) {
  const double scale = times.scale.empty() ? 1.0 : times.scale[action.microbatch];
  switch (action.work) {
    case Work::kForward:
      return scale * times.forward[action.stage];
    case Work::kBackward:
      return scale * (times.input_grad[action.stage] + times.weight_grad[action.stage]);
    case Work::kInputGrad:
      return scale * times.input_grad[action.stage];
    case Work::kWeightGrad:
      return scale * times.weight_grad[action.stage];
  }
  CONTEXTURE_INVARIANT(false, "work ", static_cast<int>(action.work));
}

std::string to_text(const Action& action) {
  return concat(action.stage, static_cast<char>(action.work), action.microbatch);
}

std::string to_text(const Schedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.by_rank) {
    const char* separator = "";
    for (const Action& action : actions) {
      text += separator;
      text += to_text(action);
      separator = " ";
    }
    text += '\n';
  }
  return text;
}

namespace {

// False unless the whole word is an action.
bool read_action(const std::string& word, Action* action) {
  const char* const end = word.data() + word.size();
  const auto stage = std::from_chars(word.data(), end, action->stage);
  if (stage.ec != std::errc{} || stage.ptr == end || word[0] == '-') return false;
  if (std::string("FBIW").find(*stage.ptr) == std::string::npos) return false;
  action->work = static_cast<Work>(*stage.ptr);
  const char* const rest = stage.ptr + 1;
  const auto microbatch = std::from_chars(rest, end, action->microbatch);
  return microbatch.ec == std::errc{} && microbatch.ptr == end && *rest != '-';
}

std::vector<Action> read_line(const std::string& line, int line_number) {
  constexpr const char* kBlanks = " \t\r";
  std::vector<Action> actions;
  size_t begin = line.find_first_not_of(kBlanks);
  while (begin != std::string::npos) {
    const size_t end = std::min(line.find_first_of(kBlanks, begin), line.size());
    const std::string word = line.substr(begin, end - begin);
    Action action;
    CONTEXTURE_REQUIRE(read_action(word, &action), "schedule line ", line_number, ", word ",
                       actions.size() + 1, ": '", word.substr(0, 40),
                       "' is no action. Write stage, one of F B I W, microbatch: for example 0F1.");
    actions.push_back(action);
    begin = line.find_first_not_of(kBlanks, end);
  }
  return actions;
}

}  // namespace

Schedule parse_schedule(const std::string& text) {
  CONTEXTURE_REQUIRE(!text.empty(),
                     "the schedule is empty. Write one line of actions a rank, as in '0F0 0B0'.");
  Schedule schedule;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const int line_number = static_cast<int>(schedule.by_rank.size()) + 1;
    schedule.by_rank.push_back(read_line(text.substr(begin, end - begin), line_number));
    begin = end + 1;
  }
  return schedule;
}

namespace {

// Consecutive stages first..last on one rank.
struct Run {
  int rank, first, last;
};

std::vector<Run> runs_of(const StageGraph& graph) {
  links_of(graph);
  std::vector<Run> runs;
  for (int stage = 0; stage < graph.num_stages; ++stage) {
    if (stage > 0 && graph.rank_of[stage] == graph.rank_of[stage - 1]) {
      runs.back().last = stage;
    } else {
      runs.push_back({graph.rank_of[stage], stage, stage});
    }
  }
  return runs;
}

void require_microbatches(const char* schedule, int num_microbatches) {
  CONTEXTURE_USAGE_REQUIRE(num_microbatches >= 1, schedule, " needs at least one microbatch, not ",
                           num_microbatches);
}

std::vector<Run> one_run_a_rank(const char* schedule, const StageGraph& graph) {
  const std::vector<Run> runs = runs_of(graph);
  std::vector<int> num_runs(graph.num_ranks);
  for (const Run& run : runs) ++num_runs[run.rank];
  for (int rank = 0; rank < graph.num_ranks; ++rank) {
    CONTEXTURE_USAGE_REQUIRE(
        num_runs[rank] == 1, schedule, " needs one run of consecutive stages on each rank, but of ",
        graph.num_stages, " stages on ", graph.num_ranks, " ranks, rank ", rank, " has ",
        num_runs[rank] == 0 ? "none. Use fewer ranks." : "several apart. Use interleaved or list.");
  }
  return runs;
}

void append(const Run& run, Work work, int microbatch, std::vector<Action>* actions) {
  if (work == Work::kForward) {
    for (int stage = run.first; stage <= run.last; ++stage)
      actions->push_back({stage, work, microbatch});
  } else {
    for (int stage = run.last; stage >= run.first; --stage)
      actions->push_back({stage, work, microbatch});
  }
}

}  // namespace

Schedule make_gpipe(const StageGraph& graph, int num_microbatches) {
  require_microbatches("gpipe", num_microbatches);
  std::vector<Run> runs = runs_of(graph);
  Schedule schedule;
  schedule.by_rank.resize(graph.num_ranks);
  const auto sweep = [&](Work work) {
    for (const Run& run : runs) {
      for (int m = 0; m < num_microbatches; ++m) append(run, work, m, &schedule.by_rank[run.rank]);
    }
  };
  sweep(Work::kForward);
  std::reverse(runs.begin(), runs.end());
  sweep(Work::kBackward);
  return schedule;
}

namespace {

// 1F1B's order. With the backward split, weight gradients lag behind the input gradients by as many
// microbatches as the rank has ranks before it: the last ranks so answer early, and have work left
// for the time in which the gradients travel to rank 0.
Schedule alternating(const char* name, const StageGraph& graph, int num_microbatches, bool split) {
  require_microbatches(name, num_microbatches);
  const std::vector<Run> runs = one_run_a_rank(name, graph);
  const int p = graph.num_ranks;
  Schedule schedule;
  schedule.by_rank.resize(p);
  for (int place = 0; place < p; ++place) {
    auto* actions = &schedule.by_rank[runs[place].rank];
    const int warm_up = std::min(num_microbatches, p - 1 - place);
    for (int m = 0; m < warm_up; ++m) append(runs[place], Work::kForward, m, actions);
    for (int m = 0; m < num_microbatches; ++m) {
      if (warm_up + m < num_microbatches) append(runs[place], Work::kForward, warm_up + m, actions);
      append(runs[place], split ? Work::kInputGrad : Work::kBackward, m, actions);
      if (split && m >= place) append(runs[place], Work::kWeightGrad, m - place, actions);
    }
    for (int m = std::max(0, num_microbatches - place); split && m < num_microbatches; ++m)
      append(runs[place], Work::kWeightGrad, m, actions);
  }
  return schedule;
}

}  // namespace

Schedule make_1f1b(const StageGraph& graph, int num_microbatches) {
  return alternating("1f1b", graph, num_microbatches, /*split=*/false);
}

Schedule make_zb_h1(const StageGraph& graph, int num_microbatches) {
  return alternating("zb_h1", graph, num_microbatches, /*split=*/true);
}

// Megatron's order: microbatches go in groups of num_ranks through a rank's chunks, backward in the
// reverse order of chunks.
Schedule make_interleaved(const StageGraph& graph, int num_microbatches) {
  require_microbatches("interleaved", num_microbatches);
  links_of(graph);
  const int p = graph.num_ranks, m = num_microbatches;
  bool placed = graph.num_stages % p == 0;
  for (int stage = 0; placed && stage < graph.num_stages; ++stage)
    placed = graph.rank_of[stage] == stage % p;
  CONTEXTURE_USAGE_REQUIRE(placed,
                           "interleaved needs the same number of stages on each rank, dealt out in "
                           "turn (stage s on rank s % ",
                           p, "), which ", graph.num_stages, " stages on ", p,
                           " ranks are not. Use list.");
  CONTEXTURE_USAGE_REQUIRE(
      m % p == 0, "interleaved needs a multiple of the number of ranks as microbatches: ", m,
      " on ", p, " ranks cannot work. Take ",
      m > p ? concat(m / p * p, " or ", (m / p + 1) * p) : concat(p), ".");
  const int chunks = graph.num_stages / p;
  if (chunks == 1) return make_1f1b(graph, m);
  const int total = m * chunks;
  Schedule schedule;
  schedule.by_rank.resize(p);
  for (int rank = 0; rank < p; ++rank) {
    const auto action = [&](Work work, int i) {
      const int chunk = i % (p * chunks) / p;
      const int stage = (work == Work::kForward ? chunk : chunks - 1 - chunk) * p + rank;
      return Action{stage, work, i / (p * chunks) * p + i % p};
    };
    const int warm_up = std::min(total, 2 * (p - 1 - rank) + (chunks - 1) * p);
    auto& actions = schedule.by_rank[rank];
    for (int i = 0; i < warm_up; ++i) actions.push_back(action(Work::kForward, i));
    for (int i = 0; i < total; ++i) {
      if (warm_up + i < total) actions.push_back(action(Work::kForward, warm_up + i));
      actions.push_back(action(Work::kBackward, i));
    }
  }
  return schedule;
}

Schedule split_into_slices(const Schedule& schedule, int num_slices) {
  CONTEXTURE_INVARIANT(num_slices >= 1, num_slices, " slices");
  Schedule sliced;
  for (const auto& actions : schedule.by_rank) {
    auto& row = sliced.by_rank.emplace_back();
    for (const Action& action : actions) {
      const int first = action.microbatch * num_slices;
      for (int i = 0; i < num_slices; ++i) {
        const int slice = action.work == Work::kForward ? i : num_slices - 1 - i;
        row.push_back({action.stage, action.work, first + slice});
      }
    }
  }
  return sliced;
}

}  // namespace contexture::parallel
