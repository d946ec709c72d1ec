// L numbers of a bucket's shares, n replicas.
#include "parallel/sharding.h"

#include <algorithm>

#include "core/error.h"
#include "core/fault_point.h"

namespace contexture::parallel {
namespace {

at::Tensor flat(const at::Tensor& t) { return t.detach().view(-1); }

// Frees or allocates a value's memory under the tensor, so that what autograd saved of it finds it
// again.
void resize_storage(const at::Tensor& value, bool allocate) {
  auto* storage = value.storage().unsafeGetStorageImpl();
  const size_t bytes = allocate ? static_cast<size_t>(value.numel()) * value.element_size() : 0;
  if (storage->nbytes() == bytes) return;
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

}  // namespace

Sharding::Sharding(Group group, const std::vector<Parameter*>& owned,
                   const std::map<const Parameter*, int>& uses,
                   std::map<const Parameter*, std::shared_ptr<Communicator>> shared, bool first_tp)
    : group_(std::move(group)), uses_(uses), shared_(std::move(shared)) {
  CONTEXTURE_USAGE_REQUIRE(group_.zero >= 0 && group_.zero <= 3, "parallel.zero=", group_.zero,
                           " is not known. Use 0, 1, 2 or 3.");
  if (group_.dp && group_.dp->size() == 1) group_.dp.reset();
  for (Parameter* p : owned) {
    if (!p->trainable) continue;
    Shard shard;
    shard.parameter = p;
    const int64_t n = p->value.numel();
    shard.end = n;
    if (split()) {
      const int64_t per = per_rank(*p);
      shard.begin = std::min(n, per * group_.dp->rank());
      shard.end = std::min(n, shard.begin + per);
    }
    shard.value = flat(p->value).narrow(0, shard.begin, shard.end - shard.begin);
    const auto group_of = shared_.find(p);
    shard.counted =
        (p->is_split() || first_tp) && (group_of == shared_.end() || group_of->second->rank() == 0);
    index_[p] = shards_.size();
    shards_.push_back(std::move(shard));
  }
  if (split() && group_.zero == 3) {
    for (Shard& shard : shards_) {
      shard.value = shard.value.clone();
      resize_storage(shard.parameter->value, false);
    }
  }
  // Backward comes upon the last parameters first.
  int64_t bytes = 0;
  for (size_t i = shards_.size(); group_.dp && i-- > 0;) {
    if (buckets_.empty() || bytes >= group_.bucket_bytes) {
      buckets_.emplace_back();
      bytes = 0;
    }
    buckets_.back().shards.push_back(i);
    bucket_of_[shards_[i].parameter] = buckets_.size() - 1;
    bytes += shards_[i].parameter->value.numel() * 4;
  }
  begin_step();
}

Shard* Sharding::find(const Parameter& parameter) {
  const auto known = index_.find(&parameter);
  return known == index_.end() ? nullptr : &shards_[known->second];
}

int64_t Sharding::per_rank(const Parameter& parameter) const {
  const int64_t n = group_.dp->size();
  return (parameter.value.numel() + n - 1) / n;
}

int64_t Sharding::offset(const std::vector<size_t>& which) const {
  int64_t total = 0;
  for (const size_t i : which)
    total += split() ? per_rank(*shards_[i].parameter) : shards_[i].parameter->value.numel();
  return total;
}

void Sharding::begin_step() {
  for (Shard& shard : shards_) {
    shard.parameter->grad = at::Tensor();
    shard.grad = at::Tensor();
  }
  uses_left_ = uses_;
  most_gradient_bytes_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.waiting = static_cast<int>(bucket.shards.size());
    bucket.launched = false;
  }
}

void Sharding::note_gradient_bytes() {
  int64_t held = 0;
  for (const Shard& shard : shards_) {
    const at::Tensor& whole = shard.parameter->grad;
    if (whole.defined()) held += static_cast<int64_t>(whole.nbytes());
    if (shard.grad.defined() && !(whole.defined() && shard.grad.is_alias_of(whole)))
      held += static_cast<int64_t>(shard.grad.nbytes());
  }
  most_gradient_bytes_ = std::max(most_gradient_bytes_, held);
}

void Sharding::after_backward(const Block& block, bool last) {
  if (!group_.dp) return;
  if (group_.zero == 1) note_gradient_bytes();
  std::vector<size_t> complete;
  for (const Parameter* p : block.parameters()) {
    if (!p->trainable || (group_.zero < 2 && !last)) continue;
    if (--uses_left_[p] > 0) continue;
    uses_left_[p] = uses_.at(p);
    if (group_.zero >= 2) {
      complete.push_back(index_of(p));
    } else if (Bucket& bucket = buckets_[bucket_of_.at(p)]; --bucket.waiting == 0) {
      launch(bucket);
    }
  }
  if (complete.empty()) return;
  Bucket now;
  now.shards = std::move(complete);
  launch(now);
  land(now);
}

void Sharding::launch(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  const int64_t rows = split() ? group_.dp->size() : 1, L = offset(bucket.shards);
  const at::Tensor& like = shards_[bucket.shards.front()].parameter->value;
  bucket.flat = at::zeros(
      {rows, L}, like.options().dtype(wide_dtype(like.scalar_type())).requires_grad(false));
  int64_t at = 0;
  for (const size_t i : bucket.shards) {
    Parameter& p = *shards_[i].parameter;
    const int64_t n = p.value.numel(), per = split() ? per_rank(p) : n;
    if (p.grad.defined()) {
      const at::Tensor grad = p.grad.reshape(-1);
      for (int64_t r = 0; r < rows && r * per < n; ++r) {
        const int64_t length = std::min(per, n - r * per);
        bucket.flat[r].narrow(0, at, length).copy_(grad.narrow(0, r * per, length));
      }
      p.grad = at::Tensor();
    }
    at += per;
  }
  fault_point("all-reduce");
  if (split()) {
    bucket.out = at::empty({L}, bucket.flat.options());
    bucket.pending = group_.dp->reduce_scatter(bucket.out, bucket.flat.view(-1));
  } else {
    bucket.out = bucket.flat.view(-1);
    bucket.pending = group_.dp->all_reduce(bucket.out);
  }
  bucket.launched = true;
}

void Sharding::land(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  bucket.pending.wait();
  int64_t at = 0;
  for (const size_t i : bucket.shards) {
    Shard& shard = shards_[i];
    const int64_t length = shard.end - shard.begin;
    const at::Tensor part = bucket.out.narrow(0, at, length);
    at += split() ? per_rank(*shard.parameter) : length;
    // A view keeps the whole bucket: right where it is all this rank's, a waste where parts of it
    // come and go.
    shard.grad = shard.grad.defined() ? shard.grad.add_(part)
                 : group_.zero >= 2   ? part.clone()
                                      : part;
  }
  bucket.flat = bucket.out = at::Tensor();
}

void Sharding::finish() {
  const at::NoGradGuard no_grad;
  if (group_.dp && group_.zero < 2) {
    for (Bucket& bucket : buckets_) {
      if (!bucket.launched) launch(bucket);  // its blocks had no backward in this step
    }
    for (Bucket& bucket : buckets_) land(bucket);
  }
  for (Shard& shard : shards_) {
    Parameter& p = *shard.parameter;
    if (!group_.dp && p.grad.defined()) shard.grad = p.grad.reshape(-1);
    if (!shard.grad.defined())
      shard.grad = at::zeros({shard.end - shard.begin},
                             shard.value.options().dtype(wide_dtype(shard.value.scalar_type())));
    if (const auto group_of = shared_.find(&p);
        group_of != shared_.end() && shard.grad.numel() > 0) {
      shard.grad = shard.grad.contiguous();
      group_of->second->all_reduce(shard.grad).wait();
    }
    p.grad = split() ? at::Tensor() : shard.grad.view(p.value.sizes());
  }
  note_gradient_bytes();
}

void Sharding::gather_values(const std::vector<size_t>& which) {
  if (which.empty()) return;
  const at::NoGradGuard no_grad;
  const int64_t n = group_.dp->size(), L = offset(which);
  const auto options = shards_[which.front()].value.options().requires_grad(false);
  const at::Tensor mine = at::zeros({L}, options), all = at::empty({n, L}, options);
  int64_t at = 0;
  for (const size_t i : which) {
    const Shard& shard = shards_[i];
    mine.narrow(0, at, shard.end - shard.begin).copy_(shard.value);
    at += per_rank(*shard.parameter);
  }
  group_.dp->all_gather(all.view(-1), mine).wait();
  at = 0;
  for (const size_t i : which) {
    const Parameter& p = *shards_[i].parameter;
    const int64_t numel = p.value.numel(), per = per_rank(p);
    // Through an alias without the version counter: what autograd saved of the value stays valid,
    // for it is the same value.
    const at::Tensor value = p.value.variable_data().view(-1);
    for (int64_t r = 0; r * per < numel; ++r) {
      const int64_t length = std::min(per, numel - r * per);
      value.narrow(0, r * per, length).copy_(all[r].narrow(0, at, length));
    }
    at += per;
  }
}

void Sharding::publish() {
  if (!split() || group_.zero == 3) return;
  for (const Bucket& bucket : buckets_) gather_values(bucket.shards);
}

void Sharding::before_use(const Block& block) {
  if (!split() || group_.zero != 3) return;
  std::vector<size_t> which;
  for (const Parameter* p : block.parameters()) {
    if (!p->trainable) continue;
    which.push_back(index_of(p));
    resize_storage(p->value, true);
  }
  gather_values(which);
}

void Sharding::after_use(const Block& block) {
  if (!split() || group_.zero != 3) return;
  for (const Parameter* p : block.parameters()) {
    if (p->trainable) resize_storage(p->value, false);
  }
}

at::Tensor Sharding::whole(const Shard& shard, const at::Tensor& part) const {
  if (!split()) return part;
  const int64_t per = per_rank(*shard.parameter), n = group_.dp->size();
  const at::Tensor mine = at::zeros({per}, part.options()),
                   all = at::empty({n * per}, part.options());
  mine.narrow(0, 0, part.numel()).copy_(part);
  group_.dp->all_gather(all, mine).wait();
  return all.narrow(0, 0, shard.parameter->value.numel());
}

at::Tensor Sharding::whole_value(const Parameter& parameter) const {
  const auto known = index_.find(&parameter);
  if (known == index_.end() || !split() || group_.zero != 3) return parameter.value.detach();
  return whole(shards_[known->second], shards_[known->second].value).view(parameter.value.sizes());
}

void Sharding::set_value(const Parameter& parameter, const at::Tensor& whole) {
  const at::NoGradGuard no_grad;
  const auto known = index_.find(&parameter);
  if (known != index_.end() && split() && group_.zero == 3) {
    Shard& shard = shards_[known->second];
    shard.value.copy_(whole.reshape(-1).narrow(0, shard.begin, shard.end - shard.begin));
  } else {
    parameter.value.detach().copy_(whole);
  }
}

int64_t Sharding::value_bytes() const {
  int64_t bytes = 0;
  for (const Shard& shard : shards_) {
    bytes += static_cast<int64_t>(shard.parameter->value.storage().nbytes());
    if (split() && group_.zero == 3) bytes += static_cast<int64_t>(shard.value.nbytes());
  }
  return bytes;
}

}  // namespace contexture::parallel
