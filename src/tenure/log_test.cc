#include "tenure/log.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <memory>
#include <set>

#include "tenure/testing.h"

namespace cofferdam::tenure {
namespace {

using namespace std::chrono_literals;

constexpr Micros kNow = 1'796'126'400'000'000;

// No file may grow beyond so many bytes while it lives: what a full disk is like.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit full{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &full);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

class LogTest : public testing::Test {
 protected:
  LogOptions Options() {
    return {.folder = folder_.path() + "/log",
            .role = Role::kDecode,
            .boot = BootId(7),
            .pages = 32,
            .page_tokens = 64,
            .version = "1",
            .retry = 5ms,
            .clock = [this] { return now_.fetch_add(1); }};
  }
  std::unique_ptr<Log> Open(LogOptions options) {
    auto log = Log::Open(std::move(options));
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  static Started Request(uint64_t sequence, uint32_t pages = 1) {
    Started started{.sequence = SequenceId(sequence), .request_id = "request", .domain = "default"};
    for (uint32_t i = 0; i < pages; ++i) started.pages.push_back({PageId(i), Generation(sequence)});
    return started;
  }
  static Incident Broken(uint64_t sequence) { return {.sequence = SequenceId(sequence), .check = "tags"}; }
  std::vector<Record> Written() { return ReadRecords(folder_.path() + "/log", &bad_); }
  std::vector<FileId> Files() { return ListFiles(folder_.path() + "/log").value(); }
  bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(5ms);
    return condition();
  }

  TempFolder folder_;
  std::atomic<Micros> now_ = kNow;
  int bad_ = 0;
};

TEST_F(LogTest, WhatIsAppendedIsReadAgainInOrderBehindTheBoot) {
  auto log = Open(Options());
  log->Append(Request(1));
  log->Append(Ended{.sequence = SequenceId(1), .outcome = Outcome::kFinished});
  log->Append(Broken(2));
  ASSERT_TRUE(log->Flush(10s));
  const auto records = Written();
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0], Record(Boot{{kNow, Role::kDecode, BootId(7)}, 32, 64, "1"}));
  EXPECT_EQ(std::get<Started>(records[1]).pages, Request(1).pages);
  EXPECT_EQ(std::get<Ended>(records[2]).outcome, Outcome::kFinished);
  EXPECT_EQ(std::get<Incident>(records[3]).sequence, SequenceId(2));
  for (const Record& record : records) EXPECT_EQ(StampOf(record).boot, BootId(7));
  EXPECT_LT(StampOf(records[1]).time, StampOf(records[2]).time);
  EXPECT_EQ(log->dropped() + log->errors(), 0u);
}

TEST_F(LogTest, AStampThatHasATimeKeepsIt) {
  auto log = Open(Options());
  log->Append(Ended{.stamp = {.time = 42, .role = Role::kPrefill, .boot = BootId(9)}, .sequence = SequenceId(1)});
  ASSERT_TRUE(log->Flush(10s));
  EXPECT_EQ(StampOf(Written().back()), (Stamp{42, Role::kDecode, BootId(7)}));
}

TEST_F(LogTest, FolderAndFilesAreOfTheirOwnerAlone) {
  const mode_t mask = umask(0);
  auto log = Open(Options());
  umask(mask);
  struct stat found {};
  ASSERT_EQ(stat((folder_.path() + "/log").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0700u);
  ASSERT_EQ(stat((folder_.path() + "/log/decode-0000000000000007-000001.jsonl").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0600u);
}

TEST_F(LogTest, TheDestructorWritesWhatIsQueued) {
  auto log = Open(Options());
  for (uint64_t i = 0; i < 5000; ++i) log->Append(Request(i));
  log.reset();
  EXPECT_EQ(Only<Started>(Written()).size(), 5000u);
}

TEST_F(LogTest, AFolderThatCannotBeMadeIsRefusedAtOnce) {
  std::ofstream(folder_.path() + "/log") << "a file";
  EXPECT_EQ(Log::Open(Options()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Log::Open(LogOptions{}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LogTest, FilesEndBeforeTheirLimitAndEachBeginsWithTheBoot) {
  auto options = Options();
  options.max_file_bytes = 2000;
  auto log = Open(options);
  for (uint64_t i = 0; i < 300; ++i) log->Append(Request(i));
  log->Append(Request(300, 500));  // longer than a file
  log->Append(Request(301));
  log.reset();
  const auto files = Files();
  EXPECT_GT(files.size(), 20u);
  EXPECT_LT(files.size(), 60u);
  int longer = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(files[i].number, i + 1);
    const std::string text = ReadFile(folder_.path() + "/log/" + FileName(files[i]));
    longer += text.size() > 2000 ? 1 : 0;
    EXPECT_TRUE(std::holds_alternative<Boot>(Parse(LinesOf(text)[0]).value()));
  }
  EXPECT_EQ(longer, 1);
  const auto started = Only<Started>(Written());
  ASSERT_EQ(started.size(), 302u);
  for (uint64_t i = 0; i < started.size(); ++i) EXPECT_EQ(started[i].sequence, SequenceId(i));
}

TEST_F(LogTest, NoMoreFilesAreKeptThanAllowedOverAllBoots) {
  auto options = Options();
  options.max_file_bytes = 2000;
  options.retention.max_files = 5;
  for (const uint64_t boot : {7, 3}) {
    options.boot = BootId(boot);
    auto log = Open(options);
    for (uint64_t i = 0; i < 20; ++i) log->Append(Request(i));
    ASSERT_TRUE(log->Flush(10s));
  }
  const auto files = Files();
  EXPECT_EQ(files.size(), 5u);
  EXPECT_EQ(Only<Started>(Written()).back().sequence, SequenceId(19));
}

TEST_F(LogTest, WhatDoesNotFitTheQueueIsCountedAndTheLogSaysSo) {
  auto options = Options();
  options.max_queue = 10;
  std::unique_ptr<Log> log = Open(options);
  ASSERT_TRUE(log->Flush(10s));
  {
    FullDisk full(0);
    log->Append(Request(0));
    ASSERT_TRUE(Eventually([&] { return log->errors() > 0; }));  // the writer holds the first one, and is stuck
    for (uint64_t i = 1; i <= 25; ++i) log->Append(Request(i));
    EXPECT_EQ(log->dropped(), 15u);
    log->Append(Broken(26));  // comes in all the same, with word of what is missing before it
    log->Append(Request(27));
    EXPECT_EQ(log->dropped(), 16u);
  }
  ASSERT_TRUE(log->Flush(10s));
  const auto records = Written();
  const auto gaps = Only<Gap>(records);
  ASSERT_EQ(gaps.size(), 2u);
  EXPECT_EQ(gaps[0].records, 15u);
  EXPECT_EQ(gaps[1].records, 1u);
  EXPECT_LT(gaps[0].since, gaps[0].stamp.time);
  const auto started = Only<Started>(records);
  ASSERT_EQ(started.size(), 11u);
  EXPECT_EQ(started.back().sequence, SequenceId(10));
  EXPECT_GT(gaps[0].since, started.back().stamp.time);
  EXPECT_EQ(Only<Incident>(records).size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Gap>(records.back()));
  EXPECT_EQ(bad_, 0);
}

TEST_F(LogTest, TheQueueHasALimitInBytesToo) {
  auto options = Options();
  options.max_queue_bytes = 100'000;
  auto log = Open(options);
  ASSERT_TRUE(log->Flush(10s));
  FullDisk full(0);
  log->Append(Request(0));
  ASSERT_TRUE(Eventually([&] { return log->errors() > 0; }));
  for (uint64_t i = 1; i <= 10; ++i) log->Append(Request(i, 2000));  // of 32 KiB
  EXPECT_EQ(log->dropped(), 7u);
}

TEST_F(LogTest, AFullDiskLosesNothingThatFitsTheQueueAndLeavesNoHalfLines) {
  auto log = Open(Options());
  {
    FullDisk full(3000);
    for (uint64_t i = 0; i < 100; ++i) log->Append(Request(i));
    // Files of 3,000 bytes go on; one line longer than that finds no place.
    log->Append(Request(100, 1000));
    log->Append(Request(101));
    EXPECT_FALSE(log->Flush(100ms));
    EXPECT_TRUE(Eventually([&] { return log->errors() > 20; }));
    EXPECT_LT(Files().size(), 10u);  // and no pile of empty ones, which would push others out
  }
  ASSERT_TRUE(log->Flush(10s));
  log.reset();
  const auto started = Only<Started>(Written());
  ASSERT_EQ(started.size(), 102u);
  for (uint64_t i = 0; i < started.size(); ++i) EXPECT_EQ(started[i].sequence, SequenceId(i));
  EXPECT_EQ(bad_, 0);
}

TEST_F(LogTest, ADiskThatStaysFullDoesNotHoldUpTheEnd) {
  auto log = Open(Options());
  ASSERT_TRUE(log->Flush(10s));
  FullDisk full(0);
  for (uint64_t i = 0; i < 1000; ++i) log->Append(Request(i));
  const auto begin = std::chrono::steady_clock::now();
  log.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

TEST_F(LogTest, AFolderThatIsGoneIsMadeAgain) {
  auto log = Open(Options());
  log->Append(Request(1));
  ASSERT_TRUE(log->Flush(10s));
  std::filesystem::remove_all(folder_.path() + "/log");
  log->Append(Request(2));
  ASSERT_TRUE(log->Flush(10s));
  const auto records = Written();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<Boot>(records[0]));
  EXPECT_EQ(std::get<Started>(records[1]).sequence, SequenceId(2));
}

TEST_F(LogTest, EightThreadsLoseNothingAndKeepTheirOrder) {
  constexpr uint64_t kThreads = 8, kEach = 4000;
  auto options = Options();
  options.max_file_bytes = 200'000;
  options.retention.max_files = 1000;
  auto log = Open(options);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kEach; ++i) log->Append(Ended{.sequence = SequenceId(t * kEach + i), .generated_tokens = i});
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(log->Flush(30s));
  EXPECT_EQ(log->dropped(), 0u);
  const auto ended = Only<Ended>(Written());
  ASSERT_EQ(ended.size(), kThreads * kEach);
  std::vector<uint64_t> next(kThreads, 0);
  for (const Ended& one : ended) ASSERT_EQ(one.generated_tokens, next[one.sequence.value() / kEach]++);
  EXPECT_EQ(bad_, 0);
}

}  // namespace
}  // namespace cofferdam::tenure
