// Models that are nothing but wires and time, on ranks that are threads.
#pragma once
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <chrono>
#include <thread>

#include "parallel/deferred_gradients.h"
#include "parallel/pipeline.h"

namespace contexture::parallel::testing {

inline void rest(double seconds) {
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// x times a weight [1], as the linear operator does it: the weight's gradient is a piece of work of
// its own, which a schedule may put off. Both gradients take a given time.
struct SleepingProduct : torch::autograd::Function<SleepingProduct> {
  using Variables = torch::autograd::variable_list;
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, double backward_s, double weight_s) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["backward_s"] = backward_s;
    ctx->saved_data["weight_s"] = weight_s;
    return x * weight;
  }
  static Variables backward(torch::autograd::AutogradContext* ctx, const Variables& grads) {
    const Variables saved = ctx->get_saved_variables();
    const at::Tensor x = saved[0], weight = saved[1], dy = grads[0];
    rest(ctx->saved_data["backward_s"].toDouble());
    const auto of_weight = [x, dy, seconds = ctx->saved_data["weight_s"].toDouble()] {
      rest(seconds);
      return (dy * x).sum().view({1});
    };
    at::Tensor dw;
    if (Deferred* deferred = Deferred::active()) {
      deferred->add({weight, of_weight});
    } else {
      dw = of_weight();
    }
    return {dy * weight, dw, at::Tensor(), at::Tensor()};
  }
};

// y = the sum of its inputs, times a weight; takes a given time.
class Sleeper : public Block {
 public:
  Sleeper(ParameterStore& store, const std::string& name, std::vector<std::string> in,
          std::string out, double seconds = 0.0)
      : Block(name, std::move(in), {std::move(out)}), seconds_(seconds) {
    weight_ = &use(store, name + ".weight", {1}, Init::constant(1.5));
  }
  Tensors forward(const Tensors& inputs, const Pass& pass) const override {
    rest(forward_s(pass));
    at::Tensor sum = inputs.empty() ? pass.feed("x") : inputs[0];
    for (size_t i = 1; i < inputs.size(); ++i) sum = sum + inputs[i];
    return {SleepingProduct::apply(sum, weight_->value, backward_s(pass), weight_s(pass))};
  }
  std::vector<WireShape> shapes(const Pass& pass) const override {
    return {{pass.feed("x").sizes().vec(), at::kDouble}};
  }

 protected:
  virtual double forward_s(const Pass&) const { return seconds_; }
  virtual double backward_s(const Pass&) const { return seconds_; }  // of the input's gradient
  virtual double weight_s(const Pass&) const { return 0.0; }         // of the weight's

 private:
  double seconds_;
  const Parameter* weight_;
};

// All three pieces of work take as long.
class EvenSleeper : public Sleeper {
 public:
  using Sleeper::Sleeper;

 protected:
  double weight_s(const Pass& pass) const override { return forward_s(pass); }
};

struct SleepingModel {
  ParameterStore store;
  BlockList blocks;
};

// Calls body(rank's communicator) on `ranks` threads.
template <typename Body>
void on_ranks(int ranks, const Body& body, bool by_order = false) {
  const auto communicators = make_thread_communicators(ranks, /*deadline_s=*/60.0, by_order);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      at::set_num_threads(1);
      body(ranks == 1 ? nullptr : communicators[r], r);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace contexture::parallel::testing
