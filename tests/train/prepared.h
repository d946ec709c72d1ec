// A session with its index, and one step of it looked up: where most tests of the training step begin.
#pragma once
#include "train/step.h"

namespace contexture::train {

struct Prepared {
  explicit Prepared(const RunConfig& config, int64_t step_number = 0, parallel::Groups groups = {})
      : session(config, bad, std::move(groups)) {
    session.make_retriever();
    maker = std::make_unique<StepMaker>(session.config(), session.encoder(), session.documents(), session.tokenizer(), bad);
    step = maker->make(step_number);
    lookup = look_up(session.config(), session, step);
  }
  Assembled assembled() {
    return assemble(session.config(), share_of(session.config(), session.engine().groups()), session.documents(), step, lookup);
  }
  StepStats forward_backward() {
    return train::forward_backward(session.config(), session.model(), session.engine(), step, assembled(), &lookup);
  }
  data::BadRecords bad;
  Session session;
  std::unique_ptr<StepMaker> maker;  // owns what the step points at
  PreparedStep step;
  Lookup lookup;
};

}  // namespace contexture::train
