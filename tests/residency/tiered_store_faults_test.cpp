// The n-th transfer of the drive goes wrong, for every n: whoever is hit ends with one typed error
// and gives everything back, and the others get their bytes.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "hydra/core/error.h"
#include "tiered_store.h"

namespace hydra {
namespace {

using ClaimState = ShardStore::ClaimState;
using Kind = DriveSwitches::Kind;

constexpr Bytes kPart{40 << 10};
constexpr std::int64_t kBlocks = 3;  // of a part
constexpr std::size_t kParts = 3;
constexpr int kRounds = 3;

/// Uses each of its parts on a device and updates it in the host, round by round.
struct Job {
  JobId id;
  std::vector<PartId> parts;
  std::vector<std::uint64_t> contents;
  std::size_t turn = 0;
  std::optional<ShardStore::ClaimId> unit;
  std::optional<HostClaimId> update;
  std::exception_ptr failure;

  bool done() const { return failure != nullptr || turn == 2 * kParts * kRounds; }
};

class TieredStoreFaultsTest : public ::testing::TestWithParam<bool> {
 protected:
  TieredStoreFaultsTest()
      : store_({.devices = {kPart * 2, kPart * 2},
                .host = kPart * 2 + kPart,
                .drive = Bytes(1 << 20),
                .store = {.evict_at_once = GetParam()}}) {
    for (std::int64_t j = 0; j < 2; ++j) {
      Job& job = jobs_.emplace_back();
      job.id = JobId(j);
      for (std::uint64_t p = 0; p < kParts; ++p) {
        job.contents.push_back(static_cast<std::uint64_t>(j) * 100 + p);
        job.parts.push_back(store_.add(kPart, job.contents.back(), job.id));
      }
    }
    store_.finish_all();
  }

  void run() {
    while (!jobs_[0].done() || !jobs_[1].done()) {
      bool any = false;
      for (Job& job : jobs_) {
        if (!job.done()) any = advance(job) || any;
      }
      remove_failed();
      if (any) continue;
      ASSERT_GT(store_.under_way(), 0) << "everybody waits, for nothing";
      take_in(store_.finish_one());
    }
    while (store_.under_way() > 0) take_in(store_.finish_one());
    for (Job& job : jobs_) {
      for (const PartId part : job.parts) store_->remove(part);
    }
    store_.expect_balance();
  }

  std::size_t failed_jobs() const {
    return (jobs_[0].failure ? 1U : 0U) + (jobs_[1].failure ? 1U : 0U);
  }

  TieredStore store_;
  std::vector<Job> jobs_;

 private:
  // True when the job has come further.
  bool advance(Job& job) {
    const std::size_t p = job.turn / 2 % kParts;
    const PartId part = job.parts[p];
    if (job.turn % 2 == 0) {
      if (!job.unit) job.unit = store_->open_claim(DeviceId(job.id.value()), {part});
      if (store_->advance(*job.unit) != ClaimState::kReady) return false;
      EXPECT_TRUE(store_.holds(*job.unit, part, job.contents[p]));
      store_->close_claim(*std::exchange(job.unit, std::nullopt));
    } else {
      if (!job.update) job.update = store_->open_host_claim({part});
      if (store_->advance(*job.update) != ClaimState::kReady) return false;
      EXPECT_TRUE(store_.holds(*job.update, part, job.contents[p]));
      store_.write(*job.update, part, job.contents[p] += 1000);
      store_->close_host_claim(*std::exchange(job.update, std::nullopt));
    }
    ++job.turn;
    return true;
  }

  void take_in(const std::optional<TransferDone>& failed) {
    if (!failed) return;
    Job& job = jobs_.at(static_cast<std::size_t>(store_->job_of(failed->part).value()));
    if (job.failure != nullptr) return;
    job.failure = failed->failure;
    try {
      std::rethrow_exception(job.failure);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kStorage || error.code() == ErrorCode::kCorruption);
      const std::string message = error.what();
      EXPECT_NE(message.find(store_->label(failed->part)), std::string::npos) << message;
      EXPECT_NE(message.find("offset"), std::string::npos) << message;
    }
    if (job.unit) store_->close_claim(*std::exchange(job.unit, std::nullopt));
    if (job.update) store_->close_host_claim(*std::exchange(job.update, std::nullopt));
  }

  void remove_failed() {
    for (Job& job : jobs_) {
      if (job.failure == nullptr) continue;
      std::erase_if(job.parts, [&](PartId part) {
        if (!store_->idle(part)) return false;
        store_->remove(part);
        return true;
      });
    }
  }
};

/// Runs with a fault at the n-th transfer; returns the jobs that failed, or nothing when there was
/// no n-th transfer.
class Sweep : public TieredStoreFaultsTest {
 public:
  void TestBody() override {}
  std::optional<std::size_t> with_fault(Kind kind, std::int64_t n, std::int64_t count) {
    DriveSwitches& drive = store_.tier().switches();
    drive.kind = kind;
    drive.fail_count = count;
    drive.fail_after = n;
    run();
    if (drive.fail_after > 0) return std::nullopt;
    return failed_jobs();
  }
};

/// Returns how many faults hit no job, one, and both.
std::vector<int> sweep(Kind kind, std::int64_t count) {
  std::vector<int> outcomes(3);
  for (std::int64_t n = 0;; ++n) {
    SCOPED_TRACE(n);
    Sweep once;
    const auto failed = once.with_fault(kind, n, count);
    if (!failed || ::testing::Test::HasFailure()) return outcomes;
    ++outcomes[*failed];
  }
}

TEST_P(TieredStoreFaultsTest, OneErrorEndsTheReaderAloneAndNoWriter) {
  const std::vector<int> outcomes = sweep(Kind::kError, 1);
  EXPECT_GT(outcomes[0], 10);  // writes are tried again
  EXPECT_GT(outcomes[1], 10);
  EXPECT_EQ(outcomes[2], 0);
}

TEST_P(TieredStoreFaultsTest, SomeErrorsEndThoseThatTheyHit) {
  const std::vector<int> outcomes = sweep(Kind::kError, 2 * kBlocks);
  EXPECT_GT(outcomes[1] + outcomes[2], 20);
}

TEST_P(TieredStoreFaultsTest, ADriveThatIsGoneEndsThemAllAndHoldsNobodyUp) {
  const std::vector<int> outcomes = sweep(Kind::kError, 1'000'000);
  EXPECT_GT(outcomes[2], 20);
}

TEST_P(TieredStoreFaultsTest, WrongBytesAreNeverTakenForRightOnes) {
  const std::vector<int> outcomes = sweep(Kind::kWrong, 1);
  EXPECT_GT(outcomes[1], 10);
  EXPECT_EQ(outcomes[2], 0);
}

INSTANTIATE_TEST_SUITE_P(Eviction, TieredStoreFaultsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "at_once" : "lazily"; });

}  // namespace
}  // namespace hydra
