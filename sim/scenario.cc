#include "sim/scenario.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sim/content.h"
#include "sim/random.h"

namespace cofferdam::sim {
namespace {

enum Purpose : uint64_t { kSizes = 1, kRequests = 2, kPrefixes = 3, kFaults = 4 };
constexpr uint32_t kDomains = 3;
constexpr uint64_t kPrefixTokens = 6 * kPageTokens;

// Prompts begin with one of a few texts, which all domains know.
std::vector<TokenId> Prompt(uint64_t seed, uint64_t texts, uint64_t length, Random& random) {
  std::vector<TokenId> tokens;
  Random text(seed, kPrefixes, random.Below(texts));
  const uint64_t shared = random.OneIn(3) ? 0 : std::min(length, random.Between(0, kPrefixTokens));
  for (uint64_t i = 0; i < length; ++i) tokens.push_back(static_cast<TokenId>((i < shared ? text : random).Below(kVocabulary)));
  return tokens;
}

void DrawSizes(Scenario& scenario) {
  Random random(scenario.seed, kSizes);
  const bool large = random.OneIn(8);
  scenario.gateways = random.Between(1, 3);
  scenario.decodes = random.Between(1, large ? 3 : 2);
  scenario.prefills = random.Between(1, large ? 3 : 2);
  scenario.decode_pages = random.Between(4, large ? 48 : 24);
  scenario.prefill_pages = random.Between(4, large ? 48 : 24);
  scenario.context_tokens = kPageTokens * random.Between(3, std::min<uint64_t>(12, scenario.decode_pages));
  scenario.first_output_tokens = static_cast<uint32_t>(random.OneIn(2) ? random.Between(1, 16) : 1000);
  scenario.chunk_tokens = static_cast<uint32_t>(random.Between(8, 96));
  scenario.max_sequences = static_cast<uint32_t>(random.Between(2, 32));
  scenario.window_pages = random.OneIn(6) ? 0 : random.Between(1, 6);
  const uint64_t mode = random.Below(3);
  scenario.verify = {.mode = mode == 0   ? engine::VerifyReads::Mode::kTags
                             : mode == 1 ? engine::VerifyReads::Mode::kSampled
                                         : engine::VerifyReads::Mode::kFull,
                     .sampled_pages = mode == 1 ? 2u : 0u};
  scenario.verify_content = !random.OneIn(4);
  scenario.prefix_cache = !random.OneIn(4);
  scenario.lifo = random.OneIn(2);
  scenario.slow_messages = random.OneIn(3) ? 0 : random.Between(5, 60);
}

void DrawRequests(Scenario& scenario) {
  Random sizes(scenario.seed, kRequests);
  const bool large = scenario.decodes + scenario.prefills > 3;
  const uint64_t count = large ? sizes.Between(40, 400) : sizes.Between(2, 30);
  const uint64_t texts = sizes.Between(1, 4);
  const uint64_t herd_every = sizes.OneIn(3) ? sizes.Between(4, 24) : 1;  // so many come at one moment
  const uint64_t pause_us = sizes.Between(200, 20'000);
  const bool patient = sizes.OneIn(2);
  Time at = Time() + milliseconds(10);
  for (uint64_t i = 0; i < count; ++i) {
    Random random(scenario.seed, kRequests, i + 1);
    if (i % herd_every == 0) at += microseconds(herd_every * random.Below(pause_us));
    Input input{.at = at, .is_request = true};
    input.gateway = random.Below(scenario.gateways);
    input.domain = static_cast<uint32_t>(random.Below(kDomains));
    // Now and then one that does not fit.
    const uint64_t most = scenario.context_tokens + (random.OneIn(12) ? 2 * kPageTokens : 0) - 1;
    input.max_output = static_cast<uint32_t>(random.Between(1, std::min<uint64_t>(most, random.OneIn(4) ? 40 : 8)));
    input.tokens = Prompt(scenario.seed, texts, random.Between(1, std::max<uint64_t>(1, most - input.max_output)), random);
    input.priority = random.OneIn(4) ? 1 : 0;
    if (!patient && random.OneIn(4)) input.patience = microseconds(random.Between(1, 60'000));
    scenario.inputs.push_back(std::move(input));
  }
}

void DrawFaults(Scenario& scenario) {
  Random random(scenario.seed, kFaults);
  if (random.OneIn(3)) return;
  const uint64_t count = random.OneIn(3) ? random.Between(5, 20) : random.Between(1, 4);
  const Duration length = scenario.inputs.back().at - Time() + milliseconds(100);
  for (uint64_t i = 0; i < count; ++i) {
    Random own(scenario.seed, kFaults, i + 1);
    Input input{.at = Time() + length * static_cast<int64_t>(own.Below(1000)) / 1000};
    input.fault = static_cast<FaultKind>(own.Below(kFaultKinds));
    input.worker = own.Below(6);
    input.amount = own.Next() >> 1;
    // Where only tags are compared, nobody promises to find it.
    if (input.fault == FaultKind::kFlipSealed && scenario.verify.mode != engine::VerifyReads::Mode::kFull)
      input.fault = FaultKind::kFlipTag;
    scenario.inputs.push_back(std::move(input));
  }
}

}  // namespace

const char* NameOf(FaultKind kind) {
  static constexpr const char* kNames[kFaultKinds] = {
      "crash decode", "crash prefill", "freeze decode", "freeze prefill", "hang decode",    "hang prefill",  "cut link",
      "cut gateway",  "break stream",  "break call",    "drop message",   "repeat message", "spoil message", "misdeliver",
      "end well",     "fail read",     "tear read",     "flip arrival",   "flip sealed",    "flip tag",      "take pages"};
  return kNames[static_cast<size_t>(kind)];
}

size_t Scenario::faults() const {
  return static_cast<size_t>(std::ranges::count_if(inputs, [](const Input& input) { return !input.is_request; }));
}

std::string Scenario::Describe() const {
  std::string text =
      absl::StrCat("gateways ", gateways, ", decode ", decodes, " x ", decode_pages, " pages, prefill ", prefills, " x ",
                   prefill_pages, " pages, context ", context_tokens, ", first output ", first_output_tokens, ", chunk ",
                   chunk_tokens, ", sequences ", max_sequences, ", window ", window_pages, " pages, verify ",
                   engine::ToString(verify), verify_content ? "" : ", no content check", prefix_cache ? "" : ", no prefix cache",
                   lifo ? ", last in first out" : "", ", slow messages 1/", slow_messages, "\n");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = inputs[i];
    const auto us = std::chrono::duration_cast<microseconds>(input.at - Time()).count();
    absl::StrAppend(&text, "  input ", kept[i], " at ", us, " us: ");
    if (input.is_request) {
      const auto patience = std::chrono::duration_cast<microseconds>(input.patience).count();
      absl::StrAppend(&text, "domain ", input.domain, " asks gateway ", input.gateway, ", ", input.tokens.size(), " tokens, ",
                      input.max_output, " more, priority ", input.priority,
                      patience > 0 ? absl::StrCat(", leaves after ", patience, " us") : "", "\n");
    } else {
      absl::StrAppend(&text, NameOf(input.fault), " (worker ", input.worker, ", ", input.amount, ")\n");
    }
  }
  return text;
}

Scenario MakeScenario(uint64_t seed, const std::vector<size_t>& keep) {
  Scenario scenario{.seed = seed};
  DrawSizes(scenario);
  DrawRequests(scenario);
  DrawFaults(scenario);
  std::vector<Input> kept;
  for (size_t i = 0; i < scenario.inputs.size(); ++i) {
    if (!keep.empty() && std::ranges::find(keep, i) == keep.end()) continue;
    scenario.kept.push_back(i);
    kept.push_back(std::move(scenario.inputs[i]));
  }
  scenario.inputs = std::move(kept);
  return scenario;
}

}  // namespace cofferdam::sim
