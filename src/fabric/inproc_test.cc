#include "fabric/inproc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <vector>

#include "fabric/testing.h"

namespace cofferdam::fabric {
namespace {

using std::chrono::milliseconds;
using testing::PendingRead;
using testing::ReadNow;

class InprocTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kRegion = 42;
  InprocTest() {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 7);
  }
  ReadRequest Request(uint64_t offset, size_t bytes) {
    arrived_.assign(bytes, std::byte{0xee});
    return {.region = kRegion, .source_offset = offset, .destination = arrived_};
  }
  bool Arrived(uint64_t offset) const {
    return std::equal(arrived_.begin(), arrived_.end(), memory_.begin() + static_cast<ptrdiff_t>(offset));
  }
  bool Untouched() const {
    return std::all_of(arrived_.begin(), arrived_.end(), [](std::byte b) { return b == std::byte{0xee}; });
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
  std::vector<std::byte> arrived_;
  std::shared_ptr<InprocFaults> faults_ = std::make_shared<InprocFaults>();
  InprocReader reader_{memory_, {.region = kRegion, .bytes = 4096, .layout_id = {}}, faults_};
};

TEST_F(InprocTest, ReadsWhatIsThere) {
  EXPECT_TRUE(ReadNow(reader_, Request(100, 1000)).ok());
  EXPECT_TRUE(Arrived(100));
}

TEST_F(InprocTest, APausedReadTouchesNothingUntilItGoesOn) {
  faults_->Pause();
  PendingRead read(reader_, Request(0, 64));
  ASSERT_TRUE(faults_->AwaitPaused(1, milliseconds(5000)));
  EXPECT_TRUE(Untouched());
  EXPECT_EQ(read.calls(), 0);
  faults_->Resume();
  EXPECT_TRUE(read.Await().ok());
  EXPECT_TRUE(Arrived(0));
}

TEST_F(InprocTest, AReadPausedAfterItsCopyHasLandedButNotEnded) {
  faults_->Pause(/*after_copy=*/true);
  PendingRead read(reader_, Request(0, 64));
  ASSERT_TRUE(faults_->AwaitPaused(1, milliseconds(5000)));
  EXPECT_TRUE(Arrived(0));
  EXPECT_EQ(read.calls(), 0);
  faults_->Resume();
  EXPECT_TRUE(read.Await().ok());
}

TEST_F(InprocTest, CloseEndsPausedAndQueuedReadsBeforeItReturns) {
  faults_->Pause();
  PendingRead paused(reader_, Request(0, 64));
  PendingRead queued(reader_, {.region = kRegion, .source_offset = 0, .destination = arrived_});
  ASSERT_TRUE(faults_->AwaitPaused(1, milliseconds(5000)));
  reader_.Close();
  EXPECT_EQ(paused.calls(), 1);
  EXPECT_EQ(queued.calls(), 1);
  EXPECT_TRUE(absl::IsUnavailable(paused.Await()));
  EXPECT_TRUE(absl::IsUnavailable(queued.Await()));
  EXPECT_TRUE(Untouched());
  EXPECT_FALSE(reader_.alive());
  EXPECT_TRUE(absl::IsUnavailable(ReadNow(reader_, Request(0, 1))));
  reader_.Close();
}

TEST_F(InprocTest, ASourceThatDiesFailsWhatWasPausedAndWhatComesLater) {
  faults_->Pause();
  PendingRead read(reader_, Request(0, 64));
  ASSERT_TRUE(faults_->AwaitPaused(1, milliseconds(5000)));
  reader_.KillSource();
  EXPECT_TRUE(absl::IsUnavailable(read.Await()));
  EXPECT_FALSE(reader_.alive());
  EXPECT_TRUE(absl::IsUnavailable(ReadNow(reader_, Request(0, 1))));
}

TEST_F(InprocTest, FlipsBitsOfTheReadThatIsNamed) {
  faults_->SetCorrupt([](uint64_t read, std::span<std::byte> bytes) {
    if (read == 2) bytes[3] ^= std::byte{1};
  });
  EXPECT_TRUE(ReadNow(reader_, Request(0, 64)).ok());
  EXPECT_TRUE(Arrived(0));
  EXPECT_TRUE(ReadNow(reader_, Request(0, 64)).ok());
  EXPECT_FALSE(Arrived(0));
  EXPECT_EQ(faults_->started(), 2u);
}

TEST_F(InprocTest, FailsTheReadThatIsNamed) {
  faults_->SetFail([](uint64_t read) { return read == 1 ? absl::UnavailableError("cut") : absl::OkStatus(); });
  EXPECT_TRUE(absl::IsUnavailable(ReadNow(reader_, Request(0, 64))));
  EXPECT_TRUE(Untouched());
  EXPECT_TRUE(ReadNow(reader_, Request(0, 64)).ok());
}

TEST_F(InprocTest, ADelayedReadTakesItsTime) {
  faults_->SetDelay(milliseconds(30));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(ReadNow(reader_, Request(0, 64)).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(30));
}

TEST_F(InprocTest, OutOfBoundsIsAnErrorAndTouchesNothing) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  for (uint64_t offset : {uint64_t{4096}, uint64_t{4033}, kMax, kMax - 63, kMax - 64}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadNow(reader_, Request(offset, 64)))) << offset;
    EXPECT_TRUE(Untouched());
  }
  EXPECT_TRUE(ReadNow(reader_, Request(4032, 64)).ok());
  ReadRequest other = Request(0, 64);
  other.region = kRegion + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(ReadNow(reader_, other)));
}

TEST_F(InprocTest, ReadsEndInTheOrderInWhichTheyWereAskedFor) {
  std::mutex mutex;
  std::vector<int> order;
  std::vector<std::byte> sink(64);
  for (int i = 0; i < 50; ++i) {
    reader_.Read({.region = kRegion, .source_offset = 0, .destination = sink}, [&, i](const absl::Status&) {
      std::lock_guard lock(mutex);
      order.push_back(i);
    });
  }
  reader_.Close();
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(order.size(), 50u);
}

}  // namespace
}  // namespace cofferdam::fabric
