// Parameters: named logical tensors, declared once and shared by name. A parameter knows how it is
// initialised; its values depend on the seed and its own name only, never on the order of
// declaration nor on which process owns it. Declared parameters are shapes without memory until
// materialise() is called, so that a model of any size can be counted and traced.
#pragma once
#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace contexture::parallel {

class Communicator;

struct Init {
  enum class Kind { kNormal, kConstant } kind = Kind::kConstant;
  double value = 0.0;  // standard deviation, or the constant
  static Init normal(double std) { return {Kind::kNormal, std}; }
  static Init constant(double c) { return {Kind::kConstant, c}; }
};

// How tensor-parallel ranks share a parameter: each keeps its part of every run of rows (dim 0) or
// columns (dim 1). A fused projection of queries, keys and values has three runs. Runs are cut into
// multiples of `unit` as equal as can be.
struct Split {
  int dim = -1;               // -1: every rank keeps the whole
  std::vector<int64_t> runs;  // their sizes add up to shape[dim]
  int64_t unit = 1;
};

// Where a rank stands in its tensor-parallel group.
struct Part {
  int rank = 0, size = 1;
};

// The begin and end of a rank's part of `count` things.
std::pair<int64_t, int64_t> part_of(int64_t count, Part part);

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;  // logical
  Init init;
  Split split;
  Part part;
  at::Tensor value;  // this rank's part: autograd leaf in the compute dtype; on the meta device
                     // until materialised
  at::Tensor
      grad;  // sum over the microbatches of a step, fp32 (fp64 in an fp64 model); undefined before
  bool trainable = true;  // false: no gradient is computed
  int64_t numel() const;  // of the logical tensor
  bool is_split() const { return split.dim >= 0 && part.size > 1; }
  std::vector<int64_t> local_shape() const { return local_shape(part); }
  std::vector<int64_t> local_shape(Part part) const;
  // A part of a logical tensor (a copy if split), and the reverse: parts of all ranks, in order, to
  // the logical tensor.
  at::Tensor local(const at::Tensor& logical) const;
  at::Tensor logical(const std::vector<at::Tensor>& parts) const;
};

// Owns the parameters; addresses stay valid for the store's life. Not thread-safe.
class ParameterStore {
 public:
  // tp: the tensor-parallel group whose part of every parameter this store holds; null: the whole.
  // shares_rows: blocks share the rows between their branches out over the group, too (sequence
  // parallelism).
  explicit ParameterStore(std::shared_ptr<Communicator> tp = nullptr, bool shares_rows = false);
  // Declares a parameter, or returns the one that already has this name: that is how blocks share
  // weights. Throws Bug when the shapes differ.
  Parameter& declare(const std::string& name, std::vector<int64_t> shape, Init init,
                     Split split = {});
  Parameter* find(const std::string& name);
  Parameter& at(const std::string& name);  // throws Bug when there is none

  // Allocates and draws the values that `owned` asks for (null: all), one parameter at a time; the
  // others stay on the meta device, in the same dtype. dtype: kFloat, kBFloat16, kHalf or kDouble.
  // Draws are counter-based per element (Philox keyed by seed and name) in fp64, then rounded: the
  // same in every layout.
  void materialise(at::ScalarType dtype, at::Device device, uint64_t seed,
                   const std::function<bool(const Parameter&)>& owned = nullptr);
  void zero_grad();  // forgets the gradients

  // Copies values (not gradients) from a store with the same names. For snapshots.
  void copy_values_from(const ParameterStore& other);

  const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }
  int64_t num_elements() const;  // logical
  Part part() const { return part_; }
  Communicator* tp() const { return tp_.get(); }  // null: not split
  bool shares_rows() const { return shares_rows_; }

 private:
  std::shared_ptr<Communicator> tp_;
  bool shares_rows_ = false;
  Part part_;
  std::vector<std::unique_ptr<Parameter>> parameters_;  // in order of declaration
  std::map<std::string, Parameter*> by_name_;
};

// The dtype that sums and masters take for a compute dtype: double for double, else float.
at::ScalarType wide_dtype(at::ScalarType compute);

// The initial values of a parameter, fp64 or fp32, [shape]. Exposed for tests and for sharded
// owners.
at::Tensor draw_initial(const std::string& name, const std::vector<int64_t>& shape,
                        const Init& init, uint64_t seed);

}  // namespace contexture::parallel
