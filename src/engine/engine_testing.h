// What tests of the engine share. Include it from them alone.
#ifndef COFFERDAM_ENGINE_ENGINE_TESTING_H_
#define COFFERDAM_ENGINE_ENGINE_TESTING_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/executor.h"

namespace cofferdam::engine {

// Story: a real small model over a pool of its own; `Generate` runs prompts to their end.
class EngineTest : public testing::Test {
 protected:
  static constexpr uint64_t kPages = 64;

  void SetUp() override {
    const char* folder = std::getenv("COFFERDAM_TEST_MODELS");
    if (folder == nullptr) GTEST_SKIP() << "COFFERDAM_TEST_MODELS is not set";
    auto model = model::Model::Load({.path = std::string(folder) + "/stories260K.gguf", .model_hash = "test", .page_tokens = 16});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
    memory_.resize(kPages * model_->layout().page_bytes() + 64);
    std::byte* base = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    pool_ = std::make_unique<kv::Pool>(model_->layout(), std::span(base, kPages * model_->layout().page_bytes()), 7,
                                       kv::ReuseOrder::kLifo);
    auto executor = model::Executor::Create(model_, {.threads = 1, .cpus = {}, .max_rows = 64});
    ASSERT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
    engine_ = std::make_unique<Engine>(Options(), *executor_, *pool_);
  }
  void TearDown() override {
    if (engine_ == nullptr) return;
    engine_.reset();
    pool_->Reclaim(StepEpoch(~uint64_t{0}));
    EXPECT_EQ(pool_->counts().free() + pool_->counts().by_state[static_cast<size_t>(kv::PageState::kQuarantined)], kPages);
  }

  virtual EngineOptions Options() const { return {.role = "test worker", .context_tokens = 512, .chunk_tokens = 64}; }

  static std::vector<TokenId> Prompt(unsigned seed, size_t length) {
    std::mt19937 random(seed);
    std::vector<TokenId> tokens(length);
    for (TokenId& token : tokens) token = static_cast<TokenId>(3 + random() % 500);
    return tokens;
  }
  SequenceSpec Spec(std::vector<TokenId> tokens, uint32_t output) {
    return {.domain_key = kv::DomainKey({}, "tenant"),
            .tokens = std::move(tokens),
            .max_output = output,
            .sampling = model::SamplingParams{.temperature = 0}};
  }
  SequenceId Start(SequenceSpec spec) {
    auto started = engine_->Start(std::move(spec));
    EXPECT_TRUE(std::holds_alternative<Engine::Started>(started));
    return std::get<Engine::Started>(started).sequence;
  }
  void StepAll() {
    while (engine_->HasWork()) StepOnce();
  }
  void StepOnce() {
    std::vector<Event> events;
    engine_->Step(events);
    engine_->Reclaim();
    for (const Event& event : events) {
      if (const auto* token = std::get_if<TokenEvent>(&event)) tokens_[token->sequence].push_back(token->token);
      Note(event);
      if (const auto* sealed = std::get_if<SealedEvent>(&event)) sealed_[sealed->sequence].push_back(*sealed);
    }
  }
  void Note(const Event& event) {
    const auto* failed = std::get_if<FailedEvent>(&event);
    if (failed == nullptr) return;
    failed_[failed->sequence] = failed->status;
    wrong_[failed->sequence] = failed->wrong;
  }
  uint64_t Failed(kv::CheckKind kind) const { return engine_->counters().checks[kind].failed; }
  uint64_t Made(kv::CheckKind kind) const { return engine_->counters().checks[kind].made; }
  void Flip(PageId page, size_t at) { pool_->Payload(page)[at] ^= std::byte{4}; }
  // A sequence of `prompt` that waits, with pages that a source computed from `computed` and signed for `prompt`: every check of
  // seal and bytes passes. Its own prompt is `sinks` where one is given.
  SequenceId HandOver(const std::vector<TokenId>& computed, const std::vector<TokenId>& prompt, uint32_t output,
                      std::optional<std::vector<TokenId>> sinks = std::nullopt) {
    const kv::Key key = kv::DomainKey({}, "tenant");
    const SequenceId source =
        Start({.domain_key = key, .tokens = {computed.begin(), computed.end() - 1}, .max_output = 0, .sampling = {}});
    engine_->Run(source);
    StepAll();
    const auto identities = kv::PageIdentities(key, model_->layout(), {prompt.data(), prompt.size() - 1});
    EXPECT_EQ(sealed_[source].size(), identities.size());
    const SequenceId sink = Start(Spec(sinks.value_or(prompt), output));
    for (const SealedEvent& page : sealed_[source]) {
      const auto view = engine_->PageAt(sink, page.ordinal);
      std::ranges::copy(pool_->Payload(page.page), view.payload.begin());
      kv::Seal seal = page.seal;
      EXPECT_TRUE(computed != prompt || seal.identity == identities[page.ordinal]);
      seal.identity = identities[page.ordinal];
      const auto expected = static_cast<uint32_t>(std::min<size_t>(16, prompt.size() - 1 - size_t{page.ordinal} * 16));
      const kv::Arrival arrival = kv::VerifyArrived(model_->layout(), view, seal, identities[page.ordinal], expected);
      EXPECT_TRUE(engine_->Adopt(sink, page.ordinal, std::get<kv::Verified>(arrival)).ok());
    }
    engine_->Release(source);
    return sink;
  }
  // What an engine without a cache, over a large pool of its own, answers.
  std::vector<TokenId> Alone(const SequenceSpec& spec) {
    std::vector<std::byte> memory(kPages * model_->layout().page_bytes());
    kv::Pool pool(model_->layout(), memory, 8, kv::ReuseOrder::kFifo);
    std::vector<TokenId> answer;
    {
      Engine engine({.role = "test worker", .context_tokens = 512, .chunk_tokens = 64}, *executor_, pool);
      engine.Run(std::get<Engine::Started>(engine.Start(spec)).sequence);
      std::vector<Event> events;
      while (engine.HasWork()) engine.Step(events);
      for (const Event& event : events) {
        if (const auto* token = std::get_if<TokenEvent>(&event)) answer.push_back(token->token);
      }
    }
    return answer;
  }
  std::vector<TokenId> Generate(SequenceSpec spec) {
    const SequenceId id = Start(std::move(spec));
    engine_->Run(id);
    StepAll();
    return tokens_[id];
  }

  std::shared_ptr<const model::Model> model_;
  std::vector<std::byte> memory_;
  std::unique_ptr<kv::Pool> pool_;
  std::unique_ptr<model::Executor> executor_;
  std::unique_ptr<Engine> engine_;
  std::map<SequenceId, std::vector<TokenId>> tokens_;
  std::map<SequenceId, absl::Status> failed_;
  std::map<SequenceId, std::vector<WrongPage>> wrong_;
  std::map<SequenceId, std::vector<SealedEvent>> sealed_;
};

}  // namespace cofferdam::engine

#endif  // COFFERDAM_ENGINE_ENGINE_TESTING_H_
