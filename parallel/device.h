// The device that a rank computes on, and what is different there: a GPU works on what it is told
// later, in streams. Where nothing else is said, a function is about the calling thread's current
// stream of the device, and on the CPU does nothing.
#pragma once
#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

namespace contexture::parallel {

class Communicator;
struct LaunchEnv;

struct Gpu {
  std::string name;
  double memory_bytes = 0.0;
  int major = 0, minor = 0;  // compute capability
  std::string id;            // the same for every process that sees it
};
// The NVIDIA GPUs that this process sees; none in a build without CONTEXTURE_CUDA.
std::vector<Gpu> visible_gpus();

// Whether run.device may be called so: auto, cpu, cuda, or the name of a device that this program
// brings through LibTorch's PrivateUse1 (the tests' shadow device).
bool is_device_name(const std::string& name);

// The device of this rank: for cuda the GPU of its local number (LaunchEnv::device), for auto the
// same where there is a GPU and else the CPU. Becomes the thread's current device. Throws
// UsageError when there is none.
at::Device choose_device(const std::string& name, const LaunchEnv& env);
at::Device choose_device(const std::string& name);  // as the process's environment says

// The same on all ranks of a world. Throws AgreedError on all of them when one has no such device,
// when auto finds GPUs on some ranks only, or when two ranks would share a GPU. Collective; world
// null: choose_device.
at::Device agree_on_device(const std::string& name, const LaunchEnv& env, Communicator* world);

// "CPU, 2 threads" or "NVIDIA H100 80GB HBM3 (cuda:1)".
std::string describe(at::Device device);

// A tensor of the CPU on the device. To a GPU it travels through pinned memory, and nobody waits
// for it.
at::Tensor to_device(const at::Tensor& host, at::Device device);

// Waits until the stream has done all that it was given.
void synchronize(at::Device device);

// A point in a stream: what had been given to it when the mark was made. For tensors that go from
// one thread's stream to another's. Copies are the same mark.
class StreamMark {
 public:
  StreamMark() = default;  // nothing to wait for
  explicit StreamMark(at::Device device);
  // Lets the calling thread's stream wait for it (not the thread).
  void pass() const;

 private:
  struct Event;
  std::shared_ptr<Event> event_;
};

// Says that the calling thread's stream uses the tensor's memory, which another stream's thread may
// give back: it is then not used anew before this stream has passed this point.
void used_here(const at::Tensor& tensor);

}  // namespace contexture::parallel
