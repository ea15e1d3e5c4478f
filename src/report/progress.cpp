#include "hydra/report/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <ostream>

#include "report/text_line.h"

namespace hydra {
namespace {

constexpr std::size_t kNameColumns = 16;
constexpr std::size_t kShortestBar = 4;
constexpr std::size_t kShortBar = 8;
constexpr std::size_t kLongestBar = 30;

/// A name cut or padded to its column.
std::string fitted(const std::string& text, std::size_t columns) {
  const std::string kept = cut(one_line(text), columns);
  return kept + std::string(columns - character_count(kept), ' ');
}

std::string duration(Nanoseconds time) {
  const auto total = static_cast<long>(std::lround(seconds(time)));
  char text[32];
  if (total >= 3600) {
    std::snprintf(text, sizeof text, "%ldh%02ldm", total / 3600, total / 60 % 60);
  } else {
    std::snprintf(text, sizeof text, "%ldm%02lds", total / 60, total % 60);
  }
  return text;
}

std::string figures(const JobProgress& job) {
  if (job.state != "running" && job.state != "completed") return job.state;
  if (std::isnan(job.loss)) return job.state;  // no step has ended yet
  char text[128];
  std::snprintf(text, sizeof text, "loss %.4f  lr %.2e  %6.0f tok/s", job.loss, job.learning_rate,
                job.tokens_per_second);
  return std::string(text) +
         (job.state == "running" ? "  " + duration(job.time_left) + " left" : "  done");
}

std::string with_reason(const JobProgress& job) {
  return job.reason.empty() ? figures(job) : figures(job) + ": " + one_line(job.reason);
}

std::string bar(const JobProgress& job, std::size_t columns) {
  const double share =
      job.max_steps > 0 ? static_cast<double>(job.step) / static_cast<double>(job.max_steps) : 0;
  const auto full =
      static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(columns));
  return "[" + std::string(full, '#') + std::string(columns - full, '.') + "]";
}

/// One line, never wider than the terminal: a wrapped one would spoil the next drawing.
std::string terminal_line(const JobProgress& job, std::size_t columns) {
  const std::string right = " " + std::to_string(job.step) + "/" + std::to_string(job.max_steps) +
                            "  " + with_reason(job);
  std::string line = fitted(job.name, kNameColumns);
  const std::size_t fixed = kNameColumns + 1 + 2 + character_count(right);
  // A reason is cut rather than the bar; figures are worth more than the bar.
  const std::size_t room = columns > fixed ? columns - fixed : 0;
  if (!job.reason.empty()) {
    line += " " + bar(job, kShortBar);
  } else if (room >= kShortestBar) {
    line += " " + bar(job, std::min(room, kLongestBar));
  }
  return cut(line + right, columns);
}

}  // namespace

struct ProgressView::Impl {
  std::ostream& out;
  bool terminal;
  std::size_t columns;
  Nanoseconds interval;
  std::size_t drawn_lines = 0;
  struct Shown {
    Nanoseconds at{-1};
    std::int64_t step = -1;
    std::string state;
  };
  std::map<std::size_t, Shown> shown;

  void draw(const std::vector<JobProgress>& jobs) {
    std::string text;
    if (drawn_lines > 0) text += "\x1b[" + std::to_string(drawn_lines) + "A";
    for (const JobProgress& job : jobs) {
      text += "\r" + terminal_line(job, columns) + "\x1b[K\n";
    }
    drawn_lines = jobs.size();
    out << text << std::flush;
  }

  void print_changes(const std::vector<JobProgress>& jobs, Nanoseconds now, bool everything) {
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const JobProgress& job = jobs[i];
      Shown& last = shown[i];
      const bool changed = job.step != last.step || job.state != last.state;
      const bool due = last.at < Nanoseconds(0) || job.state != last.state ||
                       now - last.at >= interval || everything;
      if (!changed || !due) continue;
      last = {now, job.step, job.state};
      out << one_line(job.name) << ": step " << job.step << "/" << job.max_steps << "  "
          << with_reason(job) << "\n";
    }
    out << std::flush;
  }
};

ProgressView::ProgressView(std::ostream& out, bool terminal, int columns, Nanoseconds interval)
    : impl_(std::make_unique<Impl>(
          Impl{out, terminal, static_cast<std::size_t>(std::max(columns, 40)), interval, 0, {}})) {}

ProgressView::~ProgressView() = default;

void ProgressView::show(const std::vector<JobProgress>& jobs, Nanoseconds now) {
  if (impl_->terminal) {
    impl_->draw(jobs);
  } else {
    impl_->print_changes(jobs, now, false);
  }
}

void ProgressView::finish(const std::vector<JobProgress>& jobs, Nanoseconds now) {
  if (impl_->terminal) {
    impl_->draw(jobs);
  } else {
    impl_->print_changes(jobs, now, true);
  }
}

}  // namespace hydra
