// A model on many ranks: the pipeline of this rank's replica, the sharing of state over replicas,
// and what has to be agreed on by all. With one process it is the plain executor and costs nothing.
#pragma once
#include "parallel/config.h"
#include "parallel/mesh.h"
#include "parallel/pipeline.h"
#include "parallel/sharding.h"
#include "parallel/slicer.h"

namespace contexture::parallel {

// The communicators a rank belongs to; null where the axis has one rank. replica: all ranks with
// this one's dp coordinate.
struct Groups {
  std::shared_ptr<Communicator> world, dp, pp, tp, replica;
  // Only where some ranks do not train but embed documents for the index (groups_of below): all of
  // the run, those that train first; and rank 0 with those that do not, null on the others.
  std::shared_ptr<Communicator> all = nullptr, office = nullptr;
  int rank() const { return world ? world->rank() : all ? all->rank() : 0; }
  Communicator* everyone() const { return all ? all.get() : world.get(); }  // null: one process
  bool refreshes() const { return office && office->rank() > 0; }  // this rank does not train
  int dp_rank() const { return dp ? dp->rank() : 0; }
  int dp_size() const { return dp ? dp->size() : 1; }
  int pp_rank() const { return pp ? pp->rank() : 0; }
  int pp_size() const { return pp ? pp->size() : 1; }
  int tp_rank() const { return tp ? tp->rank() : 0; }
  bool first_of_replica() const { return pp_rank() == 0 && tp_rank() == 0; }
};

// A mesh's groups. They keep the mesh alive.
Groups groups_of(const std::shared_ptr<const Mesh>& mesh);
// The groups of a rank of `all`, the last refresh_ranks of which do not train: the others are the
// mesh. Those that do not have `all` and `office` alone. Collective.
Groups groups_of(const std::shared_ptr<Communicator>& all, const ParallelConfig& config,
                 int refresh_ranks = 0);

// Where the blocks of a model go. Throws UsageError when the configuration cannot hold it.
Placement placement_for(const ParallelConfig& config, const BlockList& blocks,
                        const Groups& groups);

class Engine {
 public:
  // The store's owned values (owns()) must be materialised and Parameter::trainable be final. All
  // references must outlive this.
  Engine(const ParallelConfig& config, Groups groups, Placement placement, const BlockList& blocks,
         ParameterStore& store);

  // Whether a pipeline rank has the parameter under a placement.
  static bool owns(const Placement& placement, const BlockList& blocks, const Parameter& parameter,
                   int pp_rank);

  Pipeline& pipeline() { return *pipeline_; }
  Sharding& sharding() { return *sharding_; }
  Slicer& slicer() { return *slicer_; }
  const Groups& groups() const { return groups_; }

  // The sum over all parameters' numbers, each counted once, of what every rank holds of them.
  double sum_over_parameters(double mine) const;
  // From the first rank of the replica to its other ranks.
  void share_in_replica(const at::Tensor& tensor) const;
  // Rows of all replicas, one below another, equal in width; the counts may differ.
  at::Tensor gather_rows(const at::Tensor& mine) const;

  // The whole of a parameter-like tensor (this rank's local part of it in any shape; undefined on
  // ranks that do not own the parameter), on world rank 0, on the CPU; undefined elsewhere.
  // Collective over the world.
  at::Tensor logical(const Parameter& parameter, const at::Tensor& local,
                     at::ScalarType dtype) const;
  // The same on the one rank that writes this parameter to checkpoints (writers share the bytes
  // evenly); undefined elsewhere.
  at::Tensor logical_for_writer(const Parameter& parameter, const at::Tensor& local,
                                at::ScalarType dtype) const;
  bool writes(const Parameter& parameter) const;
  const ParameterStore& store() const { return *store_; }
  bool owned(const Parameter& parameter) const { return owned_.count(&parameter) != 0; }

 private:
  at::Tensor joined(const Parameter& parameter, const at::Tensor& local,
                    at::ScalarType dtype) const;
  Groups groups_;
  const ParameterStore* store_;
  std::set<const Parameter*> owned_;
  std::map<const Parameter*, std::vector<int>> owners_;  // pipeline ranks
  std::map<const Parameter*, std::pair<int, int>>
      writers_;  // dp and tp coordinate, at the first owner
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Sharding> sharding_;
  std::unique_ptr<Slicer> slicer_;
};

// Names of the blocks that `prefixes` (names, prefixes, or "all") choose. Throws UsageError for one
// that matches none.
std::set<std::string> chosen_blocks(const std::vector<std::string>& prefixes,
                                    const BlockList& blocks);

}  // namespace contexture::parallel
