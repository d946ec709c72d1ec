// Models that are nothing but wires and time, on ranks that are threads.
#pragma once
#include <ATen/Parallel.h>

#include <chrono>
#include <thread>

#include "parallel/pipeline.h"

namespace contexture::parallel::testing {

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
    const at::Tensor y = sum * weight_->value;
    const double back = backward_s(pass);
    if (y.requires_grad() && back > 0) y.register_hook([back](const at::Tensor&) { rest(back); });
    return {y};
  }
  std::vector<WireShape> shapes(const Pass& pass) const override {
    return {{pass.feed("x").sizes().vec(), at::kDouble}};
  }

 protected:
  virtual double forward_s(const Pass&) const { return seconds_; }
  virtual double backward_s(const Pass&) const { return seconds_; }

 private:
  static void rest(double seconds) {
    if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  double seconds_;
  const Parameter* weight_;
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
