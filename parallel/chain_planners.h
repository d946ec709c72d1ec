// The published planners of a chain of layers: balanced segments, D'Hondt seats, PipeDream, Alpa.
// They see a list of costs, never wires with several readers. Used as baselines and by the tree
// partition. All throw UsageError when there are fewer items than segments.
#pragma once
#include <functional>
#include <vector>

namespace contexture::parallel {

// Cuts costs into num_segments contiguous, non-empty segments so that the largest sum is smallest.
// Returns num_segments + 1 positions, first 0, last costs.size(). Of equal solutions the one whose
// first cut is earliest, then the second, and so on.
std::vector<int> balance_chain(const std::vector<double>& costs, int num_segments);

// D'Hondt: hands out num_seats seats, each to the party with the greatest cost / (its seats + 1),
// the first of equals. Returns the party of each seat in the order of handing out.
std::vector<int> dhondt(const std::vector<double>& costs, int num_seats);

struct ReplicatedStage {
  int begin = 0, end = 0;  // layers
  int replicas = 1;
};
struct ChainPlan {
  std::vector<ReplicatedStage> stages = {};
  double slowest_s = 0.0;  // of stages and of the transfers between them
  double total_s = 0.0;    // Alpa: sum of stages + (microbatches - 1) * slowest
};

// PipeDream: A[j][m] = min over k, m' of max(A[k][m - m'], 2 * activation[k] / bandwidth, T(k..j,
// m')), with T = max(compute / m', 4 (m' - 1) weights / (m' bandwidth)). activation_bytes[i]: what
// layer i hands on. All devices are used; with replicate false every stage has one.
struct ChainLayer {
  double compute_s = 0.0, activation_bytes = 0.0, weight_bytes = 0.0;
};
ChainPlan pipedream(const std::vector<ChainLayer>& layers, int num_devices, double bytes_per_s,
                    bool replicate);

// Alpa's inter-operator search: stages of one or more devices (sizes in `widths`), all num_devices
// used; minimises sum of stage times + (microbatches - 1) * largest. time(begin, end, width) is a
// stage's time, infinite when it does not fit.
ChainPlan alpa(int num_layers, int num_devices, const std::vector<int>& widths, int microbatches,
               const std::function<double(int begin, int end, int width)>& time);

}  // namespace contexture::parallel
