// Gradients over the replicas, and which part of every parameter this rank keeps and updates (ZeRO,
// arXiv:1910.02054):
//   0  every replica keeps and updates everything; gradients are all-reduced in buckets, overlapped
//   with backward; 1  each updates its share; gradients are reduce-scattered once a step, new
//   values all-gathered; 2  gradients are reduce-scattered after every microbatch, and only the
//   share is kept; 3  values are kept in shares too, gathered for each use of a block and freed
//   after it.
// A share is a run of the flattened (tensor-parallel part of the) parameter: ceil(n / replicas)
// numbers, fewer at the end. Parameters that several pipeline ranks hold have their gradients
// summed over these. A trainable parameter without a gradient counts as one whose gradient is zero,
// so that every layout updates the same.
#pragma once
#include <memory>

#include "parallel/block.h"
#include "parallel/communicator.h"

namespace contexture::parallel {

struct Shard {
  Parameter* parameter = nullptr;
  int64_t begin = 0, end = 0;  // of the flattened local value
  at::Tensor value;            // [end - begin], compute dtype; an update writes here
  at::Tensor grad;             // [end - begin], wide dtype; defined after finish()
  bool counted =
      true;  // in sums over all ranks: false on all but one of the ranks that hold the same numbers
};

class Sharding {
 public:
  struct Group {
    std::shared_ptr<Communicator> dp;  // null: one replica
    int zero = 0;
    int64_t bucket_bytes = 32 << 20;
  };
  // owned: the parameters whose values this rank has, in the store's order; uses: how many blocks
  // of this rank use each. shared: for those on several pipeline ranks, the group of these
  // (pipeline order; its first rank counts). first_tp: this is the first tensor-parallel rank,
  // which counts unsplit parameters. Values must be materialised. With zero 3 they are freed but
  // for the shares.
  Sharding(Group group, const std::vector<Parameter*>& owned,
           const std::map<const Parameter*, int>& uses,
           std::map<const Parameter*, std::shared_ptr<Communicator>> shared, bool first_tp);

  void begin_step();  // forgets all gradients
  void after_backward(const Block& block, bool last);
  void finish();   // waits for the reductions: shards have their gradients
  void publish();  // the shares' values to all replicas, after an update
  // ZeRO 3: the block's parameters whole, and freed again. Else nothing.
  void before_use(const Block& block);
  void after_use(const Block& block);

  std::vector<Shard>& shards() { return shards_; }  // of trainable parameters, in the store's order
  Shard* find(const Parameter& parameter);          // null: not owned, or frozen
  // Collective over the replicas: a tensor per shard (a gradient, a moment) to the whole flattened
  // local tensor. Any dtype.
  at::Tensor whole(const Shard& shard, const at::Tensor& part) const;
  // The whole local value of an owned parameter. Collective over the replicas with zero 3.
  at::Tensor whole_value(const Parameter& parameter) const;
  // Sets an owned parameter's value from its whole local tensor.
  void set_value(const Parameter& parameter, const at::Tensor& whole);
  int zero() const { return group_.zero; }
  // Bytes as allocated: of values between uses, and of gradients, the most that was held at once in
  // the last step (without what is under way).
  int64_t value_bytes() const;
  int64_t gradient_bytes() const { return most_gradient_bytes_; }

 private:
  struct Bucket {
    std::vector<size_t> shards;
    int waiting = 0;       // parameters whose gradient is not final yet
    at::Tensor flat, out;  // in flight
    Pending pending;
    bool launched = false;
  };
  bool split() const { return group_.dp != nullptr && group_.zero > 0; }
  int64_t per_rank(const Parameter& parameter) const;
  int64_t offset(const std::vector<size_t>& which) const;
  void launch(Bucket& bucket);
  void land(Bucket& bucket);
  void gather_values(const std::vector<size_t>& which);
  size_t index_of(const Parameter* parameter) const { return index_.at(parameter); }

  Group group_;
  std::vector<Shard> shards_;
  std::map<const Parameter*, size_t> index_;
  std::map<const Parameter*, int> uses_, uses_left_;
  std::map<const Parameter*, std::shared_ptr<Communicator>> shared_;
  std::vector<Bucket> buckets_;
  void note_gradient_bytes();
  std::map<const Parameter*, size_t> bucket_of_;
  int64_t most_gradient_bytes_ = 0;
};

}  // namespace contexture::parallel
