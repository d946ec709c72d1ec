// One rank of the experiment "tensor parallelism over slow links, or a pipeline across them"
// (headline.py starts four, in two network namespaces): transformer layers whose products sleep and
// whose communication is real, so that two cores can stand in for four GPUs. Prints, on rank 0, the
// median step, the bytes sent, and what cost model and simulator predict.
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <thread>

#include "core/error.h"
#include "core/json.h"
#include "core/timing.h"
#include "model/tensor_parallel.h"
#include "parallel/cluster.h"
#include "parallel/launch_env.h"
#include "parallel/link_timing.h"
#include "parallel/mesh.h"
#include "parallel/pipeline.h"

namespace contexture {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void sleep_s(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// The work of a branch: takes `seconds` forward and twice that backward; the tensor passes.
struct Work : torch::autograd::Function<Work> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double seconds) {
    context->saved_data["seconds"] = seconds;
    sleep_s(seconds);
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    sleep_s(2 * context->saved_data["seconds"].toDouble());
    return {grads[0], at::Tensor()};
  }
};

// Two branches (attention, feed-forward), each entered and left over the tensor-parallel group, as
// in Megatron's layers.
class Layer : public parallel::Block {
 public:
  Layer(parallel::ParameterStore& store, int index, double seconds)
      : Block(concat("layer.", index),
              index == 0 ? std::vector<std::string>{} : std::vector{concat("h.", index)},
              {concat("h.", index + 1)}),
        tp_(store.tp()),
        seconds_(seconds / store.part().size / 2),
        scale_(1.0 / store.part().size) {
    bias_ = &use(store, concat("layer.", index, ".bias"), {1}, parallel::Init::constant(0.0));
  }
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override {
    at::Tensor x = (inputs.empty() ? pass.feed("x") : inputs[0]) + bias_->value;
    for (int branch = 0; branch < 2; ++branch) {
      const at::Tensor partial =
          Work::apply(model::tensor_parallel::spread(x, tp_), seconds_) * scale_;
      x = model::tensor_parallel::reduce(partial, tp_);
    }
    return {x};
  }
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override {
    return {{pass.feed("x").sizes().vec(), at::kFloat}};
  }

 private:
  parallel::Communicator* tp_;
  double seconds_, scale_;
  const parallel::Parameter* bias_;
};

struct Options {
  int tp = 1, layers = 4, microbatches = 8, steps = 3;
  int64_t elements = 0;  // of a hidden state
  double layer_s = 0.0;  // a layer's forward on one device
};

// A link's two numbers, from messages of two sizes between two ranks; the same on all ranks.
parallel::Link measure_link(parallel::Communicator& world, int a, int b) {
  std::vector<parallel::MessageTime> times;
  for (const int64_t bytes : {int64_t{1}, int64_t{1} << 21}) {
    world.barrier();  // ranks that have no part in it wait here
    if (world.rank() != a && world.rank() != b) continue;
    times.push_back(
        {static_cast<double>(bytes), parallel::one_way_s(world, a, b, bytes, /*repeats=*/11)});
  }
  const parallel::Link mine = world.rank() == a ? parallel::fit_link(times) : parallel::Link();
  const at::Tensor numbers = at::tensor({mine.latency_s, mine.s_per_byte}, at::kDouble);
  world.broadcast(numbers, a).wait();
  return {numbers[0].item<double>(), numbers[1].item<double>()};
}

// What all-reduces inside the nodes, all at once, make of the link there: two numbers of the ring
// formula.
parallel::Link measure_inside(parallel::Communicator& world) {
  const int n = world.size() / 2;
  if (n == 1) return {};
  std::shared_ptr<parallel::Communicator> node;
  for (int first = 0; first < world.size(); first += n) {
    std::vector<int> ranks;
    for (int r = first; r < first + n; ++r) ranks.push_back(r);
    const auto group = world.subgroup(ranks, concat("node ", first / n));
    if (group != nullptr) node = group;
  }
  const auto seconds = [&](int64_t elements) {
    const at::Tensor buffer = at::zeros({elements}, at::kFloat);
    std::vector<double> all;
    world.barrier();
    for (int i = 0; i < 40; ++i) {
      const double start = now_s();
      node->all_reduce(buffer).wait();
      all.push_back(now_s() - start);
    }
    return median(std::move(all));
  };
  const int64_t large = 1 << 18;
  const double t_small = seconds(1), t_large = seconds(large);
  const double bytes = 4.0 * static_cast<double>(large);
  const at::Tensor numbers = at::tensor(
      {t_small / (2 * (n - 1)), (t_large - t_small) / (2.0 * (n - 1) / n * bytes)}, at::kDouble);
  world.broadcast(numbers, 0).wait();
  return {numbers[0].item<double>(), numbers[1].item<double>()};
}

// A ring all-reduce over both nodes: two of its n hops cross. A crossing hop passes 2 (n - 1)
// chunks one after the other and has not to wait for its latency between them, unless the way of
// one chunk around the ring is longer than that.
double ring_over_nodes_s(int n, double bytes, const parallel::Link& inside,
                         const parallel::Link& across) {
  const double steps = 2.0 * (n - 1), crossings = std::ceil(steps * 2 / n), chunk = bytes / n;
  return std::max(across.latency_s + steps * chunk * across.s_per_byte,
                  crossings * across.seconds(chunk) + (steps - crossings) * inside.seconds(chunk));
}

// A stage's forward and backward: work over tp ranks and two all-reduces a layer each way; messages
// between stages leave from all tp ranks of a node at once and share its link.
double predicted_step_s(const Options& o, int pp, const parallel::Link& inside,
                        const parallel::Link& across) {
  const double bytes = static_cast<double>(o.elements) * 4;
  const double all_reduce = pp == 1 ? ring_over_nodes_s(o.tp, bytes, inside, across)
                                    : parallel::ring_all_reduce_s(o.tp, bytes, inside);
  const double layers = static_cast<double>(o.layers) / pp;
  parallel::StageGraph graph = parallel::chain(pp);
  parallel::StageTimes times = parallel::unit_times(pp);
  for (int s = 0; s < pp; ++s) {
    times.forward[s] = layers * (o.layer_s / o.tp + 2 * all_reduce);
    times.input_grad[s] = layers * (2 * o.layer_s / o.tp + 2 * all_reduce);
    times.weight_grad[s] = 0.0;
  }
  times.transfer.assign(graph.edges.size(), across.latency_s + o.tp * bytes * across.s_per_byte);
  const parallel::Schedule schedule = parallel::make_1f1b(graph, o.microbatches);
  return parallel::simulate(graph, schedule, times).makespan;
}

int run(const Options& o) {
  at::set_num_threads(1);
  const parallel::LaunchEnv env = parallel::detect_launch(parallel::process_environment());
  const auto world = parallel::connect(env.rendezvous, "gloo", 60);
  const int pp = world->size() / o.tp;
  const auto mesh = std::make_shared<const parallel::Mesh>(world, 1, pp, o.tp);
  const parallel::Link inside = measure_inside(*world),
                       across = measure_link(*world, 0, world->size() / 2);
  parallel::ParameterStore store(std::shared_ptr<parallel::Communicator>(mesh, &mesh->tp()));
  parallel::BlockList blocks;
  for (int i = 0; i < o.layers; ++i) blocks.push_back(std::make_unique<Layer>(store, i, o.layer_s));
  store.materialise(at::kFloat, at::kCPU, 1);
  std::shared_ptr<parallel::Communicator> stages;
  if (pp > 1) stages = std::shared_ptr<parallel::Communicator>(mesh, &mesh->pp());
  parallel::Pipeline pipeline(blocks, parallel::place_in_order(blocks, "uniform", pp, 1, false),
                              "1f1b", stages);
  const parallel::Feeds feeds{{"x", at::ones({o.elements}, at::kFloat)}};
  const parallel::Pass pass(feeds, true);
  const std::vector<const parallel::Pass*> passes(o.microbatches, &pass);
  const std::string last = concat("h.", o.layers);
  std::vector<double> seconds;
  for (int step = 0; step <= o.steps; ++step) {
    world->barrier();
    const double start = now_s();
    pipeline.forward_backward(passes, [&](int, const parallel::ForwardPass& forward) {
      if (!forward.has(last)) return parallel::WireValues();
      CONTEXTURE_INVARIANT(forward.wire(last)[0].item<float>() == 1.0f,
                           "the layers pass their input on");
      return parallel::WireValues{{last, at::ones({o.elements}, at::kFloat)}};
    });
    world->barrier();
    if (step > 0) seconds.push_back(now_s() - start);  // the first connects pairs
  }
  if (world->rank() == 0) {
    const auto describe = [](const parallel::Link& link) {
      return Json{{"latency_s", link.latency_s}, {"bytes_per_s", 1 / link.s_per_byte}};
    };
    std::cout << Json{{"step_s", median(seconds)},
                      {"predicted_s", predicted_step_s(o, pp, inside, across)},
                      {"inside", describe(inside)},
                      {"across", describe(across)}}
                     .dump()
              << std::endl;
  }
  world->barrier();
  return 0;
}

}  // namespace
}  // namespace contexture

// layout_bench TP LAYERS MICROBATCHES STEPS ELEMENTS LAYER_S
int main(int argc, char** argv) {
  if (argc != 7) {
    std::cerr << "usage: layout_bench TP LAYERS MICROBATCHES STEPS ELEMENTS LAYER_SECONDS, as a "
                 "rank of a launcher\n";
    return 2;
  }
  contexture::Options o;
  o.tp = std::stoi(argv[1]);
  o.layers = std::stoi(argv[2]);
  o.microbatches = std::stoi(argv[3]);
  o.steps = std::stoi(argv[4]);
  o.elements = std::stoll(argv[5]);
  o.layer_s = std::stod(argv[6]);
  try {
    return contexture::run(o);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
