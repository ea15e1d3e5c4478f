#include "watch.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

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

}  // namespace

void watch(const std::vector<hydra::JobHandle>& jobs, bool quiet) {
  using namespace std::chrono_literals;
  if (quiet) {
    for (const auto& job : jobs) job.wait();
    return;
  }
  const hydra::SteadyClock clock;
  const auto size = isatty(STDOUT_FILENO) != 0 ? terminal_size : nullptr;
  hydra::ProgressView view(std::cout, size, 10s);
  std::vector<hydra::JobProgress> progress;
  for (bool all_ended = false; !all_ended;) {
    all_ended = true;
    progress.clear();
    for (const auto& job : jobs) {
      const hydra::JobStatus status = job.status();
      all_ended = all_ended && status.state != hydra::JobState::kQueued &&
                  status.state != hydra::JobState::kRunning;
      progress.push_back(progress_of(status));
    }
    if (all_ended) break;
    view.show(progress, clock.now());
    std::this_thread::sleep_for(200ms);
  }
  view.finish(progress, clock.now());
}

}  // namespace finetune
