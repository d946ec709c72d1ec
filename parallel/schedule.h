// A pipeline schedule is plain data: for each rank, the ordered work it will do. Generators build
// it, check_schedule() proves that it can finish, simulate() says how long it takes and what it
// holds, the engine executes it. Nothing here touches a tensor, a device or a network.
//
// Stages are numbered in an order in which every wire goes from a lower to a higher number. A stage
// graph says which stages read what which stages wrote: a chain has edges s -> s+1; skips and side
// branches are edges like any other. What waits for what:
//   F(s, m) for F(w, m) of every stage w that s reads; B or I (s, m) for F(s, m) and for the B or I
//   of every stage that reads s; W(s, m) for I(s, m).
//
// Token slices are microbatches whose backward runs in reverse (split_into_slices); nothing else
// tells them apart.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace contexture::parallel {

// F forward; B whole backward; I gradient of the inputs only; W gradient of the weights, some time
// after its I.
enum class Work : char { kForward = 'F', kBackward = 'B', kInputGrad = 'I', kWeightGrad = 'W' };

struct Action {
  int stage = 0;
  Work work = Work::kForward;
  int microbatch = 0;
  bool operator==(const Action&) const = default;
};
std::string to_text(const Action& action);  // "2F0"

struct StageGraph {
  int num_stages = 0;
  std::vector<int> rank_of;  // [num_stages]: who runs the stage; a rank may have several, or none
  std::vector<std::pair<int, int>> edges;  // (writer, reader), writer < reader, each once
  int num_ranks = 0;
};
StageGraph chain(int num_ranks, int chunks = 1);  // stage s on rank s % num_ranks

struct Schedule {
  std::vector<std::vector<Action>> by_rank;
  bool operator==(const Schedule&) const = default;
};

// Text form: one line a rank, actions separated by blanks, as in "0F0 0F1 0B0 0B1"; an empty line
// is a rank without work. parse throws UserError naming line and word.
std::string to_text(const Schedule& schedule);
Schedule parse_schedule(const std::string& text);

// The generators. All throw UsageError with the numbers when the combination cannot work, and all
// but interleaved take any number of microbatches, also fewer than ranks. Edges beyond the chain's
// (skips) do not change the order. A "run" is a set of consecutive stages on one rank; it is gone
// through as one stage would be.
Schedule make_gpipe(const StageGraph& graph, int num_microbatches);  // any placement
Schedule make_1f1b(const StageGraph& graph, int num_microbatches);   // one run a rank
Schedule make_interleaved(
    const StageGraph& graph,
    int num_microbatches);  // stage s on rank s % num_ranks; microbatches a multiple of num_ranks
Schedule make_zb_h1(const StageGraph& graph,
                    int num_microbatches);  // one run a rank; I and W apart

// Every action becomes num_slices, forwards ascending and backwards descending; slice i of
// microbatch m is numbered m * num_slices + i.
Schedule split_into_slices(const Schedule& schedule, int num_slices);

// Seconds (or any unit) of each stage's work, and of a message along an edge. Finite and not
// negative.
struct StageTimes {
  std::vector<double> forward, input_grad,
      weight_grad;  // [num_stages]; B takes input_grad + weight_grad
  std::vector<double>
      transfer;               // [edges]; empty: none. Between stages of one rank it costs nothing.
  std::vector<double> scale;  // [num_microbatches]: factor of all work; empty: 1
};
StageTimes unit_times(int num_stages);  // all 1 (so that B takes 2), no transfers

// List schedule for any acyclic graph and any placement: at each moment a free rank runs its ready
// work, with at most max_in_flight microbatches begun and not finished on a rank (0: the number of
// ranks). With split_backward, weight gradients (W) fill the time in which a rank has nothing else
// to do. Tried are three orders (backward first, then the lowest microbatch or the longest way to
// go; or what is due first at the busiest rank's pace), each with that limit and with no more than
// the rank's way back can use. Of the six the one that ends first, then the one that holds least.
Schedule make_list(const StageGraph& graph, int num_microbatches, const StageTimes& times,
                   int max_in_flight = 0, bool split_backward = false);

// What a rank sends to another because of an action: its stage's output to each rank that reads it,
// or the gradients to each rank whose stages it read. One message a pair of ranks and action,
// however many wires it carries.
struct Message {
  int from_rank = 0, to_rank = 0;
  Action sent_by;       // leaves right after this: an F, or a B or I
  int sent_after = 0;   // its place in from_rank's order
  int needed_by = 0;    // place in to_rank's order of the first action that reads it
  int received_by = 0;  // place before which it is received when a pair's messages are taken in the
                        // order they are sent: needed_by or earlier. Doing so can never deadlock,
                        // so a transport without tags runs any checked schedule.
};
// All messages of a checked schedule: pair by pair (from_rank, then to_rank), each pair's in the
// order to send them.
std::vector<Message> messages(const StageGraph& graph, const Schedule& schedule);

struct ScheduleCheck {
  bool tagless_safe = true;  // messages of each pair of ranks are needed in the order they are sent
  std::string tagless_conflict;  // otherwise: the first two that are not, in words
};
// Throws UserError (with the grid, the failing rank marked) unless every (stage, microbatch) has
// exactly one forward and one backward (B, or I then W), each on its stage's rank, and the ranks'
// orders cannot deadlock. Sends are taken to be asynchronous.
ScheduleCheck check_schedule(const StageGraph& graph, const Schedule& schedule,
                             int num_microbatches);

struct ScheduleReport {
  double makespan = 0.0;
  double idle_fraction = 0.0;       // over all ranks, 0..1
  std::vector<double> busy;         // [num_ranks]
  std::vector<int> peak_in_flight;  // [num_ranks]: (stage, microbatch) forwards whose backward (B,
                                    // or I) has not run
  std::vector<int> peak_weight_grads;      // [num_ranks]: input gradients (I) whose W has not run
  std::vector<std::vector<double>> start;  // [num_ranks][action]
};
// Runs the schedule against the clock: an action starts when its rank is free and what it reads has
// arrived. Messages go out when the work that makes them ends, and take no time from work nor from
// each other. Needs a checked schedule.
ScheduleReport simulate(const StageGraph& graph, const Schedule& schedule, const StageTimes& times);

// Rank-by-time grid, one column a unit (the shortest work, or what makes some 200 columns), work
// that takes longer drawn on with "=", idle time as "."; what can never run stands behind a "|".
// `marked`: the rank whose row gets an arrow, or -1.
std::string grid(const StageGraph& graph, const Schedule& schedule, const StageTimes& times,
                 int marked = -1);

}  // namespace contexture::parallel
