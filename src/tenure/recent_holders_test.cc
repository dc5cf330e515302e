#include "tenure/recent_holders.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace cofferdam::tenure {
namespace {

// Request "rN" is sequence N; it starts at N and holds until End.
class RecentHoldersTest : public testing::Test {
 protected:
  using Holder = RecentHolders::Holder;

  void Start(uint64_t n, uint64_t generation) {
    auto& holder = sequences_.emplace_back(std::make_shared<Holder>(
        Holder{.sequence = SequenceId(n), .request_id = absl::StrCat("r", n), .domain = "d", .started = static_cast<Micros>(n)}));
    holders_.Add({PageId(3), Generation(generation)}, holder);
  }
  void End(uint64_t n, Micros at) {
    for (auto& holder : sequences_) {
      if (holder->sequence == SequenceId(n)) holder->ended = at;
    }
  }
  Incident Describe(uint64_t n, uint64_t generation, uint32_t page = 3) const {
    Incident incident{.sequence = SequenceId(n), .page = PageId(page), .expected_generation = Generation(generation)};
    holders_.Describe(incident);
    return incident;
  }
  static std::vector<std::string> Names(const std::vector<RememberedTenure>& tenures) {
    std::vector<std::string> names;
    for (const RememberedTenure& tenure : tenures) names.push_back(tenure.request_id);
    return names;
  }
  using Requests = std::vector<std::string>;

  std::vector<std::shared_ptr<Holder>> sequences_;
  RecentHolders holders_;
};

TEST_F(RecentHoldersTest, OthersOfTheSameGenerationAreSharersAndThoseOfOthersAreEarlier) {
  Start(1, 4);
  End(1, 10);
  Start(2, 9);
  Start(3, 9);
  Start(4, 9);
  End(2, 20);
  const Incident incident = Describe(3, 9);
  EXPECT_EQ(incident.earlier, (std::vector<RememberedTenure>{{{PageId(3), Generation(4)}, SequenceId(1), "r1", "d", 1, 10}}));
  EXPECT_EQ(incident.sharers, (std::vector<RememberedTenure>{{{PageId(3), Generation(9)}, SequenceId(4), "r4", "d", 4, 0},
                                                             {{PageId(3), Generation(9)}, SequenceId(2), "r2", "d", 2, 20}}));
  EXPECT_EQ(incident.more_earlier + incident.more_sharers, 0u);
}

TEST_F(RecentHoldersTest, OfAPageThatNobodyHoldsAllWhoHeldItAreSharers) {
  Start(1, 9);
  Start(2, 9);
  EXPECT_EQ(Names(Describe(0, 9).sharers), (Requests{"r2", "r1"}));
  EXPECT_TRUE(Describe(0, 9, 2).sharers.empty());
  EXPECT_TRUE(Describe(0, 9, 1000).sharers.empty());  // a page that nobody ever held
}

TEST_F(RecentHoldersTest, ManyHoldersOfOneGenerationDoNotPushOutTheEarlierOnes) {
  for (uint64_t generation = 1; generation <= 3; ++generation) Start(generation, generation);
  for (uint64_t n = 100; n < 1100; ++n) Start(n, 50);
  const Incident incident = Describe(1099, 50);
  EXPECT_EQ(Names(incident.earlier), (Requests{"r3", "r2", "r1"}));
  EXPECT_EQ(incident.sharers.size(), RecentHolders::kHolders - 1);
  EXPECT_EQ(incident.sharers.front().request_id, "r1098");
  EXPECT_EQ(incident.sharers.size() + incident.more_sharers + 1, 1000u);
}

TEST_F(RecentHoldersTest, WhoHasEndedIsLeftOffBeforeWhoStillHoldsThePage) {
  Start(1, 9);
  for (uint64_t n = 2; n <= 100; ++n) {
    Start(n, 9);
    End(n, 1000);
  }
  const Incident incident = Describe(0, 9);
  EXPECT_EQ(incident.sharers.size(), RecentHolders::kHolders);
  EXPECT_EQ(incident.sharers.back().request_id, "r1");
  EXPECT_EQ(incident.more_sharers, 100 - RecentHolders::kHolders);
}

TEST_F(RecentHoldersTest, AnOwnerThatWasLeftOffItselfDoesNotCountAsASharer) {
  for (uint64_t n = 1; n <= RecentHolders::kHolders + 1; ++n) Start(n, 9);
  const Incident incident = Describe(1, 9);
  EXPECT_EQ(incident.sharers.size(), RecentHolders::kHolders);
  EXPECT_EQ(incident.more_sharers, 0u);
}

TEST_F(RecentHoldersTest, ItsRecordAlwaysFitsALineOfTheLogWhateverHappened) {
  for (uint64_t n = 1; n <= 10'000; ++n) Start(n, n / 100 + 1);
  const Incident incident = Describe(10'000, 101);
  EXPECT_LE(incident.earlier.size(), kMaxEarlier);
  EXPECT_EQ(incident.earlier.size(), (RecentHolders::kGenerations - 1) * RecentHolders::kHolders);
  EXPECT_EQ(incident.more_earlier, (RecentHolders::kGenerations - 1) * (100 - RecentHolders::kHolders));
  std::string line;
  AppendLines(incident, line);
  line.pop_back();
  ASSERT_TRUE(Parse(line).ok());
  EXPECT_EQ(std::get<Incident>(*Parse(line)).earlier, incident.earlier);
}

}  // namespace
}  // namespace cofferdam::tenure
