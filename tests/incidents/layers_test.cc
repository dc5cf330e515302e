// The incident of 2026 re-created by its switches, one layer after the other taken away: a build with COFFERDAM_FAULTS=ON.
//
// A prefill worker that computes a placeholder instead of the prompt, and goes on. Its pages are then named by what was computed
// (the first layer), are looked at by their content (the second), and checks that do not run show in the health (the third).
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "e2e/both_modes.h"

namespace cofferdam::e2e {
namespace {

constexpr const char* kCode = "7391";

std::string Question() {
  std::string text = std::string("The access code of Anna is ") + kCode + ".";
  for (int i = 0; i < 24; ++i) text += " The old boat rested near the harbour.";
  return text + " What is the access code of Anna?";
}

class Layers : public testing::Test {
 protected:
  void StartWith(const std::vector<std::string>& faults, Mode mode = Mode::kDisaggregated) {
    std::vector<std::string> arguments{"--page-size", "16"};
    for (const std::string& fault : faults) arguments.insert(arguments.end(), {"--fault", fault});
    cluster_ = std::make_unique<Cluster>(arguments, mode);
    ASSERT_TRUE(cluster_->Start());
  }
  Response Ask() {
    const Json message{{"role", "user"}, {"content", Question()}};
    return cluster_->Chat({{"messages", {message}}, {"temperature", 0}, {"max_tokens", 8}});
  }
  static std::string Answer(const Response& response) {
    return response.json()["choices"][0]["message"]["content"].get<std::string>();
  }
  Response Health() { return cluster_->Ask("GET /health HTTP/1.1\r\nHost: test\r\n\r\n"); }
  // Health is that of half a second ago.
  bool HealthNames(const std::string& check) {
    return Eventually([&] {
      const Response health = Health();
      return health.status == 503 &&
             health.body.find("the check of " + check + " is configured and does not run") != std::string::npos;
    });
  }

  std::unique_ptr<Cluster> cluster_;
};

TEST_F(Layers, WithoutAFaultTheAnswerIsRight) {
  StartWith({});
  EXPECT_EQ(Answer(Ask()), kCode);
  EXPECT_EQ(Health().status, 200);
}

TEST_F(Layers, A1_APlaceholderInsteadOfThePromptIsFoundByThePagesIdentity) {
  StartWith({"placeholder-prompt", "rows-not-compared"});
  const Response response = Ask();
  EXPECT_EQ(response.status, 500) << response.body;
  EXPECT_EQ(response.json()["error"]["code"], "kv_integrity_violation") << response.body;
  EXPECT_EQ(cluster_->Metric("decode", "kv_pages_adopted_total"), 0) << "nothing of it joined a page table";
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
}

TEST_F(Layers, A1_WhereTheIdentityLiesTheContentIsFound) {
  StartWith({"placeholder-prompt", "rows-not-compared", "identity-from-request"});
  const Response response = Ask();
  EXPECT_EQ(response.status, 500) << response.body;
  EXPECT_EQ(response.json()["error"]["code"], "kv_integrity_violation") << response.body;
  EXPECT_GE(cluster_->Metric("decode", "checks_failed_total", "content"), 1);
  EXPECT_EQ(cluster_->Metric("decode", "generation_tokens_total"), 0) << "no token was computed from it";
  EXPECT_TRUE(cluster_->NobodyHoldsAPage());
}

TEST_F(Layers, A1_WithoutBothTheAnswerIsWrongAndTheHealthSaysWhichCheckDoesNotRun) {
  StartWith({"placeholder-prompt", "rows-not-compared", "identity-from-request", "content-not-checked"});
  const Response response = Ask();
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_NE(Answer(response), kCode) << "the fault is a real one";
  EXPECT_TRUE(HealthNames("content")) << Health().body;
}

// The faults above are of a prefill worker. This one is of any.
class LayersOfAnyWorker : public Layers, public testing::WithParamInterface<Mode> {};

TEST_P(LayersOfAnyWorker, TagsThatAreNotComparedShowInTheHealth) {
  StartWith({"tags-not-compared"}, GetParam());
  EXPECT_EQ(Answer(Ask()), kCode);
  EXPECT_TRUE(HealthNames("tags")) << Health().body;
  std::printf(
      "LAYER|tags not compared|health counts checks due and made|503 (%s): the check of tags is configured and does not run\n",
      NameOf(GetParam()).c_str());
}

INSTANTIATE_TEST_SUITE_P(Modes, LayersOfAnyWorker, kBothModes, NameOfMode);

}  // namespace
}  // namespace cofferdam::e2e
