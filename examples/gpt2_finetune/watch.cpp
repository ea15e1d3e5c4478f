#include "watch.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include "console/stop_signals.h"
#include "hydra/report/progress.h"

namespace finetune {
namespace {

hydra::TerminalSize terminal_size() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return {known && size.ws_col > 0 ? size.ws_col : 100,
          known && size.ws_row > 0 ? size.ws_row : 24};
}

hydra::JobProgress progress_of(const hydra::JobStatus& status) {
  hydra::JobProgress progress;
  progress.name = status.name;
  progress.state = to_string(status.state);
  progress.step = status.step;
  progress.max_steps = status.max_steps;
  progress.loss = status.loss;
  progress.learning_rate = status.learning_rate;
  progress.tokens_per_second = status.tokens_per_second;
  progress.time_left = status.time_left;
  progress.reason = status.reason;
  return progress;
}

bool has_ended(const hydra::JobStatus& status) {
  return status.state != hydra::JobState::kQueued && status.state != hydra::JobState::kRunning;
}

}  // namespace

void watch(hydra::Runtime& runtime, bool quiet) {
  using namespace std::chrono_literals;
  const hydra::SteadyClock clock;
  const auto size = isatty(STDOUT_FILENO) != 0 ? terminal_size : nullptr;
  hydra::ProgressView view(std::cout, size, 10s);
  bool stopping = false;
  while (true) {
    if (!stopping && console::stop_signal() != 0) {
      stopping = true;
      std::cerr << "gpt2_finetune: stopping at the next step; once more to end at once\n";
      runtime.stop_all();
    }
    const std::vector<hydra::JobStatus> statuses = runtime.statuses();
    std::vector<hydra::JobProgress> progress;
    for (const hydra::JobStatus& status : statuses) progress.push_back(progress_of(status));
    const bool all_ended = std::all_of(statuses.begin(), statuses.end(), has_ended);
    if (!quiet && all_ended) view.finish(progress, clock.now());
    if (all_ended) return;
    if (!quiet) view.show(progress, clock.now());
    std::this_thread::sleep_for(100ms);
  }
}

}  // namespace finetune
