#include "train/parity.h"

#include <algorithm>
#include <cmath>

#include "train/optimizer.h"
#include "train/step.h"

namespace contexture::train {

Outcome outcome_of(const RunConfig& given, parallel::Groups groups, int64_t steps) {
  data::BadRecords bad(data::BadRecords::parse_policy(given.data.bad_records));
  Session session(given, bad, std::move(groups));
  const RunConfig& config = session.config();
  parallel::Engine& engine = session.engine();
  AdamW optimizer(config.optimizer, engine, config.parallel.offload);
  session.start_weights(optimizer);
  session.make_retriever();
  const StepMaker maker(session.config(), session.encoder(), session.documents(),
                        session.tokenizer(), bad);
  Outcome out;
  for (int64_t s = 0; s < steps; ++s) {
    const Share share = share_of(config, engine.groups());
    PreparedStep step = maker.make(s, prepared_share(config, engine.groups()));
    Lookup lookup = look_up(config, session, step);
    group(config, session, step, lookup);
    const StepStats stats =
        forward_backward(config, session.model(), engine, step,
                         assemble(config, share, session.documents(), step, lookup));
    out.losses.push_back(stats.loss);
    out.contrastive.push_back(stats.contrastive);
    for (const auto& [name, value] : stats.objectives) out.objectives.push_back(value);
    for (const auto& p : session.model().parameters().all()) {
      if (s > 0 || !p->trainable) continue;
      const parallel::Shard* shard = engine.sharding().find(*p);
      const at::Tensor local =
          shard != nullptr ? engine.sharding().whole(*shard, shard->grad) : at::Tensor();
      const at::Tensor whole =
          engine.logical(*p, local, parallel::wide_dtype(session.model().dtype()));
      if (whole.defined()) out.gradients[p->name] = whole.clone();
    }
    out.grad_norms.push_back(optimizer.clip());
    optimizer.step(rate_at(config.optimizer, s, config.train.steps));
  }
  for (const auto& p : session.model().parameters().all()) {
    const at::Tensor local = engine.owned(*p) ? engine.sharding().whole_value(*p) : at::Tensor();
    const at::Tensor whole = engine.logical(*p, local, session.model().dtype());
    if (whole.defined()) out.parameters[p->name] = whole.clone();
  }
  return out;
}

Difference compare(const Outcome& want, const Outcome& got) {
  Difference out;
  const auto scalars = [&](const std::vector<double>& a, const std::vector<double>& b) {
    for (size_t s = 0; s < a.size(); ++s)
      out.loss = std::max(out.loss, std::abs(a[s] - b.at(s)) / std::max(std::abs(a[s]), 1e-9));
  };
  scalars(want.losses, got.losses);
  scalars(want.contrastive, got.contrastive);
  scalars(want.objectives, got.objectives);
  scalars(want.grad_norms, got.grad_norms);
  double worst = -1.0;
  const auto tensors = [&](const parallel::NamedTensors& a, const parallel::NamedTensors& b,
                           double& most) {
    double largest = 0.0;
    for (const auto& [name, value] : a) largest = std::max(largest, value.norm().item<double>());
    for (const auto& [name, value] : a) {
      const double norm = std::max({value.norm().item<double>(), 1e-6 * largest, 1e-300});
      const double difference = (value - b.at(name)).norm().item<double>() / norm;
      most = std::max(most, difference);
      if (difference <= worst) continue;
      worst = difference;
      out.worst_parameter = name;
    }
  };
  tensors(want.gradients, got.gradients, out.gradient);
  tensors(want.parameters, got.parameters, out.step);
  return out;
}

Difference verify_parity(RunConfig config, parallel::Groups groups) {
  constexpr int64_t kSteps = 10;
  config.train.precision = "fp64";
  config.parallel.dp = groups.dp_size();
  const bool first = groups.rank() == 0;
  const std::shared_ptr<parallel::Communicator> world = groups.world;
  const Outcome got = outcome_of(config, std::move(groups), kSteps);
  Difference out;
  if (world) world->set_deadline(1e6);  // the others wait for rank 0's own run
  if (first) {
    const parallel::ParallelConfig alone;
    config.parallel = alone;
    config.parallel.dp = 1;
    out = compare(outcome_of(config, {}, kSteps), got);
  }
  if (world) world->barrier();
  return out;
}

}  // namespace contexture::train
