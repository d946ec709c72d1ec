// Signals that ask the program to stop at the next safe place: SIGTERM, SIGINT, SIGUSR1.
// After the first SIGINT a second one ends the program at once.
#pragma once

namespace contexture {

void install_stop_signals();  // process-wide; call once from main. Bug if the system refuses
bool stop_requested() noexcept;
int stop_signal() noexcept;                     // the first signal that came, or 0
void request_stop(int signal_number) noexcept;  // as if the signal had come
void clear_stop() noexcept;                     // for tests

}  // namespace contexture
