#include "hydra/report/progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

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
  Screen(bool terminal, int columns, Nanoseconds interval = seconds(10))
      : view_(out_, terminal, columns, interval) {}

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
  EXPECT_EQ(second.find("\x1b[2A"), 0U);
  EXPECT_EQ(drawn_lines(second).size(), 2U);
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
      EXPECT_LE(characters(line), static_cast<std::size_t>(columns)) << line;
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

}  // namespace
}  // namespace hydra
