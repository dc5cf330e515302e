// Seeded faults inside of the real servers, under mixed load over HTTP: the counterpart of the campaign against the engine.
//
// Every run prints its table; the seed stands in COFFERDAM_FAULT_SEED, and the faults of one run in COFFERDAM_FAULTS_PER_RUN.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "e2e/both_modes.h"
#include "faults/kinds.h"
#include "faults/server_load.h"

namespace cofferdam::faults {
namespace {

using e2e::Cluster;
using e2e::Eventually;
using namespace std::chrono_literals;

constexpr size_t kQuestions = 96, kClients = 24;
constexpr auto kLookAtFaults = 200ms;  // each look takes time from the load
constexpr std::chrono::seconds kLongestLoad{3000};
// Of all steps and of all reads. About half of the requests are left alone: they are the witnesses.
constexpr const char* kStepRate = "0.02";
constexpr const char* kReadRate = "0.008";

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::string NameOf(FaultKind kind) { return std::string(kv::kFaultKindNames[static_cast<size_t>(kind)]); }

struct Run {
  const char* verify;
  e2e::Mode mode = e2e::Mode::kDisaggregated;
};

std::string NameOfRun(const testing::TestParamInfo<Run>& info) { return e2e::NameOf(info.param.mode) + "_" + info.param.verify; }

class FaultsInServers : public testing::TestWithParam<Run> {
 protected:
  void SetUp() override {
    model_ = e2e::StoriesModel();
    if (!model_) GTEST_SKIP() << "COFFERDAM_TEST_MODELS does not name a folder with stories260K.gguf";
    Cluster undisturbed(Arguments("tags"), GetParam().mode);
    ASSERT_TRUE(undisturbed.Start());
    questions_ = AskUndisturbed(undisturbed, kQuestions, seed_);
  }

  std::vector<std::string> Arguments(const std::string& verify) const {
    // A fault takes two pages out of use at most.
    const uint64_t pages = 4096 + 2 * faults_;
    std::vector<std::string> arguments{"--model",
                                       *model_,
                                       "--page-size",
                                       "16",
                                       "--chunk-tokens",
                                       "64",
                                       "--lifo-pages",
                                       "--no-prefix-cache",  // every request hands its pages over, and each fault has one victim
                                       "--local-prefill-tokens",
                                       "1",
                                       "--kv-tokens",
                                       std::to_string(16 * pages),
                                       "--verify-reads",
                                       verify};
    const std::vector<std::string> tenants = TenantArguments();
    arguments.insert(arguments.end(), tenants.begin(), tenants.end());
    return arguments;
  }

  void StartWith(const std::string& verify, const std::vector<FaultKind>& kinds) {
    std::vector<std::string> arguments = Arguments(verify);
    for (const FaultKind kind : kinds) {
      arguments.insert(arguments.end(), {"--inject", NameOf(kind) + ":" + (kv::IsInMemory(kind) ? kStepRate : kReadRate)});
    }
    arguments.insert(arguments.end(),
                     {"--inject-seed", std::to_string(seed_), "--inject-limit", std::to_string(FaultsOfAWorker())});
    cluster_ = std::make_unique<Cluster>(arguments, GetParam().mode);
    ASSERT_TRUE(cluster_->Start());
    processes_ = Processes();
  }

  std::vector<pid_t> Processes() const {
    std::vector<pid_t> processes;
    for (const std::string& role : cluster_->roles()) processes.push_back(cluster_->ProcessOf(role));
    processes.push_back(cluster_->ProcessOf("gateway"));
    return processes;
  }

  uint64_t FaultsOfAWorker() const { return (faults_ + 1) / 2; }

  // Until both workers, or decode alone, have injected all that they may, and everything that they held is let go.
  Outcomes RunLoad(bool prefill_too) {
    ServerLoad load(cluster_->port(), questions_, seed_, kClients);
    const auto all = static_cast<double>(FaultsOfAWorker());
    const auto injected = [&](const char* role) { return cluster_->Metric(role, "faults_injected_total") >= all; };
    const auto end = std::chrono::steady_clock::now() + kLongestLoad;
    while (!injected("decode") || (prefill_too && !injected("prefill"))) {
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "not every fault was injected within " << kLongestLoad.count() << " s";
        break;
      }
      std::this_thread::sleep_for(kLookAtFaults);
    }
    const Outcomes outcomes = load.Stop();
    for (const std::string& role : cluster_->roles()) EXPECT_TRUE(Eventually([&] { return PagesInUse(role) == 0; }, 10s)) << role;
    return outcomes;
  }

  double PagesInUse(const std::string& role) const {
    const double total = cluster_->Metric(role, "kv_pages_total");
    return total <= 0 ? -1 : total - cluster_->Metric(role, "kv_pages", "free") - cluster_->Metric(role, "kv_pages", "quarantined");
  }
  double Failed(const std::string& role, const std::string& check) const {
    return cluster_->Metric(role, "checks_failed_total", check);
  }
  double Victims(const std::string& role, FaultKind kind) const {
    return cluster_->Metric(role, "fault_victims_total", NameOf(kind));
  }
  // Of all kinds that change a tag.
  double TagVictims(const std::string& role) const {
    double sum = 0;
    for (size_t i = 0; i < static_cast<size_t>(FaultKind::kSealedFlip); ++i) sum += Victims(role, static_cast<FaultKind>(i));
    return sum;
  }
  double ArrivalFaults() const {
    double sum = 0;
    for (size_t i = static_cast<size_t>(FaultKind::kArrivalFlip); i < kFaultKinds; ++i) {
      sum += cluster_->Metric("decode", "faults_injected_total", std::string(kv::kFaultKindNames[i]));
    }
    return sum;
  }

  void ExpectServing() {
    EXPECT_TRUE(cluster_->AwaitHealthy());
    const auto again = AskUndisturbed(*cluster_, kQuestions, seed_);
    for (size_t i = 0; i < kQuestions; ++i) EXPECT_EQ(again[i].answer, questions_[i].answer) << questions_[i].body;
    EXPECT_EQ(Processes(), processes_) << "a process has been started again";
  }

  void Print(const std::string& verify, const Outcomes& outcomes, std::chrono::steady_clock::duration took) const {
    const engine::VerifyReads::Mode mode = engine::ParseVerifyReads(verify)->mode;
    std::printf("seed %llu, --verify-reads=%s\n%-32s %-10s %9s %9s %9s\n", static_cast<unsigned long long>(seed_), verify.c_str(),
                "fault", "must catch", "injected", "victims", "caught");
    double sums[3] = {};
    for (size_t i = 0; i < kFaultKinds; ++i) {
      double counts[3] = {};
      const char* const names[3] = {"faults_injected_total", "fault_victims_total", "faults_caught_total"};
      for (const std::string& role : cluster_->roles()) {
        for (size_t k = 0; k < 3; ++k) counts[k] += cluster_->Metric(role, names[k], std::string(kv::kFaultKindNames[i]));
      }
      for (size_t k = 0; k < 3; ++k) sums[k] += counts[k];
      const auto kind = static_cast<FaultKind>(i);
      if (counts[0] == 0) continue;
      std::printf("%-32s %-10s %9.0f %9.0f %9.0f\n", std::string(ToString(kind)).c_str(), MustCatch(kind, mode) ? "yes" : "no",
                  counts[0], counts[1], counts[2]);
    }
    std::printf("%-43s %9.0f %9.0f %9.0f\n", "all", sums[0], sums[1], sums[2]);
    std::printf("reads that ended after their handoff: %.0f, %.0f of them with a fault\n",
                cluster_->Metric("decode", "transfer_late_reads_total"), cluster_->Metric("decode", "late_faults_total"));
    std::printf("answers: %llu right, %llu clear errors (%llu of them in a stream), %llu wrong, %llu other; %llu cut off; %.0f s\n",
                static_cast<unsigned long long>(outcomes.right), static_cast<unsigned long long>(outcomes.clear_errors),
                static_cast<unsigned long long>(outcomes.streams_ended), static_cast<unsigned long long>(outcomes.wrong),
                static_cast<unsigned long long>(outcomes.other), static_cast<unsigned long long>(outcomes.cut),
                std::chrono::duration<double>(took).count());
  }

  const uint64_t faults_ = FromEnvironment("COFFERDAM_FAULTS_PER_RUN", 400);
  const uint64_t seed_ = FromEnvironment("COFFERDAM_FAULT_SEED", 20261202);
  std::optional<std::string> model_;
  std::vector<Question> questions_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<pid_t> processes_;
};

TEST_P(FaultsInServers, I6_I12_NoAnswerComesFromAWrongPageAndEveryFaultIsCounted) {
  const engine::VerifyReads::Mode verify = engine::ParseVerifyReads(GetParam().verify)->mode;
  const bool two_workers = GetParam().mode == e2e::Mode::kDisaggregated;
  std::vector<FaultKind> kinds;
  for (size_t i = 0; i < kFaultKinds; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    // Nothing arrives where there is one worker.
    if (MustCatch(kind, verify) && (two_workers || kv::IsInMemory(kind))) kinds.push_back(kind);
  }
  StartWith(GetParam().verify, kinds);
  const auto begun = std::chrono::steady_clock::now();
  const Outcomes outcomes = RunLoad(two_workers);
  Print(GetParam().verify, outcomes, std::chrono::steady_clock::now() - begun);

  EXPECT_EQ(outcomes.wrong + outcomes.other, 0u);
  for (const std::string& complaint : outcomes.complaints) ADD_FAILURE() << complaint;
  EXPECT_GT(outcomes.right, outcomes.clear_errors / 2) << "there must be witnesses";
  EXPECT_GT(outcomes.streams_ended, 0u);
  for (const std::string& role : cluster_->roles()) {
    for (const FaultKind kind : kinds) {
      EXPECT_EQ(cluster_->Metric(role, "faults_caught_total", NameOf(kind)), Victims(role, kind)) << role << " " << NameOf(kind);
    }
    const double tags = TagVictims(role), sealed = Victims(role, FaultKind::kSealedFlip);
    EXPECT_EQ(Failed(role, "tags"), tags) << role;
    // A fault that comes while a step runs may be found by both checks that follow it. A chunk in the middle of a prompt does not
    // read the last layer of the pages before it: what is wrong there is found by the next step that does, or by the scrubber
    // first.
    const double bytes = Failed(role, "payload") + Failed(role, "scrub");
    EXPECT_GE(bytes, sealed) << role;
    EXPECT_LE(bytes, sealed + tags) << role;
    EXPECT_LE(Failed(role, "scrub"), two_workers ? 0 : sealed) << role;
    EXPECT_EQ(cluster_->Metric(role, "kv_pages", "quarantined"), tags + sealed) << role;
    EXPECT_EQ(Failed(role, "content"), 0) << role;
    EXPECT_EQ(cluster_->Metric(role, "incidents_total"), cluster_->Metric(role, "checks_failed_total")) << role;
  }
  EXPECT_EQ(Failed("decode", "seal"), ArrivalFaults() - cluster_->Metric("decode", "late_faults_total"));
  for (const FaultKind kind : kinds) {
    EXPECT_GE(cluster_->Metric("decode", "faults_injected_total", NameOf(kind)), static_cast<double>(faults_ / 200))
        << NameOf(kind);
  }
  ExpectServing();
}

constexpr Run kTags{"tags"}, kFull{"full"}, kFullOfOneWorker{"full", e2e::Mode::kColocated};
INSTANTIATE_TEST_SUITE_P(Modes, FaultsInServers, testing::Values(kTags, kFull, kFullOfOneWorker), NameOfRun);

// What no mode must catch does harm, so that the test above would see harm where there is some; but to its own request alone.
class AFaultThatNoModeCatches : public FaultsInServers {};
TEST_P(AFaultThatNoModeCatches, HarmsNoOtherRequest) {
  StartWith(GetParam().verify, {FaultKind::kFillingFlip});
  const auto begun = std::chrono::steady_clock::now();
  const Outcomes outcomes = RunLoad(false);
  Print(GetParam().verify, outcomes, std::chrono::steady_clock::now() - begun);
  EXPECT_GT(outcomes.wrong, 0u);
  EXPECT_LE(static_cast<double>(outcomes.wrong), Victims("decode", FaultKind::kFillingFlip));
  EXPECT_EQ(outcomes.other + outcomes.clear_errors, 0u);
  for (const std::string& role : cluster_->roles()) EXPECT_EQ(cluster_->Metric(role, "checks_failed_total"), 0) << role;
  ExpectServing();
}

INSTANTIATE_TEST_SUITE_P(Full, AFaultThatNoModeCatches, testing::Values(kFull, kFullOfOneWorker), NameOfRun);

TEST(Inject, WhatIsNoKindOrNoRateIsRefusedWithTheKinds) {
  for (const char* text : {"swap", "swap:2", "swap:-1", "nothing:0.1", ":0.1"}) {
    const e2e::Ended ended = e2e::RunCofferdam({"up", "--port", "0", "--inject", text});
    EXPECT_EQ(ended.exit_code, 78) << text;
    EXPECT_NE(ended.output.find("the kinds are wrong-owner, "), std::string::npos) << ended.output;
  }
}

}  // namespace
}  // namespace cofferdam::faults
