// Every operator of the shadow device runs on CPU tensors that lie over its tensors' memory.
// Results that are views of such a tensor become views on the device, fresh ones move there.
#include "shadow_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <map>
#include <set>

#include "shadow_memory.h"

namespace contexture::shadow {
namespace {

std::atomic<int64_t> operation_count{0};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return at::kPrivateUse1; }
  at::Device exchangeDevice(at::Device) const override { return device(); }
  at::Device getDevice() const override { return device(); }
  void setDevice(at::Device) const override {}
  void uncheckedSetDevice(at::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  static c10::Stream stream(int number) {
    return c10::Stream(c10::Stream::UNSAFE, device(), number);
  }
  static int number(const c10::Stream& stream) { return static_cast<int>(stream.id()); }
  c10::Stream getStream(at::Device) const override { return stream(current_stream()); }
  c10::Stream getDefaultStream(at::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(at::Device, bool) const override {
    return stream(new_stream());
  }
  c10::Stream getNewStream(at::Device, int) const override { return stream(new_stream()); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(exchange_stream(number(to)));
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
  void record(void** event, const c10::Stream& on, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new Clock;
    *static_cast<Clock*>(*event) = shadow::record(number(on));
  }
  void block(void* event, const c10::Stream& on) const override {
    if (event != nullptr) wait_for(number(on), *static_cast<Clock*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock*>(event);
  }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& on) const override {
    keep_for(pointer.get(), number(on));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
};

bool is_shadow(const at::Tensor& t) { return t.defined() && t.device().type() == at::kPrivateUse1; }

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), allocator(), keys,
                                   dtype.value_or(at::kFloat), format);
}
at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(sizes),
                                           C10_AS_INTARRAYREF_SLOW(strides), allocator(), keys,
                                           dtype.value_or(at::kFloat));
}

void set_shape(const at::Tensor& t, const at::Tensor& like) {
  t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                 like.storage_offset());
}

at::Tensor over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                            c10::DispatchKeySet(key), like.dtype());
  set_shape(out, like);
  return out;
}

// The CPU's view of the device's tensors during one operation.
class Lent {
 public:
  at::Tensor lend(const at::Tensor& t) {
    c10::StorageImpl* theirs = t.storage().unsafeGetStorageImpl();
    auto [it, fresh] = storages_.try_emplace(theirs);
    if (fresh) {
      it->second.theirs = t.storage();
      it->second.ours = c10::Storage(c10::Storage::use_byte_size_t(), theirs->nbytes(),
                                     c10::DataPtr(host(theirs->mutable_data()), at::kCPU),
                                     c10::GetCPUAllocator(), /*resizable=*/true);
    }
    at::Tensor out = over(it->second.ours, c10::DispatchKey::CPU, t);
    if (t.unsafeGetTensorImpl()->is_wrapped_number())
      out.unsafeGetTensorImpl()->set_wrapped_number(true);
    tensors_.emplace_back(out, t);
    return out;
  }

  // What the operation gave back, on the device.
  at::Tensor back(const at::Tensor& t) const {
    if (!t.defined()) return t;
    for (const auto& [ours, theirs] : tensors_) {
      if (ours.is_same(t)) return theirs;
    }
    for (const auto& [theirs, lent] : storages_) {
      if (lent.ours.unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl())
        return over(lent.theirs, c10::DispatchKey::PrivateUse1, t);
    }
    const at::Tensor out =
        empty_strided(c10::fromIntArrayRefSlow(t.sizes()), c10::fromIntArrayRefSlow(t.strides()),
                      t.scalar_type(), {}, {}, {});
    touch(out.storage().data(), true, "a result");
    const size_t bytes =
        std::min(out.storage().nbytes(),
                 t.storage().nbytes() - static_cast<size_t>(t.storage_offset()) * t.element_size());
    if (bytes > 0) std::memcpy(host(out.storage().mutable_data()), t.const_data_ptr(), bytes);
    if (t.unsafeGetTensorImpl()->is_wrapped_number())
      out.unsafeGetTensorImpl()->set_wrapped_number(true);
    return out;
  }

  // Shapes and memory that an operation has changed under its arguments.
  void settle() {
    for (auto& [theirs, lent] : storages_) {
      c10::StorageImpl* ours = lent.ours.unsafeGetStorageImpl();
      if (ours->data() == host(theirs->mutable_data())) continue;
      c10::DataPtr larger = allocator()->allocate(ours->nbytes());
      if (ours->nbytes() > 0) std::memcpy(host(larger.get()), ours->data(), ours->nbytes());
      theirs->set_data_ptr_noswap(std::move(larger));
      theirs->set_nbytes(ours->nbytes());
    }
    for (const auto& [ours, theirs] : tensors_) {
      if (ours.sizes() != theirs.sizes() || ours.strides() != theirs.strides() ||
          ours.storage_offset() != theirs.storage_offset())
        set_shape(theirs, ours);
    }
  }

 private:
  struct Storages {
    c10::Storage theirs, ours;
  };
  std::map<c10::StorageImpl*, Storages> storages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
};

// Operators that take scalars of the CPU beside tensors of a GPU.
bool takes_cpu_scalars(std::string name) {
  static const std::set<std::string> all{"add",
                                         "sub",
                                         "rsub",
                                         "mul",
                                         "div",
                                         "true_divide",
                                         "floor_divide",
                                         "remainder",
                                         "fmod",
                                         "pow",
                                         "eq",
                                         "ne",
                                         "lt",
                                         "le",
                                         "gt",
                                         "ge",
                                         "maximum",
                                         "minimum",
                                         "fmax",
                                         "fmin",
                                         "where",
                                         "masked_fill",
                                         "logical_and",
                                         "logical_or",
                                         "logical_xor",
                                         "bitwise_and",
                                         "bitwise_or",
                                         "bitwise_xor",
                                         "bitwise_right_shift",
                                         "bitwise_left_shift",
                                         "xlogy",
                                         "logaddexp",
                                         "fill",
                                         "copysign",
                                         "atan2"};
  name = name.substr(name.find("::") + 2);
  while (!name.empty() && name.back() == '_') name.pop_back();
  return all.count(name) != 0;
}

// Calls visit(tensor&) for each tensor in a value; true when one was changed.
template <typename Visit>
void for_each_tensor(c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    at::Tensor t = value.toTensor();
    if (!t.defined()) return;
    visit(t);
    value = t;
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> out;
    for (at::Tensor t : value.toTensorVector()) {
      if (t.defined()) visit(t);
      out.push_back(t);
    }
    value = out;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (std::optional<at::Tensor> t : value.toOptionalTensorVector()) {
      if (t && t->defined()) visit(*t);
      out.push_back(t);
    }
    value = out;
  }
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++operation_count;
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  const size_t num_arguments = schema.arguments().size(), first = stack->size() - num_arguments;
  const bool scalars = takes_cpu_scalars(name);
  Lent lent;
  for (size_t i = 0; i < num_arguments; ++i) {
    c10::IValue& value = (*stack)[first + i];
    const auto* alias = schema.arguments()[i].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    if (value.isDevice()) {
      value = at::Device(at::kCPU);
      continue;
    }
    for_each_tensor(value, [&](at::Tensor& t) {
      if (is_shadow(t)) {
        touch(t.storage().data(), writes, name.c_str());
        t = lent.lend(t);
        return;
      }
      const bool scalar =
          t.dim() == 0 && !writes && (scalars || t.unsafeGetTensorImpl()->is_wrapped_number());
      TORCH_CHECK(scalar, name, ": expected all tensors to be on the same device, but argument ",
                  schema.arguments()[i].name(), " is on ", t.device(),
                  " beside tensors on the shadow device");
    });
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  lent.settle();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i)
    for_each_tensor((*stack)[i], [&](at::Tensor& t) { t = lent.back(t); });
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  ++operation_count;
  Lent lent;
  const auto side = [&](const at::Tensor& t, bool writes) {
    if (!is_shadow(t)) return t;
    touch(t.storage().data(), writes, "copy");
    return lent.lend(t);
  };
  side(to, true).copy_(side(from, false));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// As for a GPU without a fused kernel: attention is composed of products and a softmax.
int64_t fused_sdp_choice(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const std::optional<at::Tensor>&, double, bool, std::optional<double>,
                         bool) {
  return 0;  // at::SDPBackend::math
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_fused_sdp_choice", &fused_sdp_choice);
}

const bool named = [] {
  c10::register_privateuse1_backend("shadow");
  c10::SetAllocator(at::kPrivateUse1, allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

int64_t operations() { return operation_count; }

}  // namespace contexture::shadow
