#include "parallel/device.h"

#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#ifdef CONTEXTURE_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

#include <algorithm>
#include <map>

#include "core/error.h"
#include "parallel/communicator.h"
#include "parallel/gather.h"
#include "parallel/launch_env.h"

namespace contexture::parallel {
namespace {

using c10::impl::VirtualGuardImpl;

bool is_extension(const std::string& name) {
  return name == c10::get_privateuse1_backend() && c10::impl::hasDeviceGuardImpl(at::kPrivateUse1);
}

c10::Stream current_stream(at::Device device) {
  return VirtualGuardImpl(device.type()).getStream(device);
}

#ifdef CONTEXTURE_CUDA
constexpr const char* kNoGpu = "no NVIDIA GPU is visible to it";
#else
constexpr const char* kNoGpu =
    "this build is for the CPU alone (configure it with -DCONTEXTURE_CUDA=ON)";
#endif

// What a rank says of its device to the others: "" or why it has none, then what it is, then which
// one.
constexpr char kSeparator = '\x1f';

}  // namespace

std::vector<Gpu> visible_gpus() {
  std::vector<Gpu> out;
#ifdef CONTEXTURE_CUDA
  for (int i = 0; i < c10::cuda::device_count(); ++i) {
    const cudaDeviceProp& about = *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(i));
    std::string id;
    for (const char byte : about.uuid.bytes) {
      for (const int half : {(byte >> 4) & 15, byte & 15}) id += "0123456789abcdef"[half];
    }
    out.push_back(
        {about.name, static_cast<double>(about.totalGlobalMem), about.major, about.minor, id});
  }
#endif
  return out;
}

bool is_device_name(const std::string& name) {
  return name == "auto" || name == "cpu" || name == "cuda" || is_extension(name);
}

at::Device choose_device(const std::string& name, const LaunchEnv& env) {
  CONTEXTURE_USAGE_REQUIRE(is_device_name(name), "run.device=", name,
                           " is not known. Use auto, cpu or cuda.");
  const auto num_gpus = static_cast<int>(visible_gpus().size());
  if (name == "cpu" || (name == "auto" && num_gpus == 0)) return at::kCPU;
  at::Device device(at::kPrivateUse1, 0);
  if (!is_extension(name)) {
    CONTEXTURE_USAGE_REQUIRE(num_gpus > 0, "run.device=", name, ", but rank ", env.rendezvous.rank,
                             " has no such device: ", kNoGpu, ". Use run.device=cpu, or auto.");
    device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(env.device(num_gpus)));
  }
  VirtualGuardImpl(device.type()).setDevice(device);
  return device;
}

at::Device choose_device(const std::string& name) {
  return choose_device(name, detect_launch(process_environment()));
}

at::Device agree_on_device(const std::string& name, const LaunchEnv& env, Communicator* world) {
  if (world == nullptr) return choose_device(name, env);
  std::string error, id;
  at::Device mine = at::kCPU;
  try {
    mine = choose_device(name, env);
    if (mine.is_cuda()) id = visible_gpus()[static_cast<size_t>(mine.index())].id;
  } catch (const UsageError& refused) {
    error = refused.what();
  }
  const std::string kind = c10::DeviceTypeName(mine.type(), /*lower_case=*/true);
  std::map<std::string, int> user;  // of a GPU
  std::vector<std::string> kinds;
  const std::vector<std::string> said =
      gather_texts(world, concat(error, kSeparator, kind, kSeparator, id));
  for (int r = 0; r < world->size(); ++r) {
    const std::string& text = said[static_cast<size_t>(r)];
    const size_t first = text.find(kSeparator), second = text.find(kSeparator, first + 1);
    if (first > 0) throw AgreedError(text.substr(0, first), world->rank());
    kinds.push_back(text.substr(first + 1, second - first - 1));
    if (kinds.back() != kinds.front()) {
      throw AgreedError(concat("run.device=", name, " gives rank 0 the device ", kinds.front(),
                               " and rank ", r, " the device ", kinds.back(),
                               ". Make a GPU visible to every rank, or use run.device=cpu."),
                        world->rank());
    }
    const std::string gpu = text.substr(second + 1);
    const auto [before, fresh] = user.emplace(gpu, r);
    if (!gpu.empty() && !fresh) {
      throw AgreedError(
          concat("ranks ", before->second, " and ", r, " would both use the GPU ", gpu,
                 ". Start as many ranks on a machine as it has GPUs, or make one GPU visible to "
                 "each."),
          world->rank());
    }
  }
  return mine;
}

std::string describe(at::Device device) {
  if (device.is_cpu()) return concat("CPU, ", at::get_num_threads(), " threads");
  if (!device.is_cuda()) return device.str();
  return concat(visible_gpus().at(static_cast<size_t>(device.index())).name, " (", device.str(),
                ")");
}

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  if (!device.is_cuda() || host.numel() == 0) return host.to(device);
  return host.pin_memory().to(
      device, /*non_blocking=*/true);  // the pinned memory is kept until it has been read
}

void synchronize(at::Device device) {
  if (!device.is_cpu()) VirtualGuardImpl(device.type()).synchronizeStream(current_stream(device));
}

struct StreamMark::Event {
  explicit Event(at::Device on) : device(on), event(on.type()) { event.record(current_stream(on)); }
  const at::Device device;
  c10::Event event;
};

StreamMark::StreamMark(at::Device device) {
  if (!device.is_cpu() && !device.is_meta()) event_ = std::make_shared<Event>(device);
}

void StreamMark::pass() const {
  if (event_) event_->event.block(current_stream(event_->device));
}

void used_here(const at::Tensor& tensor) {
  const at::Device device = tensor.device();
  if (device.is_cpu() || tensor.numel() == 0) return;
  VirtualGuardImpl(device.type())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), current_stream(device));
}

}  // namespace contexture::parallel
