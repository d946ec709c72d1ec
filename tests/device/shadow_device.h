// A device for tests, called "shadow", that behaves as a GPU does where a program may go wrong, on
// a machine without one. Its memory is the host's, and its operators are the CPU's; but
// - an operation on tensors of both devices is refused, as CUDA refuses it (scalars of the CPU are
// let through where CUDA lets
//   them);
// - a host that reads or writes through a tensor's data pointer is killed (SIGSEGV): pointers lead
// to pages without access;
// - it has streams and events, and stops with an error when work of two streams on the same memory
// is not ordered by an event,
//   or memory goes to another use while a stream may still read it (a race detector by vector
//   clocks; nothing runs late).
// Linking it registers it as LibTorch's PrivateUse1. Thread-safe.
#pragma once
#include <ATen/ATen.h>

namespace contexture::shadow {

inline at::Device device() { return at::Device(at::kPrivateUse1, 0); }

// Bytes in use, and the most that were since reset_peak().
int64_t bytes();
int64_t peak_bytes();
void reset_peak();

// Operators that have run on the device so far.
int64_t operations();

}  // namespace contexture::shadow
