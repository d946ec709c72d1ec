// AdamW (Loshchilov and Hutter, arXiv:1711.05101: decoupled weight decay) over fp32 masters (fp64
// in an fp64 model), with parameter groups chosen by name.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "parallel/checkpoint.h"
#include "parallel/engine.h"
#include "parallel/parameters.h"

namespace contexture::train {

struct ParameterGroup {
  std::string match;  // a parameter belongs to the last group whose text its name contains
  double rate = 1.0;
  double decay = 1.0;
  bool frozen = false;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("match", match,
          "parameters whose name contains this; the last group that matches counts");
    visit("rate", rate, "multiplies the learning rate");
    visit("decay", decay, "multiplies the weight decay");
    visit("frozen", frozen, "no gradient, no update");
  }
};

struct OptimizerConfig {
  double rate = 1e-3;
  int64_t warmup_steps = 100;
  double final_rate = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.98;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  double max_grad_norm = 1.0;
  std::vector<ParameterGroup> groups;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("rate", rate, "peak learning rate");
    visit("warmup_steps", warmup_steps, "steps of linear warm-up");
    visit("final_rate", final_rate, "share of the peak that the cosine ends at");
    visit("beta1", beta1, "decay of the first moment");
    visit("beta2", beta2, "decay of the second moment");
    visit("epsilon", epsilon, "added to the root of the second moment");
    visit("weight_decay", weight_decay,
          "decoupled decay of matrices; vectors (norms, gates, roles) have none");
    visit("max_grad_norm", max_grad_norm, "gradients are scaled down to this norm; 0: no clipping");
    visit("groups", groups, "parameter groups by name: rate, decay, frozen");
  }
  void validate() const;
};

// Linear warm-up, then a cosine from `rate` down to final_rate * rate at `steps`. step counts from
// 0.
double rate_at(const OptimizerConfig& config, int64_t step, int64_t steps);

// Sets Parameter::trainable by the groups. Before an Engine is made. Throws UsageError for a group
// that matches no parameter.
void apply_groups(const OptimizerConfig& config, parallel::ParameterStore& store);

// Updates this rank's shares of the parameters. In a layout of many ranks every rank has one, and
// all its calls are collective.
class AdamW {
 public:
  // Takes the masters from the current values. The engine must outlive this. offload:
  // parallel.offload; what is not kept on the device is updated on the host, parameter by
  // parameter, to the same bits where both are CPUs.
  AdamW(const OptimizerConfig& config, parallel::Engine& engine,
        const std::string& offload = "device");

  // Norm of all gradients together, every parameter counted once, and scales them so that it is at
  // most max_grad_norm. The returned norm is the one before; NaN or infinity if any gradient is
  // (they then stay as they are). loss_scale: what the gradients are too large by; it is taken out
  // first.
  double clip(double loss_scale = 1.0);
  // One update with the shares' gradients. Writes the values back in the compute dtype, and to all
  // replicas.
  void step(double rate);

  // Bytes of moments, and of masters where they are not the values themselves, wherever they are.
  int64_t state_bytes() const;

  // Masters, moments and the count of updates, by parameter name, whole: each on one of the ranks.
  // copies: none of them is this optimizer's own memory.
  void save(parallel::NamedTensors& model, parallel::NamedTensors& optimizer,
            bool copies = false) const;
  // Takes this rank's shares of them. Throws DataError listing what is missing or has another
  // shape.
  void load(const parallel::NamedTensors& model, const parallel::NamedTensors& optimizer);
  // Takes other starting values, whole, exactly into the masters: of the parameters that this rank
  // has a share of, those for which `value` is not undefined. Collective.
  void start_from(const std::function<at::Tensor(const parallel::Parameter&)>& value);

 private:
  struct Slot {
    parallel::Shard* shard;
    at::Tensor master, first, second, count;
    double rate, decay;
  };
  std::map<const parallel::Parameter*, const Slot*> slots_by_parameter() const;
  void update(const std::vector<Slot*>& slots, double rate, double decay) const;
  OptimizerConfig config_;
  parallel::Engine* engine_;
  std::vector<Slot> slots_;
  bool apart_;  // masters and moments are not where the values are
};

// Sets the values of this rank's parameters from a "model" file of a checkpoint. Throws DataError
// listing what is missing or misshapen.
void load_parameters(parallel::Engine& engine, const parallel::NamedTensors& model);

}  // namespace contexture::train
