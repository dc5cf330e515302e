#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "tenure/log.h"
#include "tenure/report_testing.h"

namespace cofferdam::tenure {
namespace {

using testing::HasSubstr;

TEST_F(ReportTest, ALogInWhichAllIsWellIsClearAndComplete) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Serve(1, 1, 2, Page(3, 1));
  worker.Serve(2, 2, 3, Page(3, 2));  // from the very moment on in which the other ended
  worker.Reject(3, 4);
  const Report report = Read();
  EXPECT_TRUE(report.clear());
  EXPECT_FALSE(report.incomplete());
  EXPECT_EQ(report.requests, 3u);
  EXPECT_EQ(report.records, 6u);
  EXPECT_THAT(Render(report), HasSubstr("0 incidents"));
  EXPECT_THAT(Render(report), HasSubstr("0 findings"));
}

TEST_F(ReportTest, NoFolderAndNoLogAreNotFound) {
  EXPECT_EQ(Make({.folder = folder_.path() + "/nowhere"}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Make({.folder = folder_.path()}).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(folder_.path() + "/notes.txt") << "x";
  const auto report = Make({.folder = folder_.path()});
  EXPECT_THAT(std::string(report.status().message()), HasSubstr(folder_.path()));
}

TEST_F(ReportTest, RequestsWithoutAnIdAreCountedOneByOne) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  for (const uint64_t n : {1, 2}) worker.Write(Started{.stamp = worker.Stamped(1), .sequence = SequenceId(n)});
  for (int i = 0; i < 2; ++i) worker.Write(Rejected{.stamp = worker.Stamped(2)});
  EXPECT_EQ(Read().requests, 4u);
}

TEST_F(ReportTest, I2_TwoOwnersOfAPageAtOnceAreAFinding) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Start(1, 1, {Page(3, 1), Page(4, 2)});
  worker.Start(2, 5, {Page(3, 3), Page(4, 4)});
  worker.End(1, 6);
  worker.End(2, 7);
  const Report report = Read();
  ASSERT_EQ(report.findings.size(), 1u);  // for both pages together
  EXPECT_EQ(report.findings[0].kind, Finding::Kind::kTwoOwners);
  EXPECT_THAT(report.findings[0].text, HasSubstr("page 3 (and 1 more) had two owners at once: request r1"));
  EXPECT_FALSE(report.clear());
}

TEST_F(ReportTest, I2_AnOwnerWithoutAnEndStillHoldsItsPage) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Start(1, 1, {Page(3, 1)});
  worker.Serve(2, 5, 6, Page(3, 3));
  EXPECT_EQ(Read().findings.size(), 1u);
}

// Records of several threads may come in another order than their times.
TEST_F(ReportTest, I2_AnEndThatIsWrittenLateIsJudgedByItsTime) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Start(1, 1, {Page(3, 1)});
  worker.Start(2, 5, {Page(3, 3)});
  worker.End(1, 4);
  worker.End(2, 7);
  EXPECT_TRUE(Read().findings.empty());
}

TEST_F(ReportTest, I2_AGenerationThatGoesBackwardsIsAFinding) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Serve(1, 1, 2, Page(3, 8));
  worker.Serve(2, 3, 4, Page(3, 7));
  const Report report = Read();
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].kind, Finding::Kind::kGenerationBackwards);
}

TEST_F(ReportTest, GenerationsOfAnotherBootStartAfresh) {
  Worker first(folder_, Role::kDecode, 1, 0);
  first.Start(1, 1, {Page(3, 8)});
  Worker second(folder_, Role::kDecode, 2, 10);
  second.Serve(1, 11, 12, Page(3, 1));
  EXPECT_TRUE(Read().findings.empty());
}

TEST_F(ReportTest, I1_ARejectedRequestThatTookPagesIsAFinding) {
  Worker worker(folder_, Role::kPrefill, 1, 0);
  worker.Reject(5, 1);
  worker.Start(5, 2, {Page(3, 1)}, 1);
  const Report report = Read();
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].kind, Finding::Kind::kRejectedThenStarted);
  EXPECT_THAT(report.findings[0].text, HasSubstr("r5"));
}

TEST_F(ReportTest, ARejectionElsewhereOrForWantOfAWorkerIsNoVerdictOnTheRequest) {
  Worker prefill(folder_, Role::kPrefill, 1, 0);
  prefill.Reject(5, 1);
  Worker decode(folder_, Role::kDecode, 1, 0);
  decode.Serve(5, 2, 3, Page(3, 1));
  decode.Reject(6, 4, 100, "no_worker_available");
  decode.Serve(6, 5, 6, Page(3, 2));
  EXPECT_TRUE(Read().findings.empty());
}

TEST_F(ReportTest, ASequenceThatTakesPagesAfterItsEndIsAFinding) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Serve(1, 1, 2, Page(3, 1));
  worker.Start(1, 3, {Page(4, 2)});
  ASSERT_EQ(Read().findings.size(), 1u);
  EXPECT_EQ(Read().findings[0].kind, Finding::Kind::kSequenceReused);
}

TEST_F(ReportTest, AnEndForIntegrityNeedsAnIncidentOfTheRequestInSomeRole) {
  Worker decode(folder_, Role::kDecode, 1, 0);
  decode.Start(1, 1, {Page(3, 1)});
  decode.End(1, 9, Outcome::kIntegrity);
  ASSERT_EQ(Read().findings.size(), 1u);
  EXPECT_EQ(Read().findings[0].kind, Finding::Kind::kIntegrityNoIncident);
  Worker prefill(folder_, Role::kPrefill, 1, 0);
  prefill.Start(1, 2, {Page(5, 1)});
  prefill.Break(1, 3, Page(5, 1), 0);
  prefill.End(1, 4, Outcome::kIntegrity);
  EXPECT_TRUE(Read().findings.empty());
}

TEST_F(ReportTest, LongPromptsAreListedWithTheirPagesWhichARejectedOneHasNotGot) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Reject(1, 1, 5000);
  worker.Start(2, 2, {Page(1, 1), Page(2, 2), Page(3, 3)}, 4999);
  worker.End(2, 3);
  worker.Start(3, 4, {Page(1, 4), Page(2, 5)}, 5000);
  worker.Start(3, 4, {Page(3, 6)}, 5000);  // the rest of its pages
  worker.End(3, 6, Outcome::kCancelled);
  const Report report = Read({.min_prompt_tokens = 5000});
  ASSERT_EQ(report.long_prompts.size(), 2u);
  EXPECT_EQ(report.long_prompts[0].request_id, "r1");
  EXPECT_TRUE(report.long_prompts[0].rejected);
  EXPECT_EQ(report.long_prompts[0].pages, 0u);
  EXPECT_EQ(report.long_prompts[1].request_id, "r3");
  EXPECT_FALSE(report.long_prompts[1].rejected);
  EXPECT_EQ(report.long_prompts[1].pages, 3u);
  EXPECT_THAT(Render(report), HasSubstr("request r1 domain d1: 5000 tokens, 0 pages, rejected (context_length_exceeded)"));
  EXPECT_THAT(Render(report), HasSubstr("request r3 domain d3: 5000 tokens, 3 pages, served, cancelled"));
  EXPECT_TRUE(Read().long_prompts.empty());
  EXPECT_EQ(Read({.since = At(5), .min_prompt_tokens = 5000}).long_prompts.size(), 1u);
}

TEST_F(ReportTest, AGapMakesTheReportIncompleteAndRulesNobodyOutWithoutThatRemark) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Serve(1, 1, 2, Page(3, 1));
  worker.Write(Gap{worker.Stamped(5), At(4), 12});
  worker.Start(2, 6, {Page(3, 5)});
  worker.Break(2, 7, Page(3, 5), 1);
  worker.End(2, 8, Outcome::kIntegrity);
  const Report report = Read();
  EXPECT_TRUE(report.incomplete());
  EXPECT_EQ(report.missing_records, 12u);
  const std::string text = Render(report);
  EXPECT_THAT(text, HasSubstr("incomplete: 12 records are missing"));
  size_t remarks = 0;
  for (size_t at = text.find("only as far as the log goes"); at != std::string::npos;
       at = text.find("only as far as the log goes", at + 1))
    ++remarks;
  EXPECT_EQ(remarks, 3u);
  EXPECT_EQ(nlohmann::json::parse(RenderJson(report))["incidents"][0]["ruled_out"]["only_as_far_as_the_log_goes"], true);
}

TEST_F(ReportTest, AGapOutsideOfTheTimeAskedForIsNoMatterUnlessItsBootHasAnIncidentInIt) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Write(Gap{worker.Stamped(5), At(4), 12});
  worker.Start(2, 60, {Page(3, 5)});
  EXPECT_TRUE(Read().incomplete());
  EXPECT_FALSE(Read({.since = At(50)}).incomplete());
  EXPECT_FALSE(Read({.until = At(3)}).incomplete());
  worker.Break(2, 70, Page(3, 5), 1);
  EXPECT_TRUE(Read({.since = At(50)}).incomplete());  // the history of the page has a hole
}

TEST_F(ReportTest, BadLinesAreCountedAndMakeTheReportIncomplete) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Start(1, 10, {Page(3, 1)});
  worker.WriteBytes("garbage\n\n{\"kind\":\"ended\"}\n");
  worker.Write(Ended{{At(11), Role::kDecode, BootId(99)}, SequenceId(1)});  // of another boot
  worker.WriteBytes(std::string(kMaxLineBytes + 5, 'x') + "\n");
  worker.End(1, 20);
  const Report report = Read();
  EXPECT_EQ(report.bad_lines, 5u);
  EXPECT_EQ(report.missing_records, 5u);
  EXPECT_THAT(Render(report), HasSubstr("incomplete: 5 records are missing"));
  EXPECT_TRUE(Read({.since = At(15)}).incomplete());
  EXPECT_FALSE(Read({.since = At(21)}).incomplete());
  EXPECT_FALSE(Read({.until = At(9)}).incomplete());
}

TEST_F(ReportTest, ALineThatACrashCutOffIsShownAndNoFault) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Serve(1, 1, 2, Page(3, 1));
  worker.WriteBytes("{\"kind\":\"started\",\"time\":17");
  const Report report = Read();
  EXPECT_EQ(report.cut_off_lines, 1u);
  EXPECT_EQ(report.bad_lines, 0u);
  EXPECT_FALSE(report.incomplete());
  EXPECT_THAT(Render(report), HasSubstr("1 line cut off at the end of a file"));
}

TEST_F(ReportTest, RotatedFilesAreOneHistoryAndOnesThatAreGoneAreMissing) {
  {
    Worker first(folder_, Role::kDecode, 1, 0, 1);
    first.Start(1, 1, {Page(3, 1)});
    Worker second(folder_, Role::kDecode, 1, 0, 2);
    second.End(1, 5);
    Worker third(folder_, Role::kDecode, 1, 0, 3);
    third.Serve(2, 6, 7, Page(3, 2));
  }
  Report report = Read();
  EXPECT_TRUE(report.clear() && !report.incomplete());
  EXPECT_EQ(report.boots.size(), 1u);
  std::filesystem::remove(folder_.File({Role::kDecode, BootId(1), 2}));
  report = Read();
  EXPECT_THAT(Render(report), HasSubstr("incomplete: an unknown number of records are missing"));
  // What contradicts a rule may be an end that was lost: the finding says so.
  EXPECT_THAT(report.findings.at(0).text, HasSubstr("records of this boot are missing"));
  EXPECT_FALSE(Read({.since = At(7)}).incomplete());
}

TEST_F(ReportTest, AnEndWithoutAStartMakesTheReportIncomplete) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.End(4, 5);
  EXPECT_THAT(Render(Read()), HasSubstr("1 requests ended whose start is not in the log"));
}

TEST_F(ReportTest, PagesThatAreAnnouncedAndNotNamedMakeTheReportIncomplete) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Write(Started{worker.Stamped(1), SequenceId(1), "r1", "d1", 1, 1, {Page(3, 1)}, 5});
  EXPECT_TRUE(Read().incomplete());
  worker.Write(
      Started{worker.Stamped(1), SequenceId(1), "r1", "d1", 1, 1, {Page(4, 2), Page(5, 3), Page(6, 4), Page(7, 5), Page(8, 6)}, 0});
  EXPECT_FALSE(Read().incomplete());
}

TEST_F(ReportTest, AFileThatCannotBeReadIsNamedAndMakesTheReportIncomplete) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Serve(1, 1, 2, Page(3, 1));
  ASSERT_EQ(symlink("/etc/passwd", folder_.File({Role::kDecode, BootId(1), 2}).c_str()), 0);
  ASSERT_EQ(mkfifo(folder_.File({Role::kDecode, BootId(1), 3}).c_str(), 0600), 0);
  const Report report = Read();
  EXPECT_EQ(report.unreadable.size(), 2u);
  EXPECT_TRUE(report.incomplete());
  EXPECT_THAT(Render(report), HasSubstr("decode-0000000000000001-000003.jsonl: not a regular file"));
}

TEST_F(ReportTest, ARequestWithoutAnEndStillRunsUntilALaterBootSaysThatItsWorkerDied) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Start(1, 1, {Page(3, 1)}, 5000);
  Worker prefill(folder_, Role::kPrefill, 9, 50);  // says nothing of decode
  EXPECT_EQ(Read({.min_prompt_tokens = 5000}).long_prompts.at(0).fate, Fate::kOpen);
  EXPECT_THAT(Render(Read()), HasSubstr("1 without an end: still running, or the worker died"));
  Worker next(folder_, Role::kDecode, 2, 60);
  EXPECT_EQ(Read({.min_prompt_tokens = 5000}).long_prompts.at(0).fate, Fate::kDied);
  EXPECT_THAT(Render(Read()), HasSubstr("1 without an end: the worker died"));
  EXPECT_EQ(Read({.since = At(30)}).requests, 0u);
  // A second worker of the role beside it is no successor.
  worker.Serve(2, 70, 71, Page(4, 2));
  EXPECT_EQ(Read({.min_prompt_tokens = 5000}).long_prompts.at(0).fate, Fate::kOpen);
}

TEST_F(ReportTest, ALogThatIsBeingWrittenCanBeRead) {
  auto log = Log::Open({.folder = folder_.path(), .boot = BootId(1)});
  ASSERT_TRUE(log.ok());
  for (uint64_t i = 1; i <= 1000; ++i) {
    (*log)->Append(Started{.sequence = SequenceId(i), .request_id = absl::StrCat("r", i), .pages = {Page(1, i)}});
    (*log)->Append(Ended{.sequence = SequenceId(i), .outcome = Outcome::kFinished});
  }
  for (int i = 0; i < 5; ++i) {
    const auto report = Make({.folder = folder_.path()});
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report->clear() && report->bad_lines == 0);
  }
  ASSERT_TRUE((*log)->Flush(std::chrono::seconds(30)));
  EXPECT_EQ(Read().records, 2001u);
}

// The limits leave room for slow machines: here it takes a fraction of both.
// They are slow, and keep memory of their own for each byte.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

TEST_F(ReportTest, AMillionRecordsAreReadInSecondsAndBoundedMemory) {
  constexpr uint64_t kRequests = kSanitized ? 20'000 : 500'000;
  {
    std::string text;
    std::ofstream file(folder_.File({Role::kDecode, BootId(1), 1}), std::ios::binary);
    for (uint64_t i = 1; i <= kRequests; ++i) {
      const Stamp stamp{kNoon + static_cast<Micros>(i), Role::kDecode, BootId(1)};
      std::vector<PageTenure> pages;
      for (uint32_t p = 0; p < 16; ++p) pages.push_back(Page(static_cast<uint32_t>(i * 16 + p) % 4096, i * 16 + p));
      AppendLines(Started{stamp, SequenceId(i), absl::StrCat("chatcmpl-", absl::Hex(i, absl::kZeroPad16), absl::Hex(~i)), "default",
                          900, 100, pages},
                  text);
      AppendLines(Ended{stamp, SequenceId(i), Outcome::kFinished, 10, 16}, text);
      if (i == kRequests / 2)
        AppendLines(Incident{.stamp = stamp, .sequence = SequenceId(i), .check = "tags", .page = pages[0].page}, text);
      file << std::exchange(text, "");
    }
  }
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const auto begin = std::chrono::steady_clock::now();
  const Report report = Read();
  const auto took = std::chrono::steady_clock::now() - begin;
  getrusage(RUSAGE_SELF, &after);
  EXPECT_EQ(report.records, 2 * kRequests + 1);
  EXPECT_EQ(report.requests, kRequests);
  EXPECT_EQ(report.incidents.size(), 1u);
  EXPECT_LT(took, std::chrono::seconds(60));
  EXPECT_TRUE(kSanitized || after.ru_maxrss - before.ru_maxrss < 500L << 10);
  RecordProperty("read_ms", std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
  std::printf("%llu records: %lld ms, %ld MiB more\n", static_cast<unsigned long long>(report.records),
              static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()),
              (after.ru_maxrss - before.ru_maxrss) >> 10);
}

}  // namespace
}  // namespace cofferdam::tenure
