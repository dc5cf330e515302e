#include "kv/checks.h"

#include <gtest/gtest.h>

#include <set>

namespace cofferdam::kv {
namespace {

TEST(Checks, EveryKindHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (const CheckKind kind : kAllCheckKinds) EXPECT_TRUE(names.insert(ToString(kind)).second) << ToString(kind);
  EXPECT_EQ(names.size(), kCheckKinds);
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(ToString(static_cast<CheckKind>(kCheckKinds)), "unknown");
}

TEST(Checks, CountsOfTwoPlacesAddUpKindByKind) {
  CheckCounts all, more;
  all[CheckKind::kSeal] = {.made = 5, .failed = 1};
  more[CheckKind::kSeal] = {.made = 2, .failed = 2};
  more[CheckKind::kRows] = {.made = 9, .failed = 0};
  all += more;
  EXPECT_EQ(all[CheckKind::kSeal].made, 7u);
  EXPECT_EQ(all[CheckKind::kSeal].failed, 3u);
  EXPECT_EQ(all[CheckKind::kRows].made, 9u);
  EXPECT_EQ(all[CheckKind::kTags].made, 0u);
}

}  // namespace
}  // namespace cofferdam::kv
