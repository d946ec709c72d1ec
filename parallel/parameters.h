// Parameters: named logical tensors, declared once and shared by name. A parameter knows how it is
// initialised; its values depend on the seed and its own name only, never on the order of declaration nor on
// which process owns it. Declared parameters are shapes without memory until materialise() is called, so
// that a model of any size can be counted and traced.
#pragma once
#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace contexture::parallel {

struct Init {
  enum class Kind { kNormal, kConstant } kind = Kind::kConstant;
  double value = 0.0;  // standard deviation, or the constant
  static Init normal(double std) { return {Kind::kNormal, std}; }
  static Init constant(double c) { return {Kind::kConstant, c}; }
};

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  Init init;
  at::Tensor value;       // autograd leaf in the compute dtype; on the meta device until materialised
  at::Tensor grad;        // sum over the microbatches of a step, fp32 (fp64 in an fp64 model); undefined before
  bool trainable = true;  // false: no gradient is computed
  int64_t numel() const;
};

// Owns the parameters; addresses stay valid for the store's life. Not thread-safe.
class ParameterStore {
 public:
  // Declares a parameter, or returns the one that already has this name: that is how blocks share weights.
  // Throws Bug when the shapes differ.
  Parameter& declare(const std::string& name, std::vector<int64_t> shape, Init init);
  Parameter* find(const std::string& name);
  Parameter& at(const std::string& name);  // throws Bug when there is none

  // Allocates and draws every value. dtype: kFloat, kBFloat16 or kDouble. Draws are counter-based per element
  // (Philox keyed by seed and name) in fp64, then rounded.
  void materialise(at::ScalarType dtype, at::Device device, uint64_t seed);
  void zero_grad();  // forgets the gradients

  // Copies values (not gradients) from a store with the same names. For snapshots.
  void copy_values_from(const ParameterStore& other);

  const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }
  int64_t num_elements() const;

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;  // in order of declaration
  std::map<std::string, Parameter*> by_name_;
};

// The dtype that sums and masters take for a compute dtype: double for double, else float.
at::ScalarType wide_dtype(at::ScalarType compute);

// The initial values of a parameter, fp64 or fp32, [shape]. Exposed for tests and for sharded owners.
at::Tensor draw_initial(const std::string& name, const std::vector<int64_t>& shape, const Init& init, uint64_t seed);

}  // namespace contexture::parallel
