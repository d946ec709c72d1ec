// What the partitioner and the planner know of a model: its blocks and wires with their costs, for
// a typical microbatch.
#pragma once
#include "parallel/engine.h"
#include "parallel/partition.h"
#include "train/config.h"

namespace contexture::train {

// A microbatch of a replica as large as the settings allow: questions, documents and answers at
// their greatest lengths, every input and document with a picture, documents shared by the examples
// of a group (data.group_size).
model::Microbatch typical_microbatch(const RunConfig& config);

// From shapes alone: FLOPs, bytes of parameters, wires and (estimated) activations; no weights are
// allocated, so a model of any size takes milliseconds. timed: also runs each kind of block, its
// weights drawn and freed again, a few times on run.threads threads (which then stay set), and puts
// in the fastest forward, input gradient and weight gradient, the bytes that a forward leaves
// behind and the most at any moment as the allocator saw them; or what was measured so before
// (train/trace_cache.h).
parallel::Trace trace_model(const RunConfig& config, const model::Model& shapes,
                            bool timed = false);

// How a run's blocks are cut into num_devices stages: its microbatches, what it minimises, its rule
// for shared parameters, the state that its ranks keep, and the links of its cluster: those between
// nodes if stages lie on different ones, given the mesh's order. A device may take
// parallel.memory_gb, its share of an index of so many documents included (all of it on the first
// where retriever.sharded=false).
parallel::PartitionOptions partition_options(const RunConfig& config,
                                             const std::string& partitioner, int num_devices,
                                             int64_t documents);

// Cuts a trace that has times so. UserError where parallel.memory_gb is not kept.
parallel::Plan partition_for(const RunConfig& config, const parallel::Trace& trace,
                             const std::string& partitioner, int num_devices,
                             int64_t documents = 0);

// Where a run's blocks go: where parallel.stages says, or parallel.partitioner by name; those that
// weigh work (exact, linear, tree, pipedream) look at trace_model(). documents: of the corpus.
parallel::Placement placement_of(const RunConfig& config, const model::Model& shapes,
                                 const parallel::Groups& groups, int64_t documents = 0);

}  // namespace contexture::train
