#include <algorithm>
#include <numeric>

#include "parallel/internal/communicator_base.h"

namespace contexture::parallel {
namespace {

using internal::Call;

struct RecordingState final : internal::RankState {
  std::string cause;  // of abort()
};

class RecordingCommunicator final : public internal::CommunicatorBase {
 public:
  RecordingCommunicator(int rank, std::vector<int> world_ranks, const std::string& name,
                        std::shared_ptr<RecordingState> state)
      : CommunicatorBase(rank, std::move(world_ranks), name, state), recording_(std::move(state)) {}
  void abort(const std::string& cause) override { recording_->cause = cause; }

 protected:
  void require_alive(const Call& call) override {
    CONTEXTURE_REQUIRE_AS(DistributedError, recording_->cause.empty(), call.where,
                          ": aborted: ", recording_->cause);
  }
  Pending start_all_reduce(Call, const at::Tensor&, ReduceOp) override { return Pending(); }
  Pending start_reduce_scatter(Call, const at::Tensor&, const at::Tensor&) override {
    return Pending();
  }
  Pending start_all_gather(Call, const at::Tensor&, const at::Tensor&) override {
    return Pending();
  }
  Pending start_broadcast(Call, const at::Tensor&, int) override { return Pending(); }
  Pending start_all_to_all(Call, const at::Tensor&, const at::Tensor&) override {
    return Pending();
  }
  Pending start_send(Call, const at::Tensor&, int) override { return Pending(); }
  Pending start_receive(Call, const at::Tensor&, int) override { return Pending(); }
  void run_barrier(Call) override {}
  void post_on_board(Call, const std::string&, const std::string&) override {}
  std::string read_from_board(Call, const std::string&) override { return ""; }
  std::shared_ptr<Communicator> make_subgroup(Call, const std::vector<int>& ranks,
                                              const std::string& name) override {
    const auto me = std::find(ranks.begin(), ranks.end(), rank());
    if (me == ranks.end()) return nullptr;
    return std::make_shared<RecordingCommunicator>(static_cast<int>(me - ranks.begin()),
                                                   world_ranks_of(ranks), name, recording_);
  }

 private:
  const std::shared_ptr<RecordingState> recording_;
};

}  // namespace

std::shared_ptr<Communicator> make_recording_communicator(int rank, int size) {
  CONTEXTURE_INVARIANT(rank >= 0 && rank < size, "rank ", rank, " of ", size);
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return std::make_shared<RecordingCommunicator>(rank, std::move(all), "world",
                                                 std::make_shared<RecordingState>());
}

}  // namespace contexture::parallel
