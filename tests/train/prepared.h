// A session with its index, and one step of it looked up: where most tests of the training step
// begin.
#pragma once
#include <gtest/gtest.h>

#include "train/step.h"

namespace contexture::train {

struct Prepared {
  explicit Prepared(const RunConfig& config, int64_t step_number = 0, parallel::Groups groups = {})
      : session(config, bad, std::move(groups)) {
    session.make_retriever();
    maker = std::make_unique<StepMaker>(session.config(), session.encoder(), session.documents(),
                                        session.tokenizer(), bad);
    step = maker->make(step_number);
    lookup = look_up(session.config(), session, step);
  }
  Assembled assembled() {
    return assemble(session.config(), share_of(session.config(), session.engine().groups()),
                    session.documents(), step, lookup);
  }
  StepStats forward_backward() {
    return train::forward_backward(session.config(), session.model(), session.engine(), step,
                                   assembled(), &lookup);
  }
  data::BadRecords bad;
  Session session;
  std::unique_ptr<StepMaker> maker;  // owns what the step points at
  PreparedStep step;
  Lookup lookup;
};

// Gradients of total() by parameter name, against central differences along a random direction per
// tensor.
template <typename Total>
void expect_differences(Session& session, const std::map<std::string, at::Tensor>& grads,
                        const Total& total) {
  const double h = 1e-5;  // error of order h^2, and rounding over h
  for (const auto& [name, grad] : grads) {
    at::Tensor value = session.model().parameters().at(name).value.detach();
    const at::Tensor direction = parallel::draw_initial("direction:" + name, value.sizes().vec(),
                                                        parallel::Init::normal(1.0), 5);
    const at::Tensor before = value.clone();
    value.copy_(before + h * direction);
    const double above = total();
    value.copy_(before - h * direction);
    const double below = total();
    value.copy_(before);
    const double expected = (grad * direction).sum().template item<double>();
    EXPECT_NEAR((above - below) / (2 * h), expected, 1e-5 * std::max(1.0, std::abs(expected)))
        << name;
  }
}

}  // namespace contexture::train
