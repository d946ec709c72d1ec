// What every communicator has in common: arguments are checked, calls counted, errors worded. A
// kind of communicator implements the start_... functions, which see only arguments that are right,
// no empty tensors and (but for moves_alone()) no groups of one.
#pragma once
#include "parallel/communicator.h"

namespace contexture::parallel::internal {

// One operation, for error messages.
struct Call {
  std::string operation;
  int64_t number = 0;  // how many of this operation the group has seen
  int peer = -1;       // rank in the group, or none
  std::string where;   // "rank 3, peer 1, send #17 of group dp in phase forward"
};

// Shared by a rank's communicators: the world and all its subgroups.
struct RankState {
  std::string phase = "start";
  double deadline_s = 60.0;
};

class CommunicatorBase : public Communicator {
 public:
  // `world_ranks` are the members' ranks in the world.
  CommunicatorBase(int rank, std::vector<int> world_ranks, std::string name,
                   std::shared_ptr<RankState> state)
      : state_(std::move(state)),
        rank_(rank),
        world_ranks_(std::move(world_ranks)),
        name_(std::move(name)) {}

  int rank() const final { return rank_; }
  int size() const final { return static_cast<int>(world_ranks_.size()); }
  const std::string& name() const final { return name_; }
  Pending all_reduce(const at::Tensor& tensor, ReduceOp op) final;
  Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input) final;
  Pending all_gather(const at::Tensor& output, const at::Tensor& input) final;
  Pending broadcast(const at::Tensor& tensor, int root) final;
  Pending all_to_all(const at::Tensor& output, const at::Tensor& input) final;
  Pending send(const at::Tensor& tensor, int peer, int tag) final;
  Pending receive(const at::Tensor& tensor, int peer, int tag) final;
  void barrier() final;
  std::shared_ptr<Communicator> subgroup(const std::vector<int>& ranks,
                                         const std::string& name) final;
  void set_deadline(double seconds) final;
  void post(const std::string& name, const std::string& text);  // parallel/board.h
  std::string read(const std::string& name);
  void set_phase(const std::string& phase) final { state_->phase = phase; }
  std::map<std::string, Traffic> traffic() const final { return traffic_; }
  std::map<int, Traffic> links() const final { return links_; }

 protected:
  virtual void require_alive(const Call& call) = 0;  // throws when an operation has failed before
  // Whether a group of one calls start_... for this tensor, too, instead of copying.
  virtual bool moves_alone(const at::Tensor&) const { return false; }
  virtual Pending start_all_reduce(Call call, const at::Tensor& tensor, ReduceOp op) = 0;
  virtual Pending start_reduce_scatter(Call call, const at::Tensor& output,
                                       const at::Tensor& input) = 0;
  virtual Pending start_all_gather(Call call, const at::Tensor& output,
                                   const at::Tensor& input) = 0;
  virtual Pending start_broadcast(Call call, const at::Tensor& tensor, int root) = 0;
  virtual Pending start_all_to_all(Call call, const at::Tensor& output,
                                   const at::Tensor& input) = 0;
  virtual Pending start_send(Call call, const at::Tensor& tensor, int tag) = 0;
  virtual Pending start_receive(Call call, const at::Tensor& tensor, int tag) = 0;
  virtual void run_barrier(Call call) = 0;
  virtual void post_on_board(Call call, const std::string& name, const std::string& text) = 0;
  virtual std::string read_from_board(Call call, const std::string& name) = 0;
  // The group of these ranks of this group, or null when this rank is not one of them.
  virtual std::shared_ptr<Communicator> make_subgroup(Call call, const std::vector<int>& ranks,
                                                      const std::string& name) = 0;

  const std::vector<int>& world_ranks() const { return world_ranks_; }
  int world_rank() const { return world_ranks_[static_cast<size_t>(rank_)]; }
  std::vector<int> world_ranks_of(const std::vector<int>& ranks) const;

  const std::shared_ptr<RankState> state_;

 private:
  Call count(const std::string& operation, int64_t bytes, int peer = -1);
  bool is_local(const at::Tensor& tensor) const {
    return tensor.numel() == 0 || (size() == 1 && !moves_alone(tensor));
  }

  const int rank_;
  const std::vector<int> world_ranks_;
  const std::string name_;
  std::map<std::string, Traffic> traffic_;
  std::map<int, Traffic> links_;
};

// The sum, maximum or minimum of equal tensors, taken in their order; bf16 and fp16 are summed in
// fp32 and rounded once.
at::Tensor reduce_in_order(const std::vector<at::Tensor>& tensors, ReduceOp op);

// "0, 2 and 5"
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace contexture::parallel::internal
