// Pages that sequences of one isolation domain share in one generation, as a prefix cache gives them out.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tenure/report_testing.h"

namespace cofferdam::tenure {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class SharingTest : public ReportTest {
 protected:
  // r1 and r2 are served from page 3; r3 and r4 still hold it when a check of r3 fails at 35 s. r5 came later.
  Worker Story() {
    Worker worker(folder_, Role::kDecode, 1, 0);
    worker.StartIn("d", 1, 1, {Page(3, 6)});
    worker.StartIn("d", 2, 5, {Page(3, 6)});
    worker.StartIn("d", 2, 5, {Page(3, 6)});  // the same line twice
    worker.End(1, 10);
    worker.End(2, 20, Outcome::kCancelled);
    worker.StartIn("d", 4, 29, {Page(3, 6)});
    worker.StartIn("d", 3, 30, {Page(3, 6), Page(5, 7)});
    worker.BreakIn("d", 3, 35, Page(3, 6));
    worker.End(3, 36, Outcome::kIntegrity);
    worker.End(4, 40);
    worker.StartIn("d", 5, 41, {Page(3, 9)});
    worker.End(5, 42);
    return worker;
  }
};

TEST_F(SharingTest, ThatSequencesOfADomainShareAGenerationIsNoConflict) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.StartIn("d", 1, 1, {Page(3, 6), Page(4, 7)});
  worker.StartIn("d", 2, 2, {Page(3, 6), Page(4, 7), Page(5, 8)});
  worker.StartIn("d", 2, 2, {Page(3, 6), Page(4, 7), Page(5, 8)});  // the same line twice
  worker.End(1, 3);
  worker.End(2, 4);
  worker.StartIn("d", 3, 5, {Page(3, 6)});  // nobody held it: it was cached
  worker.End(3, 6);
  worker.StartIn("other", 4, 7, {Page(3, 9)});  // evicted, and reserved again
  worker.End(4, 8);
  EXPECT_TRUE(Read().clear()) << Render(Read());
}

TEST_F(SharingTest, I10_TwoDomainsInOneGenerationAreAFinding) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.StartIn("blue", 1, 1, {Page(3, 6), Page(4, 7)});
  worker.StartIn("blue", 2, 2, {Page(3, 6)});
  worker.StartIn("green", 3, 3, {Page(3, 6), Page(4, 7)});
  for (const uint64_t n : {1, 2, 3}) worker.End(n, 9);
  const Report report = Read();
  ASSERT_EQ(report.findings.size(), 1u);  // for both pages together
  EXPECT_EQ(report.findings[0].kind, Finding::Kind::kSharedAcrossDomains);
  EXPECT_EQ(report.findings[0].stamp.time, At(3));
  EXPECT_THAT(report.findings[0].text,
              AllOf(HasSubstr("page 3 (and 1 more) was shared by two isolation domains, which must never be: request r1"),
                    HasSubstr("domain blue, generation 6"), HasSubstr("request r3 (sequence 3, domain green, generation 6")));
  EXPECT_EQ(nlohmann::json::parse(RenderJson(report))["findings"][0]["kind"], "shared_across_domains");
}

TEST_F(SharingTest, I10_APageThatWasCachedForOneDomainIsNotForAnother) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.Serve(1, 1, 2, Page(3, 6));
  worker.Serve(2, 3, 4, Page(3, 6));
  ASSERT_EQ(Read().findings.size(), 1u);
  EXPECT_EQ(Read().findings[0].kind, Finding::Kind::kSharedAcrossDomains);
}

TEST_F(SharingTest, I10_ASharerOfAnotherDomainIsFoundThoughOnlyTheIncidentsRecordNamesIt) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.StartIn("blue", 1, 1, {Page(3, 6)});
  worker.BreakIn("blue", 1, 5, Page(3, 6),
                 {{Page(3, 6), SequenceId(8), "r8", "blue", At(1), 0}, {Page(3, 6), SequenceId(9), "r9", "green", At(1), 0}});
  worker.End(1, 6, Outcome::kIntegrity);
  const Report report = Read();
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].kind, Finding::Kind::kSharedAcrossDomains);
  EXPECT_THAT(report.findings[0].text, HasSubstr("request r9 (sequence 9, domain green)"));
}

TEST_F(SharingTest, I2_APageThatIsReservedAgainWhileOneOfItsSharersRunsIsAFinding) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.StartIn("d", 1, 1, {Page(3, 6)});
  worker.StartIn("d", 2, 2, {Page(3, 6)});
  worker.End(2, 3);
  worker.StartIn("d", 3, 4, {Page(3, 9)});
  worker.End(3, 5);
  worker.End(1, 6);
  const Report report = Read();
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].kind, Finding::Kind::kTwoOwners);
  EXPECT_THAT(report.findings[0].text, AllOf(HasSubstr("request r1"), HasSubstr("request r3"), Not(HasSubstr("request r2"))));
}

TEST_F(SharingTest, I2_EachSharerThatStillRunsIsNamed) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.StartIn("d", 1, 1, {Page(3, 6)});
  worker.StartIn("d", 2, 2, {Page(3, 6)});
  worker.StartIn("d", 3, 4, {Page(3, 9)});
  for (const uint64_t n : {1, 2, 3}) worker.End(n, 9);
  EXPECT_EQ(Read().findings.size(), 2u);
}

// Of very many sharers those that have ended are forgotten; the last to end is not, nor who runs.
TEST_F(SharingTest, I2_AmongManySharersTheOneThatStillRunsAndTheLastToEndAreFound) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.StartIn("d", 1, 1, {Page(3, 6)});
  for (uint64_t n = 100; n < 600; ++n) {
    worker.StartIn("d", n, 2, {Page(3, 6)});
    worker.End(n, n == 150 ? 30 : 3);  // of a clock that was set back
  }
  worker.StartIn("d", 2, 20, {Page(3, 9)});
  worker.End(1, 40);
  worker.End(2, 41);
  const Report report = Read();
  ASSERT_EQ(report.findings.size(), 2u);
  EXPECT_THAT(report.findings[0].text, HasSubstr("had two owners at once: request r1 "));
  EXPECT_THAT(report.findings[1].text, HasSubstr("had two owners at once: request r150 "));
}

TEST_F(SharingTest, AnIncidentNamesAllSharersAsPossiblyAffectedAndThoseThatHoldThePageFirst) {
  Story();
  const Report report = Read();
  EXPECT_TRUE(report.findings.empty());
  const IncidentReport incident = report.incidents.at(0);
  ASSERT_TRUE(incident.owner.has_value());
  EXPECT_EQ(incident.owner->request_id, "r3");
  ASSERT_EQ(Names(incident.exposed), (Requests{"r4", "r2", "r1"}));
  for (const Holder& holder : incident.exposed.listed) EXPECT_TRUE(holder.shared);
  EXPECT_TRUE(incident.exposed.listed[0].overlaps);
  EXPECT_FALSE(incident.exposed.listed[1].overlaps);
  EXPECT_EQ(Names(incident.passed), Requests{"r5"});
  EXPECT_TRUE(incident.content.listed.empty());  // they are no earlier owners
  EXPECT_EQ(incident.ruled_out.never_held, 0u);
}

TEST_F(SharingTest, TextAndJsonSayHowEachSharerStandsToTheIncident) {
  Story();
  const Report report = Read();
  const std::string text = Render(report);
  EXPECT_THAT(text, HasSubstr("could be affected: shared the generation"));
  EXPECT_THAT(text,
              HasSubstr("request r4 domain d (sequence 4), 2026-12-01T12:00:29.000000Z to 2026-12-01T12:00:40.000000Z, "
                        "finished, held the generation of the incident at the same time as its request, its own checks passed\n"));
  EXPECT_THAT(text, HasSubstr("cancelled, held the generation of the incident at another time than its request\n"));
  const auto incident = nlohmann::json::parse(RenderJson(report))["incidents"][0];
  const auto& sharer = incident["could_be_affected"]["listed"][0];
  EXPECT_EQ(sharer["request"], "r4");
  EXPECT_EQ(sharer["shared_generation"], true);
  EXPECT_EQ(sharer["overlaps"], true);
  EXPECT_EQ(sharer["checks_passed"], true);
  EXPECT_EQ(incident["record_left_off"]["sharers"], 0);
}

TEST_F(SharingTest, WhoHeldThePageWhileASharerDidIsAReaderThoughTheRequestOfTheIncidentCameLater) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.StartIn("d", 1, 1, {Page(3, 2)});
  worker.StartIn("d", 2, 5, {Page(3, 6)});
  worker.End(1, 9, Outcome::kCancelled);
  worker.StartIn("d", 3, 20, {Page(3, 6)});
  worker.BreakIn("d", 3, 25, Page(3, 6));
  const IncidentReport incident = Read().incidents.at(0);
  EXPECT_EQ(Names(incident.content), Requests{"r1"});
  EXPECT_EQ(Names(incident.exposed), (Requests{"r2", "r1"}));
  EXPECT_TRUE(incident.exposed.listed[1].overlaps);
  EXPECT_FALSE(incident.exposed.listed[1].shared);
}

TEST_F(SharingTest, AnIncidentOfACachedPageNamesAllWhoHeldIt) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.StartIn("d", 1, 1, {Page(3, 6)});
  worker.End(1, 2);
  worker.Write(Incident{.stamp = worker.Stamped(5),
                        .check = "scrub",
                        .page = PageId(3),
                        .expected_generation = Generation(6),
                        .found_generation = Generation(6)});
  const Report report = Read();
  EXPECT_EQ(Names(report.incidents.at(0).exposed), Requests{"r1"});
  EXPECT_THAT(Render(report), HasSubstr("    no request is named as the page's owner\n"));
}

TEST_F(SharingTest, SharersWhomTheIncidentRemembersFillWhatTheLogHasLost) {
  Worker prefill(folder_, Role::kPrefill, 5, 0);
  prefill.Serve(4, 1, 2, Page(7, 1));  // the same request as the one that decode's log has lost
  Worker worker(folder_, Role::kDecode, 1, 0);
  worker.StartIn("d", 2, 2, {Page(3, 6)});
  worker.Write(Gap{worker.Stamped(3), At(2), 4});
  worker.Write(Incident{
      .stamp = worker.Stamped(5),
      .sequence = SequenceId(3),
      .request_id = "r3",
      .domain = "d",
      .check = "payload",
      .page = PageId(3),
      .expected_generation = Generation(6),
      .earlier = {{Page(3, 4), SequenceId(8), "r8", "d", At(1), At(1)}, {Page(3, 4), SequenceId(7), "r7", "d", At(0), At(1)}},
      .sharers = {{Page(3, 6), SequenceId(4), "r4", "d", At(2), 0}, {Page(3, 6), SequenceId(2), "r2", "d", At(2), 0}},
      .more_sharers = 17});
  const Report report = Read();
  const IncidentReport& incident = report.incidents.at(0);
  EXPECT_EQ(Names(incident.content), (Requests{"r8", "r7"}));
  ASSERT_EQ(Names(incident.exposed), (Requests{"r2", "r4"}));
  EXPECT_FALSE(incident.exposed.listed[0].from_incident);
  EXPECT_TRUE(incident.exposed.listed[1].from_incident);
  EXPECT_TRUE(incident.exposed.listed[1].shared);
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(incident.ruled_out.elsewhere, 0u);
  EXPECT_THAT(Render(report), HasSubstr("does not name: 17 who shared the generation, 0 earlier ones"));
}

TEST_F(SharingTest, TheListOfSharersHasAnEndAndCountsTheRest) {
  Worker worker(folder_, Role::kDecode, 1, 0);
  for (uint64_t n = 1; n <= kMaxHolders + 10; ++n) {
    worker.StartIn("d", n, 1, {Page(3, 6)});
    if (n > 1) worker.End(n, 2);
  }
  worker.StartIn("d", 5000, 10, {Page(3, 6)});
  worker.BreakIn("d", 5000, 11, Page(3, 6));
  const IncidentReport incident = Read().incidents.at(0);
  EXPECT_EQ(incident.exposed.listed.size(), kMaxHolders);
  EXPECT_EQ(incident.exposed.more, 10u);
  EXPECT_EQ(incident.exposed.listed[0].request_id, "r1");  // it holds the page now
}

}  // namespace
}  // namespace cofferdam::tenure
