#include "gateway/key_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace cofferdam::gateway {
namespace {

using namespace std::chrono_literals;

class KeyWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = absl::StrCat(testing::TempDir(), "key_watch_test-", getpid(), ".json");
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // As `cofferdam keys` does it: a reader never sees half a file.
  void Write(const std::string& text) const {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  static std::string FileOf(const std::vector<std::string>& keys) { return RenderKeyFile(RecordsOfPlainKeys(keys)); }
  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 3000 && !condition(); ++i) std::this_thread::sleep_for(10ms);
    return condition();
  }

  std::string path_;
};

TEST_F(KeyWatchTest, FollowsTheFileAndKeepsTheKeysWhenItIsWrong) {
  Write(FileOf({"one"}));
  KeyRing ring(std::vector<KeyRecord>{});
  const KeyWatch watch(ring, path_, 5ms);
  EXPECT_TRUE(Eventually([&] { return ring.Find("Bearer one") != nullptr; }));
  Write(FileOf({"one", "two"}));
  EXPECT_TRUE(Eventually([&] { return ring.Find("Bearer two") != nullptr; }));
  Write("{\"keys\": [");
  std::this_thread::sleep_for(100ms);
  EXPECT_NE(ring.Find("Bearer one"), nullptr);
  std::filesystem::remove(path_);
  std::this_thread::sleep_for(100ms);
  EXPECT_NE(ring.Find("Bearer two"), nullptr);
  Write(FileOf({"two"}));
  EXPECT_TRUE(Eventually([&] { return ring.Find("Bearer one") == nullptr; }));
  EXPECT_NE(ring.Find("Bearer two"), nullptr);
}

TEST_F(KeyWatchTest, EndsAtOnce) {
  Write(FileOf({"one"}));
  KeyRing ring(std::vector<KeyRecord>{});
  const auto start = std::chrono::steady_clock::now();
  { const KeyWatch watch(ring, path_, 1h); }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 60s);
}

}  // namespace
}  // namespace cofferdam::gateway
