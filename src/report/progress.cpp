#include "hydra/report/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <ostream>

namespace hydra {
namespace {

constexpr std::size_t kNameColumns = 16;

/// The first `columns` code points, padded; a sequence is never cut within.
std::string fitted(const std::string& text, std::size_t columns) {
  std::string kept;
  std::size_t points = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool starts = (static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U;
    if (starts && ++points > columns) break;
    kept += static_cast<unsigned char>(text[i]) < 0x20 ? ' ' : text[i];
  }
  return kept + std::string(columns - std::min(points, columns), ' ');
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

std::string bar(const JobProgress& job, std::size_t columns) {
  const double share =
      job.max_steps > 0 ? static_cast<double>(job.step) / static_cast<double>(job.max_steps) : 0;
  const auto full = static_cast<std::size_t>(share * static_cast<double>(columns));
  return "[" + std::string(full, '#') + std::string(columns - full, '.') + "]";
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
      const std::string right = " " + std::to_string(job.step) + "/" +
                                std::to_string(job.max_steps) + "  " + figures(job);
      const std::size_t fixed = kNameColumns + 3 + right.size();
      const std::size_t room = columns > fixed + 8 ? std::min<std::size_t>(columns - fixed, 30) : 8;
      const std::string line = fitted(job.name, kNameColumns) + " " + bar(job, room) + right;
      text += "\r" + line + "\x1b[K\n";
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
      out << job.name << ": step " << job.step << "/" << job.max_steps << "  " << figures(job);
      if (!job.reason.empty()) out << ": " << job.reason;
      out << "\n";
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
