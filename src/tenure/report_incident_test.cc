// Who could be affected by an incident, and who is ruled out.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tenure/report_testing.h"

namespace cofferdam::tenure {
namespace {

using testing::HasSubstr;
using testing::Not;

class IncidentTest : public ReportTest {
 protected:
  // Page 3 belonged to r1, r2 and then r3, whose check fails at 35 s; r3 is ended.
  Worker Story() {
    Worker worker(folder_, Role::kDecode, 1, 0);
    worker.Serve(1, 1, 10, Page(3, 1));
    worker.Serve(2, 11, 20, Page(3, 4));
    worker.Start(3, 30, {Page(3, 6), Page(5, 7)});
    worker.Break(3, 35, Page(3, 6), 4);
    worker.End(3, 36, Outcome::kIntegrity);
    return worker;
  }
};

TEST_F(IncidentTest, SaysWhatHappenedAndThatTheRequestWasEnded) {
  Story();
  const Report report = Read();
  ASSERT_EQ(report.incidents.size(), 1u);
  const IncidentReport& incident = report.incidents[0];
  ASSERT_TRUE(incident.owner.has_value());
  EXPECT_EQ(incident.owner->request_id, "r3");
  EXPECT_EQ(incident.owner->outcome, Outcome::kIntegrity);
  EXPECT_TRUE(report.findings.empty());
  EXPECT_FALSE(report.clear());
  const std::string text = Render(report);
  EXPECT_THAT(text, HasSubstr("2026-12-01T12:00:35.000000Z decode boot 0000000000000001: check \"tags\" failed on page 3"));
  EXPECT_THAT(text, HasSubstr("generation 6 was expected, 4 was found; request ended, page quarantined"));
  EXPECT_THAT(text,
              HasSubstr("request r3 domain d3 (sequence 3): ended before a token was sampled from the page; outcome integrity"));
}

TEST_F(IncidentTest, TheContentMayBeOfEarlierOwnersOfThePageNewestFirst) {
  Story();
  const IncidentReport incident = Read().incidents.at(0);
  ASSERT_EQ(Names(incident.content), (Requests{"r2", "r1"}));
  EXPECT_TRUE(incident.content.listed[0].tag_was_found);
  EXPECT_FALSE(incident.content.listed[1].tag_was_found);
  EXPECT_EQ(incident.content.listed[0].domain, "d2");
  EXPECT_EQ(incident.content.listed[0].ended, At(20));
  EXPECT_TRUE(incident.exposed.listed.empty() && incident.passed.listed.empty());
}

TEST_F(IncidentTest, PagesOfAnotherBootOrRoleAreOtherMemory) {
  Worker before(folder_, Role::kDecode, 2, -100);
  before.Serve(11, -90, -80, Page(3, 5));
  Worker prefill(folder_, Role::kPrefill, 1, 0);
  prefill.Serve(12, 31, 34, Page(3, 6));
  Story();
  const IncidentReport incident = Read().incidents.at(0);
  EXPECT_EQ(Names(incident.content), (Requests{"r2", "r1"}));
  EXPECT_TRUE(incident.exposed.listed.empty() && incident.passed.listed.empty());
  EXPECT_EQ(incident.ruled_out.elsewhere, 2u);
}

TEST_F(IncidentTest, ALaterOwnerWhoseChecksAllPassedIsSaidToHavePassed) {
  Worker worker = Story();
  worker.Serve(4, 40, 50, Page(3, 9));
  const IncidentReport incident = Read().incidents.at(0);
  EXPECT_EQ(Names(incident.passed), Requests{"r4"});
  EXPECT_TRUE(incident.exposed.listed.empty());
  EXPECT_EQ(Names(incident.content), (Requests{"r2", "r1"}));
}

TEST_F(IncidentTest, ALaterOwnerThatDidNotFinishCouldBeAffected) {
  Worker worker = Story();
  worker.Start(4, 40, {Page(3, 9)});
  worker.End(4, 41, Outcome::kCancelled);
  worker.Start(5, 42, {Page(3, 10)});
  worker.End(5, 43, Outcome::kFailed);
  worker.Start(6, 44, {Page(3, 11)});
  const IncidentReport incident = Read().incidents.at(0);
  EXPECT_EQ(Names(incident.exposed), (Requests{"r6", "r5", "r4"}));
  EXPECT_TRUE(incident.passed.listed.empty());
}

TEST_F(IncidentTest, ALaterOwnerWithAnIncidentOfItsOwnCouldBeAffectedThoughItFinished) {
  Worker worker = Story();
  worker.Start(4, 40, {Page(3, 9), Page(8, 10)});
  worker.Break(4, 41, Page(8, 10), 2, kActionRetired);
  worker.End(4, 42);
  const Report report = Read();
  ASSERT_EQ(report.incidents.size(), 2u);
  ASSERT_EQ(Names(report.incidents[0].exposed), Requests{"r4"});
  EXPECT_TRUE(report.incidents[0].exposed.listed[0].own_incident);
  EXPECT_TRUE(report.findings.empty());  // a page that was given up does not end its request
}

TEST_F(IncidentTest, WhoHeldThePageAtTheSameTimeIsNamedAsContentAndAsReader) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Start(1, 1, {Page(3, 1)});
  worker.Start(2, 5, {Page(3, 2)});
  worker.Break(2, 6, Page(3, 2), 1);
  worker.End(2, 7, Outcome::kIntegrity);
  worker.End(1, 9, Outcome::kCancelled);
  const Report report = Read();
  EXPECT_EQ(Names(report.incidents.at(0).content), Requests{"r1"});
  ASSERT_EQ(Names(report.incidents.at(0).exposed), Requests{"r1"});
  EXPECT_TRUE(report.incidents[0].exposed.listed[0].overlaps);
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].kind, Finding::Kind::kTwoOwners);
}

TEST_F(IncidentTest, RequestsThatNeverHeldThePageAreRuledOutByReason) {
  Worker worker = Story();
  for (uint64_t n = 10; n < 17; ++n) worker.Serve(n, 40, 41, Page(8, n));
  worker.Reject(20, 42);
  worker.Reject(21, 42);
  Worker prefill(folder_, Role::kPrefill, 5, 0);
  for (uint64_t n = 30; n < 33; ++n) prefill.Serve(n, 40, 41, Page(3, n));
  prefill.Serve(10, 30, 31, Page(2, 1));  // the same request as decode's: one request
  const Report report = Read();
  const RuledOut& out = report.incidents.at(0).ruled_out;
  EXPECT_EQ(out.never_held, 7u);
  EXPECT_EQ(out.elsewhere, 3u);
  EXPECT_EQ(out.rejected, 2u);
  EXPECT_EQ(report.requests, 3u + 7 + 3 + 2);
  const std::string text = Render(report);
  EXPECT_THAT(text, HasSubstr("7 requests of this worker: never held the page"));
  EXPECT_THAT(text, Not(HasSubstr("only as far as the log goes")));
}

// The prefill side of a request that held the page in decode is no stranger to the incident.
TEST_F(IncidentTest, NobodyIsRuledOutWhoHeldThePageUnderTheSameRequestId) {
  Story();
  Worker prefill(folder_, Role::kPrefill, 5, 0);
  prefill.Serve(2, 10, 11, Page(7, 1));
  prefill.Serve(3, 28, 29, Page(7, 2));
  prefill.Serve(40, 28, 29, Page(8, 3));
  EXPECT_EQ(Read().incidents.at(0).ruled_out.elsewhere, 1u);
}

TEST_F(IncidentTest, WhatTheIncidentRemembersFillsWhatTheLogHasLost) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Serve(2, 11, 20, Page(3, 4));
  worker.Break(3, 35, Page(3, 6), 1, kActionEnded,
               {{Page(3, 4), SequenceId(2), "r2", "d2", At(11), At(20)}, {Page(3, 1), SequenceId(1), "r1", "d1", At(1), At(9)}});
  const IncidentReport incident = Read().incidents.at(0);
  EXPECT_FALSE(incident.owner.has_value());
  ASSERT_EQ(Names(incident.content), (Requests{"r2", "r1"}));
  EXPECT_FALSE(incident.content.listed[0].from_incident);
  EXPECT_TRUE(incident.content.listed[1].from_incident);
  EXPECT_TRUE(incident.content.listed[1].tag_was_found);
}

TEST_F(IncidentTest, ARequestThatHadToEndAndFinishedIsAFinding) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Start(1, 1, {Page(3, 1)});
  worker.Break(1, 2, Page(3, 1), 0);
  worker.End(1, 3, Outcome::kFinished);
  const Report report = Read();
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].kind, Finding::Kind::kOwnerFinished);
}

TEST_F(IncidentTest, TheTimeAskedForChoosesTheIncidentsAndNotTheirHistory) {
  Worker worker = Story();
  worker.Start(7, 100, {Page(5, 20)});
  worker.Break(7, 101, Page(5, 20), 7);
  worker.End(7, 102, Outcome::kIntegrity);
  const Report late = Read({.since = At(90)});
  ASSERT_EQ(late.incidents.size(), 1u);
  EXPECT_EQ(late.incidents[0].incident.request_id, "r7");
  EXPECT_EQ(Names(late.incidents[0].content), Requests{"r3"});
  EXPECT_EQ(late.requests, 1u);
  EXPECT_EQ(Read({.since = At(90), .until = At(100)}).incidents.size(), 0u);
  EXPECT_EQ(Read({.until = At(35)}).incidents.size(), 1u);
  EXPECT_EQ(Read({.until = At(34)}).incidents.size(), 0u);
}

TEST_F(IncidentTest, JsonSaysTheSame) {
  Worker worker = Story();
  worker.Serve(4, 40, 50, Page(3, 9));
  worker.Serve(5, 40, 50, Page(8, 10));
  const auto json = nlohmann::json::parse(RenderJson(Read()));
  EXPECT_EQ(json["incomplete"], false);
  const auto& incident = json["incidents"][0];
  EXPECT_EQ(incident["page"], 3);
  EXPECT_EQ(incident["content_may_be_of"]["listed"][0]["request"], "r2");
  EXPECT_EQ(incident["held_it_and_passed"]["listed"][0]["request"], "r4");
  EXPECT_EQ(incident["could_be_affected"]["listed"].size(), 0u);
  EXPECT_EQ(incident["ruled_out"]["never_held_the_page"], 1);
  EXPECT_EQ(incident["owner"]["outcome"], "integrity");
  EXPECT_EQ(incident["time"], "2026-12-01T12:00:35.000000Z");
}

}  // namespace
}  // namespace cofferdam::tenure
