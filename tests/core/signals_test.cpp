#include "core/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace contexture {
namespace {

TEST(StopSignals, SetTheFlagAndRememberTheFirst) {
  install_stop_signals();
  for (const int signal_number : {SIGTERM, SIGINT, SIGUSR1}) {
    clear_stop();
    EXPECT_FALSE(stop_requested());
    EXPECT_EQ(stop_signal(), 0);
    ::raise(signal_number);
    EXPECT_TRUE(stop_requested());
    EXPECT_EQ(stop_signal(), signal_number);
    ::raise(SIGTERM);
    EXPECT_EQ(stop_signal(), signal_number);
  }
  clear_stop();
}

TEST(StopSignals, ASecondInterruptEndsTheProgram) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    install_stop_signals();
    ::raise(SIGINT);
    ::raise(SIGINT);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

TEST(StopSignals, CanBeRequestedFromCode) {
  clear_stop();
  request_stop(SIGTERM);
  EXPECT_TRUE(stop_requested());
  clear_stop();
}

}  // namespace
}  // namespace contexture
