#include "kv/zero.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>

namespace cofferdam::kv {
namespace {

struct alignas(64) Pages {
  std::byte bytes[8][4096];
};

TEST(Zero, ZeroesExactlyWhatItIsGiven) {
  auto pages = std::make_unique<Pages>();
  for (auto& page : pages->bytes) std::ranges::fill(page, std::byte{0xab});
  EXPECT_FALSE(IsZero(pages->bytes[1]));
  ZeroBytes(pages->bytes[1]);
  EXPECT_TRUE(IsZero(pages->bytes[1]));
  for (const size_t neighbour : {size_t{0}, size_t{2}}) {
    EXPECT_TRUE(std::ranges::all_of(pages->bytes[neighbour], [](std::byte b) { return b == std::byte{0xab}; }));
  }
}

TEST(Zero, OneByteAnywhereIsSeen) {
  auto pages = std::make_unique<Pages>();
  ZeroBytes(pages->bytes[0]);
  for (const size_t at : {size_t{0}, size_t{1}, size_t{2047}, size_t{4095}}) {
    pages->bytes[0][at] = std::byte{1};
    EXPECT_FALSE(IsZero(pages->bytes[0])) << at;
    pages->bytes[0][at] = std::byte{0};
  }
  EXPECT_TRUE(IsZero({}));
}

TEST(Zeroer, GivesEveryPageBackOnceZeroedAndInOrder) {
  auto pages = std::make_unique<Pages>();
  for (auto& page : pages->bytes) std::ranges::fill(page, std::byte{1});
  std::atomic<int> told = 0;
  std::vector<PageId> done;
  {
    Zeroer zeroer([&] { ++told; });
    for (uint32_t i = 0; i < 8; ++i) zeroer.Submit(PageId(i), pages->bytes[i]);
    while (done.size() < 8) {
      for (const PageId page : zeroer.TakeDone()) {
        EXPECT_EQ(page, PageId(static_cast<uint32_t>(done.size())));
        EXPECT_TRUE(IsZero(pages->bytes[page.value()]));
        done.push_back(page);
      }
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(told, 8);
}

TEST(Zeroer, EndsAfterWhatWasSubmitted) {
  auto pages = std::make_unique<Pages>();
  for (auto& page : pages->bytes) std::ranges::fill(page, std::byte{1});
  {
    Zeroer zeroer([] {});
    for (uint32_t i = 0; i < 8; ++i) zeroer.Submit(PageId(i), pages->bytes[i]);
  }
  for (auto& page : pages->bytes) EXPECT_TRUE(IsZero(page));
}

}  // namespace
}  // namespace cofferdam::kv
