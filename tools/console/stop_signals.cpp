#include "console/stop_signals.h"

#include <atomic>
#include <csignal>

namespace console {
namespace {

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may store it");

extern "C" void note(int number) {
  noted = number;
  for (const int each : {SIGINT, SIGTERM, SIGHUP}) std::signal(each, SIG_DFL);
}

}  // namespace

void note_stop_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(number, note) == SIG_IGN) std::signal(number, SIG_IGN);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

int stop_signal() { return noted; }

}  // namespace console
