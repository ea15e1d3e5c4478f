#include "hydra/report/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "report/text_line.h"
#include "report/utf8.h"

namespace hydra {
namespace {

using std::chrono::seconds;

JobProgress running(const std::string& name, std::int64_t step, std::int64_t max_steps) {
  JobProgress job;
  job.name = name;
  job.state = "running";
  job.step = step;
  job.max_steps = max_steps;
  job.loss = 2.5;
  job.learning_rate = 1e-4;
  job.tokens_per_second = 1234;
  job.time_left = seconds(65);
  return job;
}

/// What a view has written since the last time it was asked.
class Screen {
 public:
  Screen(bool terminal, int columns, int rows = 24)
      : size_{columns, rows},
        view_(out_, terminal ? ProgressView::SizeOf([this] { return size_; }) : nullptr,
              seconds(10)) {}

  void resize(int columns, int rows) { size_ = {columns, rows}; }

  std::string show(const std::vector<JobProgress>& jobs, Nanoseconds now = Nanoseconds(0)) {
    view_.show(jobs, now);
    return taken();
  }
  std::string finish(const std::vector<JobProgress>& jobs, Nanoseconds now = Nanoseconds(0)) {
    view_.finish(jobs, now);
    return taken();
  }

 private:
  std::string taken() {
    std::string text = out_.str();
    out_.str("");
    return text;
  }

  TerminalSize size_;
  std::ostringstream out_;
  ProgressView view_;
};

/// The lines of one drawing, without what moves the cursor.
std::vector<std::string> drawn_lines(std::string text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const std::size_t start = line.find('\r');
    const std::size_t end = line.find("\x1b[K");
    if (start == std::string::npos || end == std::string::npos) {
      ADD_FAILURE() << "not a line that is drawn in place: " << line;
      continue;
    }
    lines.push_back(line.substr(start + 1, end - start - 1));
  }
  return lines;
}

std::size_t characters(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  return count;
}

TEST(ProgressPlainTest, ARunningJobIsOneLine) {
  Screen screen(false, 80);
  EXPECT_EQ(screen.show({running("gpt2", 5, 10)}),
            "gpt2: step 5/10  loss 2.5000  lr 1.00e-04    1234 tok/s  1m05s left\n");
}

TEST(ProgressPlainTest, ALineComesWithEveryChangeOfStateButWithStepsOnlyAtTheInterval) {
  Screen screen(false, 80);
  EXPECT_NE(screen.show({running("a", 1, 10)}, seconds(0)), "");
  EXPECT_EQ(screen.show({running("a", 1, 10)}, seconds(60)), "");  // nothing has changed
  EXPECT_NE(screen.show({running("a", 2, 10)}, seconds(61)), "");
  EXPECT_EQ(screen.show({running("a", 3, 10)}, seconds(70)), "");
  EXPECT_NE(screen.show({running("a", 3, 10)}, seconds(71)), "");
  JobProgress done = running("a", 4, 10);
  done.state = "completed";
  EXPECT_EQ(screen.show({done}, seconds(72)),
            "a: step 4/10  loss 2.5000  lr 1.00e-04    1234 tok/s  done\n");
}

TEST(ProgressPlainTest, FinishingShowsWhatTheIntervalHadHeldBack) {
  Screen screen(false, 80);
  screen.show({running("a", 1, 10)}, seconds(0));
  EXPECT_EQ(screen.show({running("a", 2, 10)}, seconds(1)), "");
  EXPECT_NE(screen.finish({running("a", 2, 10)}, seconds(1)), "");
  EXPECT_EQ(screen.finish({running("a", 2, 10)}, seconds(1)), "");
}

TEST(ProgressPlainTest, AFailedJobShowsItsReason) {
  JobProgress job = running("a", 3, 10);
  job.state = "failed";
  job.reason = "the loss is NaN";
  EXPECT_EQ(Screen(false, 80).show({job}), "a: step 3/10  failed: the loss is NaN\n");
}

TEST(ProgressPlainTest, AJobWithoutAStepHasNoFigures) {
  JobProgress job = running("a", 0, 10);
  job.loss = std::nan("");
  EXPECT_EQ(Screen(false, 80).show({job}), "a: step 0/10  running\n");
  job.state = "queued";
  EXPECT_EQ(Screen(false, 80).show({job}), "a: step 0/10  queued\n");
}

TEST(ProgressPlainTest, LongAndForeignNamesAreWrittenWhole) {
  const std::string name = "größe-of-a-model-with-a-very-long-name";
  EXPECT_EQ(Screen(false, 80).show({running(name, 1, 2)}).substr(0, name.size() + 2), name + ": ");
}

TEST(ProgressPlainTest, AJobIsOneLineWhateverItsNameAndReasonHold) {
  JobProgress job = running("a\nb", 1, 2);
  job.state = "failed";
  job.reason = "first\nsecond";
  EXPECT_EQ(Screen(false, 80).show({job}), "a b: step 1/2  failed: first second\n");
}

TEST(ProgressTerminalTest, ABarIsAsFullAsTheJobIsFarOn) {
  EXPECT_EQ(Screen(true, 120).show({running("gpt2", 5, 10)}),
            "\rgpt2             [###############...............] 5/10  "
            "loss 2.5000  lr 1.00e-04    1234 tok/s  1m05s left\x1b[K\n");
}

TEST(ProgressTerminalTest, TheSecondDrawingGoesBackOverTheFirst) {
  Screen screen(true, 120);
  const std::vector<JobProgress> jobs{running("a", 1, 10), running("b", 2, 10)};
  EXPECT_EQ(screen.show(jobs).find("\x1b[2A"), std::string::npos);
  const std::string second = screen.show(jobs);
  EXPECT_EQ(second.find("\x1b[2A\r\x1b[J"), 0U);
  EXPECT_EQ(drawn_lines(second.substr(second.find("[J") + 2)).size(), 2U);
  EXPECT_EQ(screen.finish(jobs), second);
}

TEST(ProgressTerminalTest, NoLineIsWiderThanTheTerminal) {
  // A wrapped line would make the next drawing start in the wrong row.
  JobProgress large = running("a-model-with-a-long-name", 123456, 1000000);
  large.tokens_per_second = 9876543;
  large.time_left = seconds(360000);
  JobProgress failed = running("größe größe größe größe", 3, 10);
  failed.state = "failed";
  failed.reason = std::string(300, 'x') + "größe";
  for (const int columns : {40, 60, 79, 80, 100, 120, 200}) {
    Screen screen(true, columns);
    for (const std::string& line : drawn_lines(screen.show({large, failed}))) {
      EXPECT_LT(characters(line), static_cast<std::size_t>(columns)) << line;
    }
  }
}

TEST(ProgressTerminalTest, AnEightyColumnTerminalShowsEveryFigure) {
  const auto lines = drawn_lines(Screen(true, 80).show({running("gpt2", 500, 1000)}));
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("loss 2.5000  lr 1.00e-04    1234 tok/s  1m05s left"), std::string::npos)
      << lines[0];
}

TEST(ProgressTerminalTest, NamesAreCutToTheirColumnAtACharacter) {
  const auto lines = drawn_lines(
      Screen(true, 120).show({running("größe-größe-größe-größe", 1, 2), running("é", 1, 2)}));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].substr(0, lines[0].find(" [")), "größe-größe-größ");
  EXPECT_EQ(lines[1].substr(0, lines[1].find(" [")), "é" + std::string(15, ' '));
}

TEST(ProgressTerminalTest, AFailedJobShowsItsReasonOnItsLine) {
  JobProgress job = running("a", 5, 10);
  job.state = "failed";
  job.reason = "the loss\nis NaN";
  const auto lines = drawn_lines(Screen(true, 120).show({job}));
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("5/10  failed: the loss is NaN"), std::string::npos) << lines[0];
}

TEST(ProgressTerminalTest, AStepBeyondTheLastFillsTheBarAndNoMore) {
  for (const auto& [step, max_steps] : {std::pair{12, 10}, std::pair{5, 0}, std::pair{-1, 10}}) {
    const auto lines = drawn_lines(Screen(true, 120).show({running("a", step, max_steps)}));
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_EQ(lines[0].find(']') - lines[0].find('['), 31U) << lines[0];
  }
}

TEST(ProgressTerminalTest, TimesAreInHoursFromOneHourOn) {
  JobProgress job = running("a", 1, 2);
  job.time_left = seconds(3599);
  EXPECT_NE(Screen(true, 120).show({job}).find("59m59s left"), std::string::npos);
  job.time_left = seconds(2 * 3600 + 5 * 60 + 59);
  EXPECT_NE(Screen(true, 120).show({job}).find("2h05m left"), std::string::npos);
}

/// As much of a terminal as the view uses. A line that is broken or a row that is scrolled away is
/// counted; so is every command that it does not know.
class Terminal {
 public:
  Terminal(int columns, int rows) : columns_(columns), rows_(rows), screen_(1) {}

  void write(const std::string& text) {
    for (std::size_t i = 0; i < text.size();) {
      if (text[i] == '\x1b') {
        i += command(text, i);
      } else if (text[i] == '\r') {
        column_ = 0;
        ++i;
      } else if (text[i] == '\n') {
        new_line();
        ++i;
      } else {
        const std::size_t length = std::max<std::size_t>(utf8_length(text.substr(i)), 1);
        put(text.substr(i, length));
        i += length;
      }
    }
  }

  /// As terminals do that break their lines anew; the cursor stays with what it is at.
  void resize(int columns, int rows) {
    columns_ = columns;
    rows_ = rows;
    std::vector<std::string> broken;
    std::size_t cursor = 0;
    for (std::size_t r = 0; r < screen_.size(); ++r) {
      if (r == row_) cursor = broken.size();
      std::string rest = screen_[r];
      do {
        const std::string part = cut(rest, static_cast<std::size_t>(columns));
        broken.push_back(part);
        rest = rest.substr(part.size());
      } while (!rest.empty());
    }
    screen_ = broken;
    row_ = cursor;
    scroll();
    scrolled = 0;
  }

  const std::vector<std::string>& screen() const { return screen_; }

  int broken = 0;
  int scrolled = 0;
  int unknown = 0;

 private:
  std::size_t command(const std::string& text, std::size_t at) {
    std::size_t end = at + 2;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    const std::string number = text.substr(at + 2, end - at - 2);
    if (text[end] == 'A') {
      row_ -= std::min<std::size_t>(row_, std::stoul(number));
    } else if (text[end] == 'K') {
      screen_[row_] = cut(screen_[row_], column_);
    } else if (text[end] == 'J') {
      screen_.resize(row_ + 1);
      screen_[row_] = cut(screen_[row_], column_);
    } else {
      ++unknown;
    }
    return end + 1 - at;
  }

  // Overwriting in the middle of a line is never needed: what stood there has been erased.
  void put(const std::string& character) {
    if (column_ + column_count(character) > static_cast<std::size_t>(columns_)) {
      ++broken;
      new_line();
      column_ = 0;
    }
    screen_[row_] = cut(screen_[row_], column_) + character;
    column_ += column_count(character);
  }

  void new_line() {
    column_ = 0;
    if (++row_ == screen_.size()) screen_.emplace_back();
    scroll();
  }

  void scroll() {
    while (screen_.size() > static_cast<std::size_t>(rows_)) {
      screen_.erase(screen_.begin());
      if (row_ > 0) --row_;
      ++scrolled;
    }
  }

  int columns_;
  int rows_;
  std::vector<std::string> screen_;
  std::size_t row_ = 0;
  std::size_t column_ = 0;
};

/// Jobs of all states, with names that are hard to measure.
std::vector<JobProgress> many_jobs(std::size_t count) {
  const std::vector<std::string> names{"gpt2",
                                       "größe",
                                       "模型训练模型训练模型训练",
                                       "e\u0301e\u0301e\u0301",
                                       "🚀 rocket 🚀 rocket",
                                       "",
                                       "bad \xff\xfe bytes \x80",
                                       "escape \x1b[2J \u009b2J"};
  const std::vector<std::string> states{"running", "queued", "completed", "failed"};
  std::vector<JobProgress> jobs;
  for (std::size_t i = 0; i < count; ++i) {
    JobProgress job =
        running(names[i % names.size()], static_cast<std::int64_t>(i * 1000), 1 << 20);
    job.state = states[i % states.size()];
    if (job.state == "failed")
      job.reason = "the loss 损失 is NaN\nand more " + std::string(50, 'x');
    jobs.push_back(job);
  }
  return jobs;
}

void expect_steady(std::size_t count, int columns, int rows) {
  const std::vector<JobProgress> jobs = many_jobs(count);
  Screen screen(true, columns, rows);
  Terminal terminal(columns, rows);
  terminal.write(screen.show(jobs));
  const std::vector<std::string> first = terminal.screen();
  terminal.write(screen.show(jobs));
  terminal.write(screen.show(jobs));
  ASSERT_EQ(terminal.screen(), first) << columns << " x " << rows;
  ASSERT_EQ(terminal.broken + terminal.scrolled + terminal.unknown, 0)
      << columns << " x " << rows << ", " << count << " jobs";
}

TEST(ProgressTerminalTest, NothingIsBrokenOrScrolledAtAnySizeHoweverManyJobsThereAre) {
  for (const std::size_t count : {1, 9, 60}) {
    for (int columns = 1; columns <= 200; ++columns) {
      expect_steady(count, columns, 1 + columns % 12);
    }
    for (int rows = 1; rows <= 50; ++rows) expect_steady(count, 1 + 13 * rows % 120, rows);
  }
}

TEST(ProgressTerminalTest, AResizedWindowIsFollowedWithoutRemains) {
  for (const std::size_t count : {2, 10, 40}) {
    const std::vector<JobProgress> jobs = many_jobs(count);
    for (const auto& [columns, rows] :
         {std::pair{200, 50}, {30, 50}, {30, 5}, {100, 5}, {7, 30}, {120, 24}, {80, 3}}) {
      Screen screen(true, 90, 20);
      Terminal terminal(90, 20);
      terminal.write(screen.show(jobs));
      terminal.resize(columns, rows);
      screen.resize(columns, rows);
      terminal.write(screen.show(jobs));
      Screen fresh(true, columns, rows);
      Terminal expected(columns, rows);
      expected.write(fresh.show(jobs));
      EXPECT_EQ(terminal.screen(), expected.screen()) << columns << " x " << rows;
      EXPECT_EQ(terminal.broken + terminal.scrolled, 0) << columns << " x " << rows;
    }
  }
}

TEST(ProgressTerminalTest, WhatHasNoRowIsSummedUpInTheLast) {
  std::vector<JobProgress> jobs;
  for (int i = 0; i < 12; ++i) {
    jobs.push_back(running("job " + std::to_string(i), i, 10));
    if (i < 3) jobs.back().state = "completed";
    if (i == 5) jobs.back().state = "failed";
    if (i > 8) jobs.back().state = "queued";
  }
  auto lines = drawn_lines(Screen(true, 120, 6).show(jobs));
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0].substr(0, 5), "job 3");  // those that run, in their order
  EXPECT_EQ(lines[3].substr(0, 5), "job 7");
  EXPECT_EQ(lines[4], "… and 8 more: 1 running, 3 queued, 1 failed, 3 completed");
  EXPECT_EQ(drawn_lines(Screen(true, 120, 12).show(jobs)).back(), "… and 2 more: 2 completed");
  EXPECT_EQ(drawn_lines(Screen(true, 120, 13).show(jobs)).size(), 12U);
  EXPECT_EQ(drawn_lines(Screen(true, 120, 2).show(jobs)),
            (std::vector<std::string>{"12 jobs: 5 running, 3 queued, 1 failed, 3 completed"}));
}

TEST(TextLineTest, ColumnsAreThoseOfATerminal) {
  EXPECT_EQ(column_count("gpt2"), 4U);
  EXPECT_EQ(column_count("größe"), 5U);
  EXPECT_EQ(column_count("模型"), 4U);
  EXPECT_EQ(column_count("e\u0301"), 1U);
  EXPECT_EQ(column_count("🚀"), 2U);
  EXPECT_EQ(column_count("\xff\xfe"), 2U);
  EXPECT_EQ(cut("模型", 3), "模");
  EXPECT_EQ(cut("e\u0301x", 1), "e\u0301");
  EXPECT_EQ(one_line("a\x1b[2J\u009b\u2028z\xff"), "a [2J  z\uFFFD");
}

}  // namespace
}  // namespace hydra
