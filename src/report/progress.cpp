#include "hydra/report/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <ostream>

#include "report/text_line.h"

namespace hydra {
namespace {

constexpr std::size_t kLongestName = 16;
constexpr std::size_t kShortestName = 4;
constexpr std::size_t kShortestBar = 4;
constexpr std::size_t kShortBar = 8;
constexpr std::size_t kLongestBar = 30;

/// A name cut or padded to its column.
std::string fitted(const std::string& text, std::size_t columns) {
  const std::string kept = cut(one_line(text), columns);
  return kept + std::string(columns - column_count(kept), ' ');
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
  const std::size_t name = std::clamp(columns / 3, kShortestName, kLongestName);
  std::string line = fitted(job.name, name);
  const std::size_t fixed = name + 1 + 2 + column_count(right);
  // A reason is cut rather than the bar; figures are worth more than the bar.
  const std::size_t room = columns > fixed ? columns - fixed : 0;
  if (!job.reason.empty()) {
    line += " " + bar(job, kShortBar);
  } else if (room >= kShortestBar) {
    line += " " + bar(job, std::min(room, kLongestBar));
  }
  return cut(line + right, columns);
}

/// "7 running, 2 queued".
std::string states_of(const std::vector<const JobProgress*>& jobs) {
  std::vector<std::pair<std::string, int>> counts{
      {"running", 0}, {"queued", 0}, {"failed", 0}, {"cancelled", 0}, {"completed", 0}};
  for (const JobProgress* job : jobs) {
    auto found = std::find_if(counts.begin(), counts.end(),
                              [&](const auto& entry) { return entry.first == job->state; });
    if (found == counts.end()) found = counts.insert(found, {one_line(job->state), 0});
    ++found->second;
  }
  std::string text;
  for (const auto& [state, count] : counts) {
    if (count > 0) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + state;
  }
  return text;
}

/// Of whom a person wants to know more: who is at work, then who will not end well.
int interest(const JobProgress& job) {
  if (job.state == "running") return 0;
  if (job.state == "failed" || job.state == "cancelled") return 1;
  return job.state == "queued" ? 2 : 3;
}

/// A line per job; where there is no room for all, the last line sums up the less interesting.
std::vector<std::string> terminal_lines(const std::vector<JobProgress>& jobs, std::size_t columns,
                                        std::size_t most) {
  std::vector<const JobProgress*> order;
  order.reserve(jobs.size());
  for (const JobProgress& job : jobs) order.push_back(&job);
  std::vector<const JobProgress*> rest;
  if (order.size() > most) {
    std::stable_sort(order.begin(), order.end(),
                     [](const auto* a, const auto* b) { return interest(*a) < interest(*b); });
    rest.assign(order.begin() + static_cast<std::ptrdiff_t>(most - 1), order.end());
    order.resize(most - 1);
    std::sort(order.begin(), order.end());  // as they were given
  }
  std::vector<std::string> lines;
  lines.reserve(order.size() + 1);
  for (const JobProgress* job : order) lines.push_back(terminal_line(*job, columns));
  if (!rest.empty()) {
    const std::string count = std::to_string(rest.size());
    const std::string who = order.empty() ? count + " jobs: " : "… and " + count + " more: ";
    lines.push_back(cut(who + states_of(rest), columns));
  }
  return lines;
}

}  // namespace

struct ProgressView::Impl {
  std::ostream& out;
  SizeOf size_of;
  Nanoseconds interval;
  std::vector<std::size_t> drawn;  // columns of the lines that are on the terminal
  struct Shown {
    Nanoseconds at{-1};
    std::int64_t step = -1;
    std::string state;
  };
  std::map<std::size_t, Shown> shown;

  // The last column stays free: a terminal that has just filled it is in a state of its own. So
  // does the last row, where the cursor waits, but on a terminal of one row.
  void draw(const std::vector<JobProgress>& jobs, bool last) {
    const TerminalSize size = size_of();
    const auto columns = static_cast<std::size_t>(std::max(size.columns, 1)) - 1;
    const auto rows = static_cast<std::size_t>(std::max(size.rows, 1));
    std::string text = to_first_line(columns + 1, rows);
    drawn.clear();
    for (const std::string& line :
         terminal_lines(jobs, columns, std::max<std::size_t>(rows, 2) - 1)) {
      text += "\r" + line + "\x1b[K";
      if (rows > 1 || last) text += "\n";
      drawn.push_back(column_count(line));
    }
    out << text << std::flush;
  }

  // A terminal that has become narrower breaks the lines that it shows; one that has become lower
  // has lost those at its top.
  std::string to_first_line(std::size_t columns, std::size_t rows) const {
    if (drawn.empty() || rows == 1) return "";
    std::size_t up = 0;
    for (const std::size_t line : drawn)
      up += std::max<std::size_t>(1, (line + columns - 1) / columns);
    up = std::min(up, rows - 1);
    return "\x1b[" + std::to_string(up) + "A\r\x1b[J";
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

ProgressView::ProgressView(std::ostream& out, SizeOf terminal, Nanoseconds interval)
    : impl_(std::make_unique<Impl>(Impl{out, std::move(terminal), interval, {}, {}})) {}

ProgressView::~ProgressView() = default;

void ProgressView::show(const std::vector<JobProgress>& jobs, Nanoseconds now) {
  if (impl_->size_of) {
    impl_->draw(jobs, false);
  } else {
    impl_->print_changes(jobs, now, false);
  }
}

void ProgressView::finish(const std::vector<JobProgress>& jobs, Nanoseconds now) {
  if (impl_->size_of) {
    impl_->draw(jobs, true);
  } else {
    impl_->print_changes(jobs, now, true);
  }
}

}  // namespace hydra
