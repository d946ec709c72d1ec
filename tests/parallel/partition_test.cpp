// The exact partitioner against an oracle that tries every acyclic assignment and prices it
// straight from the definition.
#include "parallel/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <iostream>
#include <limits>
#include <random>

#include "core/error.h"
#include "expect_error.h"
#include "small_graphs.h"

namespace contexture::parallel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  Trace trace;
  PartitionOptions options;
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine_); }

 private:
  std::mt19937_64 engine_;
};

// Blocks of small whole times; wires with several readers, skips and side branches; shared
// parameters; caps; links.
Case random_case(uint64_t seed) {
  Random random(seed);
  Case made;
  const int num_stages = seed % 2 == 0 ? 3 : 4;
  const int n = random.between(num_stages, num_stages == 3 ? 12 : 9);
  Trace& trace = made.trace;
  for (int b = 0; b < n; ++b) {
    TraceBlock block =
        small_block("b" + std::to_string(b), random.between(0, 6), random.between(0, 20));
    block.input_grad_s = random.between(0, 4);
    block.weight_grad_s = random.between(0, 4);
    block.resident_bytes = random.chance(0.2) ? random.between(0, 50) : 0;
    block.recompute = random.chance(0.3);
    trace.blocks.push_back(block);
  }
  const double density = random.between(10, 60) / 100.0;
  for (int b = 0; b + 1 < n; ++b) {
    if (random.chance(0.15)) continue;  // a block that nobody reads
    for (int copy = random.between(1, 2); copy > 0; --copy) {
      std::vector<int> readers;
      for (int r = b + 1; r < n; ++r) {
        if (random.chance(density)) readers.push_back(r);
      }
      TraceWire wire = small_wire("w" + std::to_string(trace.wires.size()),
                                  random.between(0, 12) * 4, b, readers);
      wire.gradient = random.chance(0.8);
      if (random.chance(0.3))
        wire.sharing = Sharing::kDocument, wire.distinct_ratio = random.chance(0.5) ? 0.5 : 0.25;
      trace.wires.push_back(wire);
    }
  }
  for (int p = random.between(0, 6); p > 0; --p) {
    const int index = static_cast<int>(trace.parameters.size());
    trace.parameters.push_back({"p" + std::to_string(index), random.between(1, 30)});
    for (int users = random.between(1, 3); users > 0; --users) {
      auto& own = trace.blocks[random.between(0, n - 1)].parameters;
      if (own.empty() || own.back() != index) own.push_back(index);
    }
  }
  PartitionOptions& options = made.options;
  options.num_devices = num_stages;
  options.microbatches = random.between(1, 8);
  options.state_factor = random.between(1, 8);
  if (random.chance(0.3))
    options.sum_weight = 0, options.max_weight = 1, options.byte_weight = 0.05;
  for (int s = 0; s < num_stages; ++s)
    options.ingress.push_back({random.between(0, 2) * 0.25, random.between(0, 4) * 0.125});
  if (random.chance(0.5)) {
    for (int s = 0; s < num_stages; ++s) options.memory_caps.push_back(random.between(100, 600));
  }
  options.shared = static_cast<SharedRule>(random.between(0, 2));
  if (random.chance(0.3))
    options.shared_by_name["p0"] = static_cast<SharedRule>(random.between(0, 2));
  return made;
}

using Users = std::vector<std::vector<int>>;  // [parameter] blocks

Users users_of(const Trace& trace) {
  Users users(trace.parameters.size());
  for (size_t b = 0; b < trace.blocks.size(); ++b) {
    for (const int p : trace.blocks[b].parameters) users[p].push_back(static_cast<int>(b));
  }
  return users;
}

std::vector<SharedRule> rules_of(const Trace& trace, const PartitionOptions& options) {
  std::vector<SharedRule> rules;
  for (const TraceParameter& parameter : trace.parameters) {
    const auto own = options.shared_by_name.find(parameter.name);
    rules.push_back(own == options.shared_by_name.end() ? options.shared : own->second);
  }
  return rules;
}

// From the definition in parallel/partition.h. Infinite when a cap or a rule is broken.
double price(const Trace& trace, const PartitionOptions& options, const Users& users,
             const std::vector<SharedRule>& rules, const std::vector<int>& stage) {
  const int num_stages = options.num_devices;
  std::array<double, 4> time{}, fixed{}, activations{};
  double bytes = 0.0, replicas = 0.0;
  for (size_t b = 0; b < trace.blocks.size(); ++b) {
    const TraceBlock& block = trace.blocks[b];
    time[stage[b]] +=
        block.forward_s * (block.recompute ? 2 : 1) + block.input_grad_s + block.weight_grad_s;
    fixed[stage[b]] += block.resident_bytes;
    activations[stage[b]] += block.activation_bytes;
  }
  for (const TraceWire& wire : trace.wires) {
    unsigned reading = 0;  // a bit for each stage
    for (const int reader : wire.readers) reading |= 1u << stage[reader];
    for (int s = 0; s < num_stages; ++s) {
      if (s == stage[wire.producer] || !(reading >> s & 1)) continue;
      const double sent = wire.bytes * wire.distinct_ratio;
      time[s] += (wire.gradient ? 2 : 1) *
                 (options.ingress[s].latency_s + sent * options.ingress[s].s_per_byte);
      activations[s] += sent;
      bytes += sent;
    }
  }
  for (int p = 0; p < static_cast<int>(trace.parameters.size()); ++p) {
    unsigned using_stages = 0;
    for (const int b : users[p]) using_stages |= 1u << stage[b];
    if ((using_stages & (using_stages - 1)) != 0 && rules[p] == SharedRule::kTogether)
      return kInfinity;
    const double size = static_cast<double>(trace.parameters[p].bytes);
    int copies = 0;
    for (int s = 0; s < num_stages; ++s) {
      if (!(using_stages >> s & 1)) continue;
      fixed[s] += options.state_factor * size;
      if (copies++ == 0) continue;
      if (rules[p] == SharedRule::kReplicated) continue;
      replicas += 2 * (options.ingress[s].latency_s + size * options.ingress[s].s_per_byte);
    }
  }
  double sum = 0.0, largest = 0.0;
  for (int s = 0; s < num_stages; ++s) {
    const int in_flight = std::min(options.microbatches, num_stages - s);
    if (!options.memory_caps.empty() &&
        fixed[s] + in_flight * activations[s] > options.memory_caps[s])
      return kInfinity;
    sum += time[s];
    largest = std::max(largest, time[s]);
  }
  const double max_weight = options.max_weight < 0 ? options.microbatches - 1 : options.max_weight;
  return options.sum_weight * sum + max_weight * largest + options.byte_weight * bytes + replicas;
}

// The least price over all assignments whose wires go forwards and that use every stage.
double least_price(const Trace& trace, const PartitionOptions& options) {
  const int n = static_cast<int>(trace.blocks.size()), num_stages = options.num_devices;
  std::vector<std::vector<int>> reads(n);
  for (const TraceWire& wire : trace.wires) {
    for (const int reader : wire.readers) reads[reader].push_back(wire.producer);
  }
  const Users users = users_of(trace);
  const std::vector<SharedRule> rules = rules_of(trace, options);
  std::vector<int> stage(n, 0);
  double best = kInfinity;
  const std::function<void(int, unsigned)> place = [&](int b, unsigned used) {
    if (b == n) {
      if (used == (1u << num_stages) - 1)
        best = std::min(best, price(trace, options, users, rules, stage));
      return;
    }
    int low = 0;
    for (const int producer : reads[b]) low = std::max(low, stage[producer]);
    for (int s = low; s < num_stages; ++s) {
      stage[b] = s;
      place(b + 1, used | 1u << s);
    }
  };
  place(0, 0);
  return best;
}

TEST(ExactPartition, EqualsBruteForceOn500RandomGraphs) {
  int infeasible = 0, shared = 0, better_than_linear = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const auto [trace, options] = random_case(seed);
    check_trace(trace, "random");
    const double expected = least_price(trace, options);
    if (expected == kInfinity) {
      ++infeasible;
      EXPECT_THROW(partition(trace, options), UserError) << "seed " << seed;
      continue;
    }
    const Plan plan = partition(trace, options);
    // Both sum the same small multiples of 1/32, in another order.
    ASSERT_NEAR(plan.objective, expected, 1e-9 * std::max(1.0, expected)) << "seed " << seed;
    ASSERT_NEAR(
        price(trace, options, users_of(trace), rules_of(trace, options), plan.stage_of_block),
        expected, 1e-9 * std::max(1.0, expected))
        << "seed " << seed;
    EXPECT_TRUE(plan.fits && plan.is_exact);
    for (const ParameterPlace& place : plan.parameters) shared += !place.replica_stages.empty();
    PartitionOptions linear = options;
    linear.partitioner = Partitioner::kLinear;
    linear.memory_caps.clear();
    linear.shared = SharedRule::kReplicated;
    linear.shared_by_name.clear();
    better_than_linear += options.memory_caps.empty() &&
                          plan.objective < partition(trace, linear).objective * (1 - 1e-9);
  }
  // The graphs exercise what they should.
  EXPECT_GT(infeasible, 20);
  EXPECT_LT(infeasible, 200);
  EXPECT_GT(shared, 50);
  EXPECT_GT(better_than_linear, 50);
}

TEST(ExactPartition, BruteForceOfTheLibraryAgreesWithTheOracle) {
  for (uint64_t seed = 1000; seed < 1020; ++seed) {
    auto [trace, options] = random_case(seed);
    if (trace.blocks.size() > 9) continue;
    const Plan plan = brute_force(trace, options);
    const double expected = least_price(trace, options);
    EXPECT_EQ(plan.fits, expected < kInfinity) << "seed " << seed;
    if (plan.fits) {
      EXPECT_NEAR(plan.objective, expected, 1e-9 * std::max(1.0, expected)) << "seed " << seed;
    }
  }
}

// Two chains of 99 blocks, the second reading the first's end in its last layers, and two more: (99
// + 1)^2 downsets at most.
Trace two_chains(int length, int first_reader) {
  Trace trace;
  Random random(7);
  for (int chain = 0; chain < 2; ++chain) {
    for (int i = 0; i < length; ++i) {
      const int b = static_cast<int>(trace.blocks.size());
      trace.blocks.push_back(small_block((chain ? "decoder." : "encoder.") + std::to_string(i),
                                         0.010 + random.between(0, 5) * 0.001, 1 << 20));
      if (i > 0)
        trace.wires.push_back(
            small_wire("hidden" + std::to_string(b), chain ? 4 << 20 : 32 << 20, b - 1, {b}));
    }
  }
  std::vector<int> readers;
  for (int b = length + first_reader; b < 2 * length; ++b) readers.push_back(b);
  trace.blocks.push_back(small_block("head", 0.012, 1 << 20));
  trace.wires.push_back(small_wire("states", 512 << 20, length - 1, readers));
  trace.wires.push_back(small_wire("hidden", 4 << 20, 2 * length - 1, {2 * length}));
  return trace;
}

PartitionOptions many_stages(int num_devices) {
  return {.num_devices = num_devices, .microbatches = 128, .ingress = {{10e-6, 1 / 25e9}}};
}

TEST(ExactPartition, Cuts200BlocksInto64StagesWithinItsDeadline) {
  const Trace trace = two_chains(99, 95);
  for (const int num_devices : {4, 16, 64}) {
    const auto start = std::chrono::steady_clock::now();
    const Plan plan = partition(trace, many_stages(num_devices));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::cout << trace.blocks.size() << " blocks, " << num_devices << " stages, "
              << plan.num_downsets << " downsets: " << seconds << " s\n";
    EXPECT_TRUE(plan.is_exact);
    EXPECT_GT(plan.num_downsets, 9000);
    EXPECT_LT(seconds, 20.0);  // a second here; a loaded machine with sanitizers is slower
    PartitionOptions linear = many_stages(num_devices);
    linear.partitioner = Partitioner::kLinear;
    EXPECT_LE(plan.objective, partition(trace, linear).objective * (1 + 1e-12));
  }
}

TEST(ExactPartition, CallsThePlanABoundBeyondTheLimitOfDownsets) {
  const Trace trace = two_chains(40, 36);
  PartitionOptions options = many_stages(8);
  const Plan exact = partition(trace, options);
  ASSERT_TRUE(exact.is_exact);
  options.max_downsets = 400;
  const Plan bound = partition(trace, options);
  EXPECT_FALSE(bound.is_exact);
  EXPECT_LE(bound.num_downsets, 400);
  EXPECT_GE(bound.objective, exact.objective * (1 - 1e-12));
  EXPECT_LE(bound.lower_bound, exact.objective);
  EXPECT_LE(bound.objective, bound.blind_objective);
  EXPECT_NE(bound.remark.find("A bound: there are more than 400 ways to begin"), std::string::npos)
      << bound.remark;
}

TEST(ExactPartition, NamesTheSmallestNumberOfStagesOrMemoryThatWouldFit) {
  Trace trace = small_chain({{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}}, 0);
  for (TraceBlock& block : trace.blocks) block.resident_bytes = 10;
  PartitionOptions options{.num_devices = 2, .memory_caps = {20}};
  EXPECT_EQ(message_of<UserError>([&] { partition(trace, options); }),
            "no cut into 2 stages keeps 20 bytes a device. 3 stages would. With 2 stages a device "
            "needs 30 bytes.");
  options.memory_caps = {9};
  EXPECT_EQ(message_of<UserError>([&] { partition(trace, options); }),
            "no cut into 2 stages keeps 9 bytes a device. No number of stages would: the largest "
            "block, a, needs 10 bytes alone. "
            "With 2 stages a device needs 30 bytes.");
  options.memory_caps = {30};
  EXPECT_EQ(partition(trace, options).stage_of_block, (std::vector<int>{0, 0, 0, 1, 1, 1}));
}

TEST(ExactPartition, OptimisesMemoryUnderATimeBound) {
  // Memory wants 2 | 4, time wants 3 | 3.
  Trace trace = small_chain({{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}}, 0);
  for (int b = 0; b < 6; ++b) trace.blocks[b].resident_bytes = b < 2 ? 40 : 20;
  PartitionOptions options{.optimize = Optimize::kMemory, .num_devices = 2, .microbatches = 5};
  const Plan smallest = partition(trace, options);
  EXPECT_EQ(smallest.stage_of_block, (std::vector<int>{0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(*std::max_element(smallest.device_memory.begin(), smallest.device_memory.end()), 80);
  EXPECT_EQ(smallest.objective, 6 + 4 * 4);
  options.time_bound = 20;
  const Plan quick = partition(trace, options);
  EXPECT_EQ(quick.stage_of_block, (std::vector<int>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(quick.objective, 6 + 4 * 3);
  options.time_bound = 17;
  EXPECT_EQ(message_of<UserError>([&] { partition(trace, options); }),
            "no cut into 2 stages keeps the time bound 17: the fastest takes 18. Raise the bound "
            "or add devices.");
}

TEST(ExactPartition, CoLocatesOrReplicatesASharedParameterWhicheverCostsLess) {
  // First and last of four blocks share a parameter; side branches, so that together is possible.
  Trace trace;
  trace.blocks = {small_block("a", 2), small_block("b", 2), small_block("c", 2),
                  small_block("d", 2)};
  trace.wires = {small_wire("ab", 1, 0, {1}), small_wire("cd", 1, 2, {3})};
  trace.parameters = {{"tied", 100}};
  trace.blocks[0].parameters = trace.blocks[3].parameters = {0};
  PartitionOptions options{.num_devices = 2, .microbatches = 4, .ingress = {{0.0, 0.001}}};
  const Plan cheap = partition(
      trace,
      options);  // a copy costs 2 * 100 * 0.001 s, co-location would cost two wires or balance
  EXPECT_EQ(cheap.parameters[0].replica_stages.size(), 1u);
  EXPECT_NEAR(cheap.replica_s, 0.2, 1e-12);
  EXPECT_NEAR(cheap.objective, 8 + 3 * 4 + 0.2, 1e-12);
  trace.parameters[0].bytes = 10000000;
  const Plan dear = partition(trace, options);
  EXPECT_TRUE(dear.parameters[0].replica_stages.empty());
  EXPECT_EQ(dear.stage_of_block[0], dear.stage_of_block[3]);
  options.shared_by_name["tied"] = SharedRule::kReplicated;
  EXPECT_EQ(partition(trace, options).replica_s, 0.0);  // as decided, free to the search
  trace.parameters[0].bytes = 1;
  options.shared_by_name["tied"] = SharedRule::kTogether;
  EXPECT_TRUE(partition(trace, options).parameters[0].replica_stages.empty());
}

TEST(ExactPartition, SearchesLocallyWhenLinksDependOnBothEndsAndStatesItsGap) {
  double worst = 1.0;
  int exact_plans = 0;
  for (uint64_t seed = 2000; seed < 2040; ++seed) {
    auto [trace, options] = random_case(seed);
    options.memory_caps.clear();
    options.ingress.clear();
    Random random(seed);
    options.between.assign(options.num_devices, std::vector<Link>(options.num_devices));
    for (auto& row : options.between) {
      for (Link& link : row) link = {random.between(0, 2) * 0.25, random.between(0, 4) * 0.125};
    }
    options.shared = SharedRule::kCheapest;
    options.shared_by_name.clear();
    const Plan plan = partition(trace, options);
    const Plan best = brute_force(trace, options);
    EXPECT_GE(plan.objective, best.objective * (1 - 1e-12)) << "seed " << seed;
    EXPECT_LE(plan.lower_bound, best.objective * (1 + 1e-12)) << "seed " << seed;
    if (plan.is_exact) {
      EXPECT_NEAR(plan.objective, best.objective, 1e-9 * best.objective) << "seed " << seed;
    }
    if (best.objective > 0) worst = std::max(worst, plan.objective / best.objective);
    exact_plans += plan.objective <= best.objective * (1 + 1e-9);
  }
  std::cout << "local search found the best plan in " << exact_plans << " of 40 graphs; worst "
            << worst << " times the best\n";
  // What it reaches on these graphs, whose links differ without limit (some are free); it promises
  // no more than its stated bound.
  EXPECT_LT(worst, 2.0);
  EXPECT_GE(exact_plans, 14);
}

TEST(Partition, RefusesWhatCannotBe) {
  const Trace trace = small_chain({{"a", 1}, {"b", 1}});
  EXPECT_EQ(message_of<UsageError>([&] { partition(trace, {.num_devices = 3}); }),
            "a model of 2 blocks cannot fill 3 stages. Ask for at most 2");
  EXPECT_EQ(message_of<UsageError>([&] {
              partition(trace, {.num_devices = 2, .memory_caps = {1, 2, 3}});
            }),
            "memory_caps has 3 entries for 2 devices. Give one for all, or one each");
  EXPECT_EQ(message_of<UsageError>([] { parse_partitioner("exakt"); }),
            "parallel.partitioner=exakt must be one of exact, linear, tree, pipedream, parameters, "
            "uniform, blind. Did you mean 'exact'?");
  EXPECT_THROW(evaluate(trace, {1, 0}, {0, 1}, {.num_devices = 2}), Bug);  // a wire backwards
}

}  // namespace
}  // namespace contexture::parallel
