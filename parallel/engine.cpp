#include "parallel/engine.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "parallel/gather.h"
#include "parallel/partition.h"

namespace contexture::parallel {

void ParallelConfig::validate() const {
  CONTEXTURE_USAGE_REQUIRE(dp >= 0 && pp > 0 && tp > 0, "parallel.dp=", dp, ", pp=", pp,
                           " and tp=", tp, " must be positive (dp may be 0).");
  CONTEXTURE_USAGE_REQUIRE(chunks > 0 && microbatches > 0 && bucket_mb > 0,
                           "parallel.chunks=", chunks, ", microbatches=", microbatches,
                           " and bucket_mb=", bucket_mb, " must be positive.");
  CONTEXTURE_USAGE_REQUIRE(token_slices >= 0, "parallel.token_slices=", token_slices,
                           " must be at least 1, or 0 to be measured.");
  CONTEXTURE_USAGE_REQUIRE(token_slices == 1 || pp > 1, "parallel.token_slices=", token_slices,
                           " needs a pipeline to go through, and parallel.pp=1.");
  CONTEXTURE_USAGE_REQUIRE(encode_once == "microbatch" || encode_once == "replica",
                           "parallel.encode_once=", encode_once,
                           " is not known. Use microbatch or replica.");
  CONTEXTURE_USAGE_REQUIRE(
      encode_once == "microbatch" || (token_slices == 1 && schedule != "interleaved"),
      "parallel.encode_once=replica works with neither parallel.token_slices=", token_slices,
      " (but 1) nor parallel.schedule=", schedule, " (but gpipe, 1f1b, zb_h1 or list).");
  CONTEXTURE_USAGE_REQUIRE(zero >= 0 && zero <= 3, "parallel.zero=", zero,
                           " is not known. Use 0, 1, 2 or 3.");
  CONTEXTURE_USAGE_REQUIRE(
      offload == "device" || offload == "host" || std::filesystem::is_directory(offload),
      "parallel.offload=", offload, " is not known. Use device, host, or a folder that exists.");
  CONTEXTURE_USAGE_REQUIRE(timeout_s > 0 && first_timeout_s > 0, "parallel.timeout_s=", timeout_s,
                           " and first_timeout_s=", first_timeout_s, " must be positive.");
  parse_shared_rule(shared);
  parse_optimize(optimize);
  CONTEXTURE_USAGE_REQUIRE(memory_weight <= 1, "parallel.memory_weight=", memory_weight,
                           " is a share: at most 1.");
  CONTEXTURE_USAGE_REQUIRE(memory_gb >= 0, "parallel.memory_gb=", memory_gb,
                           " must be positive, or 0.");
  CONTEXTURE_USAGE_REQUIRE(chunks == 1 || schedule == "interleaved" || schedule == "list",
                           "parallel.chunks=", chunks,
                           " needs parallel.schedule=interleaved or list, not ", schedule, ".");
  CONTEXTURE_USAGE_REQUIRE(
      chunks == 1 || !stages.empty() || partitioner == "uniform" || partitioner == "parameters",
      "parallel.chunks=", chunks, " needs parallel.partitioner=uniform or parameters, not ",
      partitioner, ".");
  CONTEXTURE_USAGE_REQUIRE(stages.empty() || shared != "colocate",
                           "parallel.stages says where every block runs, so parallel.shared=",
                           shared, " cannot move blocks: use replicate.");
  CONTEXTURE_USAGE_REQUIRE(shared != "colocate" || schedule == "list" || pp == 1,
                           "parallel.shared=colocate gives a rank several ",
                           "stages out of order: use parallel.schedule=list, not ", schedule, ".");
}

std::set<std::string> chosen_blocks(const std::vector<std::string>& prefixes,
                                    const BlockList& blocks) {
  std::set<std::string> out;
  for (const std::string& prefix : prefixes) {
    bool any = false;
    for (const auto& block : blocks) {
      if (prefix != "all" && block->name().rfind(prefix, 0) != 0) continue;
      out.insert(block->name());
      any = true;
    }
    CONTEXTURE_USAGE_REQUIRE(any, "parallel.recompute names '", prefix,
                             "', and no block begins with that. The first block is ",
                             blocks.front()->name(), ".");
  }
  return out;
}

Groups groups_of(const std::shared_ptr<const Mesh>& mesh) {
  const auto group = [&](Communicator& c) {
    return c.size() == 1 ? nullptr : std::shared_ptr<Communicator>(mesh, &c);
  };
  return {group(mesh->world()), group(mesh->dp()), group(mesh->pp()), group(mesh->tp()),
          group(mesh->replica())};
}

Groups groups_of(const std::shared_ptr<Communicator>& all, const ParallelConfig& config,
                 int refresh_ranks) {
  const auto mesh_of = [&](const std::shared_ptr<Communicator>& world) {
    return groups_of(std::make_shared<const Mesh>(world, static_cast<int>(config.dp),
                                                  static_cast<int>(config.pp),
                                                  static_cast<int>(config.tp), config.order));
  };
  if (refresh_ranks == 0) return mesh_of(all);
  std::vector<int> training, office{0};
  for (int r = 0; r < all->size(); ++r)
    (r < all->size() - refresh_ranks ? training : office).push_back(r);
  const auto world = all->subgroup(training, "training");
  Groups groups;
  groups.office = all->subgroup(office, "refresh");
  if (world) {
    const auto its_office = groups.office;
    groups = mesh_of(world);
    groups.office = its_office;
  }
  groups.all = all;
  return groups;
}

Placement placement_for(const ParallelConfig& config, const BlockList& blocks,
                        const Groups& groups) {
  return place_in_order(blocks, config.partitioner, groups.pp_size(),
                        static_cast<int>(groups.pp ? config.chunks : 1),
                        config.shared == "colocate" && groups.pp);
}

bool Engine::owns(const Placement& placement, const BlockList& blocks, const Parameter& parameter,
                  int pp_rank) {
  const std::vector<int> owners = placement.owners(blocks, parameter);
  return std::find(owners.begin(), owners.end(), pp_rank) != owners.end();
}

namespace {

// What all pipeline ranks are about to build, together: every block runs on one of them, and every
// parameter has one owner there and a declared replica wherever else it is used. It would not where
// ranks were given different placements (of different files, say).
void require_one_owner(const Groups& groups, const Placement& placement, const BlockList& blocks,
                       const ParameterStore& store) {
  CONTEXTURE_INVARIANT(placement.stage_of.size() == blocks.size(), "a placement of ",
                       placement.stage_of.size(), " blocks for a model of ", blocks.size());
  const auto n_blocks = static_cast<int64_t>(blocks.size()),
             n_parameters = static_cast<int64_t>(store.all().size());
  // By block: runs here. By parameter: owned here | used here.
  const at::Tensor runs = at::zeros({n_blocks}, at::kLong),
                   owns = at::zeros({n_parameters}, at::kLong),
                   uses = at::zeros({n_parameters}, at::kLong);
  std::set<const Parameter*> used;
  for (int64_t b = 0; b < n_blocks; ++b) {
    const int stage = placement.stage_of[b];
    CONTEXTURE_INVARIANT(stage >= 0 && stage < placement.graph.num_stages, "block '",
                         blocks[b]->name(), "' is in stage ", stage, " of ",
                         placement.graph.num_stages);
    if (placement.graph.rank_of[stage] != groups.pp_rank()) continue;
    runs[b] = 1;
    used.insert(blocks[b]->parameters().begin(), blocks[b]->parameters().end());
  }
  std::vector<std::vector<int>> declared;
  for (int64_t p = 0; p < n_parameters; ++p) {
    declared.push_back(placement.owners(blocks, *store.all()[p]));
    uses[p] = used.count(store.all()[p].get()) != 0 ? 1 : 0;
    owns[p] = !declared[p].empty() && declared[p].front() == groups.pp_rank() ? 1 : 0;
  }
  if (groups.pp) {
    for (const at::Tensor& counts : {runs, owns, uses}) groups.pp->all_reduce(counts).wait();
  }
  const auto count = [](const at::Tensor& counts, int64_t i) {
    return counts.data_ptr<int64_t>()[i];
  };
  for (int64_t b = 0; b < n_blocks; ++b) {
    CONTEXTURE_INVARIANT(count(runs, b) == 1, "block '", blocks[b]->name(), "' runs on ",
                         count(runs, b), " pipeline ranks: they were given different placements");
  }
  for (int64_t p = 0; p < n_parameters; ++p) {
    const std::string& name = store.all()[p]->name;
    CONTEXTURE_INVARIANT(count(owns, p) == 1, "parameter '", name, "' has ", count(owns, p),
                         " owners among the pipeline ranks");
    CONTEXTURE_INVARIANT(count(uses, p) == static_cast<int64_t>(declared[p].size()), "parameter '",
                         name, "' is used on ", count(uses, p), " pipeline ranks, and ",
                         declared[p].size(), " are declared to have it");
  }
}

}  // namespace

Engine::Engine(const ParallelConfig& config, Groups groups, Placement placement,
               const BlockList& blocks, ParameterStore& store)
    : groups_(std::move(groups)), store_(&store) {
  require_one_owner(groups_, placement, blocks, store);
  std::vector<Parameter*> mine;
  std::map<const Parameter*, int> uses;
  std::map<const Parameter*, std::shared_ptr<Communicator>> shared;
  std::map<std::vector<int>, std::shared_ptr<Communicator>> by_ranks;
  const int tp = groups_.tp ? groups_.tp->size() : 1;
  std::vector<std::vector<int64_t>> to_write(groups_.pp_size(),
                                             std::vector<int64_t>(groups_.dp_size() * tp, 0));
  for (const auto& p : store.all()) {
    const std::vector<int>& owners = owners_[p.get()] = placement.owners(blocks, *p);
    CONTEXTURE_INVARIANT(!owners.empty(), "no block uses parameter '", p->name, "'");
    std::vector<int64_t>& loads = to_write[owners.front()];
    const auto lightest = std::min_element(loads.begin(), loads.end());
    *lightest += p->numel();
    writers_[p.get()] = {static_cast<int>(lightest - loads.begin()) / tp,
                         static_cast<int>(lightest - loads.begin()) % tp};
    if (owners.size() > 1) {
      if (by_ranks.count(owners) == 0)
        by_ranks[owners] = groups_.pp->subgroup(owners, concat("shared.", by_ranks.size()));
      if (by_ranks[owners]) shared[p.get()] = by_ranks[owners];
    }
    if (std::find(owners.begin(), owners.end(), groups_.pp_rank()) == owners.end()) continue;
    CONTEXTURE_INVARIANT(!p->value.is_meta(), "parameter '", p->name,
                         "' has no values on the rank that owns it");
    owned_.insert(p.get());
    mine.push_back(p.get());
    for (size_t b = 0; b < blocks.size(); ++b) {
      if (placement.graph.rank_of[placement.stage_of[b]] != groups_.pp_rank()) continue;
      const auto& used = blocks[b]->parameters();
      uses[p.get()] += static_cast<int>(std::count(used.begin(), used.end(), p.get()));
    }
  }
  sharding_ = std::make_unique<Sharding>(
      Sharding::Group{groups_.dp, static_cast<int>(config.zero), config.bucket_mb << 20}, mine,
      uses, std::move(shared), groups_.tp_rank() == 0);
  pipeline_ = std::make_unique<Pipeline>(blocks, std::move(placement), config.schedule, groups_.pp,
                                         chosen_blocks(config.recompute, blocks));
  pipeline_->set_after_backward(
      [this](const Block& block, bool last) { sharding_->after_backward(block, last); });
  slicer_ = std::make_unique<Slicer>(config.token_slices, groups_.world.get(), groups_.pp_size());
  if (config.zero == 3 && groups_.dp) {
    pipeline_->set_parameter_hooks([this](const Block& block) { sharding_->before_use(block); },
                                   [this](const Block& block) { sharding_->after_use(block); });
  }
}

double Engine::sum_over_parameters(double mine) const {
  // Without ZeRO every replica holds all: one of them is enough.
  const bool shares = groups_.dp && sharding_->zero() > 0;
  Communicator* group = shares ? groups_.world.get() : groups_.replica.get();
  if (group == nullptr) return mine;
  const at::Tensor sum = at::full({1}, mine, at::kDouble);
  group->all_reduce(sum).wait();
  return sum.item<double>();
}

void Engine::share_in_replica(const at::Tensor& tensor) const {
  if (groups_.replica) groups_.replica->broadcast(tensor, 0).wait();
}

at::Tensor Engine::gather_rows(const at::Tensor& mine) const {
  return parallel::gather_rows(groups_.dp.get(), mine);
}

// The parts of all tensor-parallel ranks put together; on each of them, on the CPU.
at::Tensor Engine::joined(const Parameter& parameter, const at::Tensor& local,
                          at::ScalarType dtype) const {
  const at::Tensor mine = local.to(dtype).contiguous();
  if (!parameter.is_split()) return mine.view(parameter.shape).cpu();
  const int n = groups_.tp->size();
  std::vector<at::Tensor> parts;  // of one size only where the split is even: so each is broadcast
  for (int r = 0; r < n; ++r) {
    const at::Tensor part = r == groups_.tp_rank()
                                ? mine.view(parameter.local_shape())
                                : at::empty(parameter.local_shape({r, n}), mine.options());
    if (part.numel() > 0) groups_.tp->broadcast(part, r).wait();
    parts.push_back(part);
  }
  return parameter.logical(parts).cpu();
}

at::Tensor Engine::logical(const Parameter& parameter, const at::Tensor& local,
                           at::ScalarType dtype) const {
  const int owner = owners_.at(&parameter).front();
  if (groups_.dp_rank() != 0) return {};
  const at::Tensor whole =
      groups_.pp_rank() == owner ? joined(parameter, local, dtype) : at::Tensor();
  if (groups_.tp_rank() != 0) return {};
  if (owner == 0) return groups_.pp_rank() == 0 ? whole : at::Tensor();
  constexpr int kTag = (1 << 29) + 1;
  if (groups_.pp_rank() == owner) groups_.pp->send(whole, 0, kTag).wait();
  if (groups_.pp_rank() != 0) return {};
  const at::Tensor room = at::empty(parameter.shape, dtype);
  groups_.pp->receive(room, owner, kTag).wait();
  return room;
}

bool Engine::writes(const Parameter& parameter) const {
  return groups_.pp_rank() == owners_.at(&parameter).front() &&
         std::pair{groups_.dp_rank(), groups_.tp_rank()} == writers_.at(&parameter);
}

at::Tensor Engine::logical_for_writer(const Parameter& parameter, const at::Tensor& local,
                                      at::ScalarType dtype) const {
  if (groups_.pp_rank() != owners_.at(&parameter).front() ||
      groups_.dp_rank() != writers_.at(&parameter).first)
    return {};
  const at::Tensor whole = joined(parameter, local, dtype);
  return writes(parameter) ? whole : at::Tensor();
}

}  // namespace contexture::parallel
