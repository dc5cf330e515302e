// What the tests of reports share: workers that leave logs behind, told in verbs.
#ifndef COFFERDAM_TENURE_REPORT_TESTING_H_
#define COFFERDAM_TENURE_REPORT_TESTING_H_

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tenure/report.h"
#include "tenure/testing.h"

namespace cofferdam::tenure {

inline constexpr Micros kNoon = 1'796'126'400'000'000;  // 2026-12-01T12:00:00Z
// A moment of the stories, so many seconds after noon.
constexpr Micros At(int seconds) { return kNoon + Micros{seconds} * 1'000'000; }

// The log of one boot. Request "rN" is sequence N, of domain "dN", or of the one that StartIn and BreakIn name.
class Worker {
 public:
  Worker(const TempFolder& folder, Role role, uint64_t boot, int at, uint32_t number = 1)
      : path_(folder.File({role, BootId(boot), number})), stamp_{At(at), role, BootId(boot)} {
    Write(Boot{stamp_, 16, 64, "1"});
  }

  void Start(uint64_t n, int at, std::vector<PageTenure> pages, uint64_t prompt_tokens = 100) {
    Write(Started{Stamped(at), SequenceId(n), absl::StrCat("r", n), absl::StrCat("d", n), prompt_tokens, 10, std::move(pages)});
  }
  void StartIn(std::string domain, uint64_t n, int at, std::vector<PageTenure> pages) {
    Write(Started{Stamped(at), SequenceId(n), absl::StrCat("r", n), std::move(domain), 100, 10, std::move(pages)});
  }
  void End(uint64_t n, int at, Outcome outcome = Outcome::kFinished) { Write(Ended{Stamped(at), SequenceId(n), outcome, 3, 2}); }
  // A request that took one page and finished.
  void Serve(uint64_t n, int from, int to, PageTenure page) {
    Start(n, from, {page});
    End(n, to);
  }
  void Reject(uint64_t n, int at, uint64_t prompt_tokens = 100, std::string code = "context_length_exceeded") {
    Write(Rejected{Stamped(at), absl::StrCat("r", n), absl::StrCat("d", n), prompt_tokens, 10, std::move(code)});
  }
  // A check of request n's page fails: the tag there is of generation `found`.
  void Break(uint64_t n, int at, PageTenure page, uint64_t found, std::string_view action = kActionEnded,
             std::vector<RememberedTenure> earlier = {}) {
    Write(Incident{Stamped(at), SequenceId(n), absl::StrCat("r", n), absl::StrCat("d", n), "tags", page.page, page.generation,
                   Generation(found), std::string(action), "", std::move(earlier)});
  }
  // The same for a page that others share: `sharers` is what the worker remembered of them.
  void BreakIn(std::string domain, uint64_t n, int at, PageTenure page, std::vector<RememberedTenure> sharers = {}) {
    Write(Incident{.stamp = Stamped(at),
                   .sequence = SequenceId(n),
                   .request_id = absl::StrCat("r", n),
                   .domain = std::move(domain),
                   .check = "payload",
                   .page = page.page,
                   .expected_generation = page.generation,
                   .found_generation = page.generation,
                   .action = std::string(kActionEnded),
                   .sharers = std::move(sharers)});
  }
  void Write(const Record& record) {
    std::string lines;
    AppendLines(record, lines);
    WriteBytes(lines);
  }
  void WriteBytes(const std::string& bytes) { std::ofstream(path_, std::ios::app | std::ios::binary) << bytes; }
  Stamp Stamped(int at) const { return {At(at), stamp_.role, stamp_.boot}; }

 private:
  const std::string path_;
  const Stamp stamp_;
};

inline PageTenure Page(uint32_t page, uint64_t generation) { return {PageId(page), Generation(generation)}; }

class ReportTest : public testing::Test {
 protected:
  Report Read() { return Read({}); }
  Report Read(Query query) {
    query.folder = folder_.path();
    auto report = Make(query);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : Report{};
  }
  static std::vector<std::string> Names(const Holders& holders) {
    std::vector<std::string> names;
    for (const Holder& holder : holders.listed) names.push_back(holder.request_id);
    return names;
  }
  using Requests = std::vector<std::string>;

  TempFolder folder_;
};

}  // namespace cofferdam::tenure

#endif  // COFFERDAM_TENURE_REPORT_TESTING_H_
