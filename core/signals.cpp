#include "core/signals.h"

#include <signal.h>

#include <atomic>
#include <cerrno>

#include "core/error.h"

namespace contexture {
namespace {

std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may not lock");

extern "C" void on_stop_signal(int signal_number) {
  const int saved_errno = errno;
  request_stop(signal_number);
  if (signal_number == SIGINT) ::signal(SIGINT, SIG_DFL);
  errno = saved_errno;
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;  // reads and writes under way go on
  sigemptyset(&action.sa_mask);
  // A write beyond a limit on file sizes then fails with a reason that can be told, as on a full
  // disk.
  ::signal(SIGXFSZ, SIG_IGN);
  for (const int signal_number : {SIGTERM, SIGINT, SIGUSR1}) {
    const int result = ::sigaction(signal_number, &action, nullptr);
    CONTEXTURE_INVARIANT(result == 0, "sigaction(", signal_number, "): ", errno_text(errno));
  }
}

bool stop_requested() noexcept { return first_signal.load(std::memory_order_relaxed) != 0; }
int stop_signal() noexcept { return first_signal.load(std::memory_order_relaxed); }

void request_stop(int signal_number) noexcept {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal_number);
}

void clear_stop() noexcept { first_signal.store(0); }

}  // namespace contexture
