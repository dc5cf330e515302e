#include "sim/trail.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/faults.h"
#include "sim/random.h"

namespace cofferdam::sim {
namespace {

constexpr Duration kSettle = milliseconds(2);     // until what an action leads to has happened
constexpr Duration kBackOff = milliseconds(500);  // until a gateway has tried again
constexpr int kTurns = 6;                         // of a worker, at most, until it has done what it was let do
constexpr uint32_t kFirstRead = 1000;             // ordinals of reads that were given up (Fault::kSecondRead)
constexpr uint32_t kMostNumbers = 5, kMostNumber = 64;
constexpr size_t kMostLines = 100'000;

// How many numbers stand behind an action.
const std::map<std::string, size_t, std::less<>>& Actions() {
  static const std::map<std::string, size_t, std::less<>> all = {
      {"sizes", 4},       {"requests", 4},    {"start", 1},      {"leave", 1},           {"break", 1},         {"wait", 1},
      {"admit", 1},       {"evict", 1},       {"cancel", 1},     {"ended", 1},           {"silent", 1},        {"begin-decode", 1},
      {"decode", 1},      {"announced", 2},   {"first-half", 2}, {"second-half", 2},     {"read", 2},          {"read-again", 2},
      {"late-half", 0},   {"open", 1},        {"refuse", 1},     {"reserve", 1},         {"closed", 1},        {"begin-prefill", 1},
      {"prefill", 2},     {"broken", 1},      {"ends-well", 1},  {"announces-other", 2}, {"crash-prefill", 0}, {"crash-decode", 0},
      {"free-decode", 0}, {"free-prefill", 0}};
  return all;
}

bool Disturbs(const TrailLine& line) {
  for (const char* action :
       {"leave", "break", "silent", "refuse", "broken", "ends-well", "announces-other", "crash-prefill", "crash-decode"}) {
    if (line.action == action) return true;
  }
  return false;
}

// Of two pages or one, of which the last is not full. A prompt that prefill refuses is longer than those that it takes.
constexpr uint64_t kShort = 6, kShortRefused = 14, kLong = 20, kLongRefused = 28;

}  // namespace

absl::StatusOr<Trail> ParseTrail(std::string_view text) {
  Trail trail;
  for (const absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(absl::StripAsciiWhitespace(line), ' ', absl::SkipEmpty());
    if (words.size() < 2 || words[0] != "SIM") continue;
    TrailLine parsed{.action = words[1], .numbers = {}};
    for (size_t i = 2; i < words.size(); ++i) {
      uint32_t number = 0;
      if (i > 1 + kMostNumbers || !absl::SimpleAtoi(words[i], &number) || number > kMostNumber)
        return absl::InvalidArgumentError(absl::StrCat("'", words[i], "' is no number of a trail: ", std::string(line)));
      parsed.numbers.push_back(number);
    }
    const auto action = Actions().find(parsed.action);
    if (action == Actions().end() || action->second != parsed.numbers.size() || trail.lines.size() >= kMostLines)
      return absl::InvalidArgumentError(absl::StrCat("no action of the model: ", std::string(line)));
    const std::vector<uint32_t>& n = parsed.numbers;
    if (parsed.action == "sizes") {
      trail.lives = n[0], trail.decode_pages = n[1], trail.prefill_pages = n[2], trail.window_pages = n[3];
    } else if (parsed.action == "requests") {
      trail.same_domain = n[0] != 0, trail.pages = {n[1], n[2]}, trail.cached = n[3];
    } else {
      trail.lines.push_back(std::move(parsed));
    }
  }
  if (trail.lives == 0 || trail.decode_pages < 2 || trail.prefill_pages < 2 || trail.cached > 2 || trail.pages.size() != 2 ||
      std::ranges::any_of(trail.pages, [](uint32_t pages) { return pages < 1 || pages > 2; }))
    return absl::InvalidArgumentError("a trail begins with the model's sizes and requests");
  return trail;
}

namespace {

class Player {
 public:
  Player(const Trail& trail, const Scenario& scenario, const std::function<void(const std::string&)>& say)
      : trail_(trail), world_(scenario, say), runs_(trail.pages.size() * trail.lives) {}

  Played Play(uint64_t* followed);

 private:
  struct Run {
    std::optional<CallId> call;
    std::optional<FetchId> fetch;
    std::optional<StreamId> stream;
  };
  // Each: empty, or why it can not happen.
  std::string Do(const TrailLine& line);
  std::string AtGateway(const std::string& action, uint32_t x);
  std::string Admit(const std::string& action, uint32_t x);
  std::string Cancel(uint32_t x);
  std::string Silence(uint32_t x);
  std::string AtDecode(const std::string& action, uint32_t x);
  std::string OfPage(const std::string& action, uint32_t x, uint32_t ordinal);
  std::string AtPrefill(const std::string& action, uint32_t x);
  std::string Reserve(uint32_t x);
  std::string StepPrefill(uint32_t x, uint32_t ordinal);
  std::string AnnounceOther(uint32_t x, uint32_t identity);
  std::string Crash(FaultKind kind);
  std::string Free(const std::string& action);
  std::string Let(Gate gate, std::optional<uint64_t> id, uint32_t ordinal = 0);
  void WarmUp();
  void Settle(Duration duration = kSettle) { world_.RunFor(duration); }
  void Turn(Worker& worker) {
    worker.Post([] {});
    Settle();
  }
  uint32_t RequestOf(uint32_t x) const { return x / trail_.lives; }
  void Remember(uint32_t x);

  const Trail& trail_;
  World world_;
  std::vector<Run> runs_;
  std::map<uint32_t, uint64_t> requests_;  // of the gateway, by that of the model
  uint64_t next_request_ = 1;
};

std::string Player::Let(Gate gate, std::optional<uint64_t> id, uint32_t ordinal) {
  Agenda::Action action = id.has_value() ? world_.gates().Take({gate, *id, ordinal}) : nullptr;
  if (action == nullptr) return "nothing of that kind is under way";
  action();
  Settle();
  return {};
}

void Player::Remember(uint32_t x) {
  const auto request = requests_.find(RequestOf(x));
  if (request == requests_.end()) return;
  if (const auto call = world_.gateway(0).CallOf(request->second)) runs_[x].call = call;
}

void Player::WarmUp() {
  const std::vector<Input>& inputs = world_.scenario().inputs;
  engine::Engine& engine = world_.decode(0).engine();
  std::vector<engine::Event> events;
  for (size_t i = trail_.pages.size(); i < inputs.size(); ++i) {
    engine::SequenceSpec spec{.domain_key = KeyOf(inputs[i].domain), .domain = NameOf(inputs[i].domain)};
    spec.tokens = inputs[i].tokens;
    const auto started = engine.Start(std::move(spec));
    if (!std::holds_alternative<engine::Engine::Started>(started)) continue;
    world_.OnPagesTaken(world_.decode(0), std::get<engine::Engine::Started>(started).sequence, inputs[i].domain);
    engine.Run(std::get<engine::Engine::Started>(started).sequence);
    while (engine.HasWork()) engine.Step(events);
    engine.Release(std::get<engine::Engine::Started>(started).sequence);
  }
}

std::string Player::AtGateway(const std::string& action, uint32_t x) {
  if (action == "start") {
    requests_[x] = next_request_++;
    world_.Start(world_.scenario().inputs[x]);
    Settle();
    return {};
  }
  Remember(x);
  const auto request = requests_.find(RequestOf(x));
  if (request == requests_.end()) return "there is no such request yet";
  if (action == "leave") {
    world_.gateway(0).Leave(request->second);
  } else {
    world_.gateway(0).Lose(request->second);
  }
  Settle(kBackOff);
  return {};
}

std::string Player::Admit(const std::string& action, uint32_t x) {
  const bool must_wait = action != "admit";
  Remember(x);
  Run& run = runs_[x];
  if (!run.call.has_value()) return "the gateway has no call of it";
  const auto before = world_.decode(0).LastFetchOf(*run.call);
  // With Fault::kPinsHeldQueued it takes what it finds as it comes.
  if (action != "wait" || !FaultIsOn(Fault::kPinsHeldQueued)) world_.gates().LetAdmit(Gate::kCall, *run.call);
  if (Agenda::Action call = world_.gates().Take({Gate::kCall, *run.call})) call();
  for (int i = 0; i < (must_wait ? 1 : kTurns); ++i) {
    Turn(world_.decode(0));
    const auto now = world_.decode(0).LastFetchOf(*run.call);
    if (!now.has_value() || now == before) continue;
    run.fetch = now->first;
    run.stream = now->second;
    return must_wait ? "it is admitted at once" : "";
  }
  world_.gates().DoNotAdmit(Gate::kCall, *run.call);
  return must_wait ? "" : "it has to wait";
}

std::string Player::Cancel(uint32_t x) {
  Remember(x);
  const auto call = runs_[x].call;
  if (!call.has_value()) return "the gateway has no call of it";
  if (Agenda::Action begin = world_.gates().Take({Gate::kCall, *call})) begin();
  Settle();
  return Let(Gate::kCallOver, call);
}

std::string Player::Silence(uint32_t x) {
  if (!runs_[x].stream.has_value()) return "it has no stream";
  world_.network().Mute(*runs_[x].stream);
  Settle(kBeat * (world_.scenario().silent_beats + 5));
  world_.decode(0).LookAtPeers();
  return {};
}

std::string Player::AtDecode(const std::string& action, uint32_t x) {
  if (action == "cancel") return Cancel(x);
  if (action == "silent") return Silence(x);
  if (action == "ended") return Let(Gate::kEnded, runs_[x].fetch);
  if (action == "decode") {
    world_.gates().LetStep(&world_.decode(0));
    Turn(world_.decode(0));
  }
  return {};  // a step is one action here, at its end
}

std::string Player::OfPage(const std::string& action, uint32_t x, uint32_t ordinal) {
  const auto fetch = runs_[x].fetch;
  Gates& gates = world_.gates();
  if (!fetch.has_value()) return "it has no handoff";
  if (action == "announced") {
    // Where it is announced before the step has ended, that step is due now.
    if (!gates.Holds({Gate::kAnnounced, *fetch, ordinal})) StepPrefill(x, ordinal);
    return Let(Gate::kAnnounced, fetch, ordinal);
  }
  if (action == "first-half") return Let(Gate::kFirstHalf, fetch, ordinal);
  if (action == "second-half") return Let(Gate::kSecondHalf, fetch, ordinal);
  if (action == "read-again") {
    if (!FaultIsOn(Fault::kSecondRead)) return "a page is read once";
    Agenda::Action rest = gates.Take({Gate::kSecondHalf, *fetch, ordinal});
    if (rest == nullptr) return "no read is half done";
    gates.Hold({Gate::kSecondHalf, 0, kFirstRead}, std::move(rest));
    world_.decode(0).ReadAgain(world_.clock().now());
    return {};
  }
  // A read whose source is gone ends when it asks for more.
  for (const Gate gate : {Gate::kFirstHalf, Gate::kSecondHalf}) {
    if (gates.Holds({Gate::kRead, *fetch, ordinal})) break;
    if (Agenda::Action part = gates.Take({gate, *fetch, ordinal})) part();
  }
  return Let(Gate::kRead, fetch, ordinal);
}

std::string Player::Reserve(uint32_t x) {
  const auto stream = runs_[x].stream;
  if (!stream.has_value()) return "it has no stream";
  world_.gates().LetAdmit(Gate::kOpen, *stream);
  const size_t before = world_.prefill(0).PagesOf(*stream);
  for (int i = 0; i < kTurns; ++i) {
    Turn(world_.prefill(0));
    const size_t now = world_.prefill(0).PagesOf(*stream);
    if (now == before) continue;
    if (now < trail_.pages[RequestOf(x)])
      world_.gates().DoNotAdmit(Gate::kOpen, *stream);  // Fault::kPageByPage: the next one later
    return {};
  }
  world_.gates().DoNotAdmit(Gate::kOpen, *stream);
  return "prefill does not admit it";
}

std::string Player::StepPrefill(uint32_t x, uint32_t ordinal) {
  const auto fetch = runs_[x].fetch;
  if (!fetch.has_value()) return "it has no handoff";
  // Its own turn comes when those before it in order had theirs: what they announce waits.
  for (int i = 0; i < kTurns && !world_.gates().Holds({Gate::kAnnounced, *fetch, ordinal}); ++i) {
    world_.gates().LetStep(&world_.prefill(0));
    Turn(world_.prefill(0));
  }
  return {};  // its run may be over, and the step have ended for nobody
}

std::string Player::AtPrefill(const std::string& action, uint32_t x) {
  const auto stream = runs_[x].stream;
  if (!stream.has_value()) return "it has no stream";
  if (action == "open") return Let(Gate::kOpen, stream);
  if (action == "closed") return Let(Gate::kClosed, stream);
  if (action == "reserve") return Reserve(x);
  if (action == "broken") world_.network().Break(*stream);
  if (action == "ends-well") world_.network().EndByPrefill(*stream, absl::OkStatus());
  return action == "broken" || action == "ends-well" ? Let(Gate::kClosed, stream) : "";
}

std::string Player::AnnounceOther(uint32_t x, uint32_t identity) {
  constexpr uint32_t kPagesOfIdentity = 2;
  const uint32_t request = (identity - 1) / kPagesOfIdentity, ordinal = (identity - 1) % kPagesOfIdentity;
  if (identity == 0 || request >= trail_.pages.size() || !runs_[x].stream.has_value()) return "there is no such page";
  for (uint32_t other = 0; other < runs_.size(); ++other) {
    const bool same = trail_.same_domain || RequestOf(other) == request;
    if (!same || !runs_[other].stream.has_value()) continue;
    world_.prefill(0).AnnounceOther(*runs_[x].stream, *runs_[other].stream, ordinal);
    if (world_.gates().Holds({Gate::kAnnounced, *runs_[x].fetch, 0})) return {};
  }
  return "nobody has announced such a page";
}

std::string Player::Crash(FaultKind kind) {
  world_.Start({.fault = kind, .amount = 1});
  Settle(kBackOff);
  world_.decode(0).LookAtPeers();
  return {};
}

std::string Player::Free(const std::string& action) {
  // All that can be, and not the model's page alone: numbers of pages differ.
  Worker& worker = action == "free-decode" ? static_cast<Worker&>(world_.decode(0)) : world_.prefill(0);
  worker.engine().Reclaim();
  return {};
}

std::string Player::Do(const TrailLine& line) {
  const std::string& action = line.action;
  if (action == "crash-prefill") return Crash(FaultKind::kCrashPrefill);
  if (action == "crash-decode") return Crash(FaultKind::kCrashDecode);
  if (action == "free-decode" || action == "free-prefill") return Free(action);
  if (action == "late-half") return Let(Gate::kSecondHalf, 0, kFirstRead);
  const uint32_t x = line.numbers[0];
  if (x >= (action == "start" ? trail_.pages.size() : runs_.size())) return "there is no such run";
  if (action == "start" || action == "leave" || action == "break") return AtGateway(action, x);
  if (action == "admit" || action == "wait" || action == "evict") return Admit(action, x);
  if (action == "prefill") {
    std::string why = StepPrefill(x, line.numbers[1]);
    world_.prefill(0).WriteLate();
    return why;
  }
  if (action == "announces-other") return AnnounceOther(x, line.numbers[1]);
  if (line.numbers.size() == 2) return OfPage(action, x, line.numbers[1]);
  const bool decode =
      action == "cancel" || action == "silent" || action == "ended" || action == "begin-decode" || action == "decode";
  return decode ? AtDecode(action, x) : AtPrefill(action, x);
}

Played Player::Play(uint64_t* followed) {
  WarmUp();
  world_.gates().Close();
  Played played;
  for (const TrailLine& line : trail_.lines) {
    if (!world_.outcome().kind.empty()) break;
    if (world_.tracing()) world_.Say(absl::StrCat("trail: ", line.action, " ", absl::StrJoin(line.numbers, " ")));
    played.stopped = Do(line);
    if (!played.stopped.empty()) {
      played.stopped = absl::StrCat(line.action, " ", absl::StrJoin(line.numbers, " "), ": ", played.stopped);
      break;
    }
    ++*followed;
  }
  // What decode would do next comes before anything else can mend it.
  for (int i = 0; i < kTurns && world_.outcome().kind.empty(); ++i) {
    world_.gates().LetStep(&world_.decode(0));
    Turn(world_.decode(0));
  }
  played.on_the_way = !world_.outcome().kind.empty();
  played.outcome = !played.on_the_way ? world_.Finish() : world_.outcome();
  return played;
}

Input Prompt(const Trail& trail, uint32_t request, bool refused) {
  // Who may share begins in the same way, and is never told apart by what is read.
  const bool alike = trail.same_domain || FaultIsOn(Fault::kOneTree);
  Random text(7, alike ? 0 : request);
  Input input{.is_request = true, .domain = trail.same_domain ? 0 : request, .max_output = 1};
  const uint64_t tokens = trail.pages[request] == 1 ? (refused ? kShortRefused : kShort) : (refused ? kLongRefused : kLong);
  for (uint64_t i = 0; i < tokens; ++i) input.tokens.push_back(static_cast<TokenId>(text.Below(kVocabulary)));
  return input;
}

Scenario ScenarioOf(const Trail& trail) {
  Scenario scenario{.seed = 1,
                    .decode_pages = trail.decode_pages,
                    .prefill_pages = trail.prefill_pages,
                    .context_tokens = 2 * kPageTokens,
                    .first_output_tokens = 1000,
                    .chunk_tokens = kPageTokens,
                    .max_sequences = 16,
                    .window_pages = trail.window_pages};
  scenario.verify.mode = engine::VerifyReads::Mode::kTags;
  scenario.lifo = true;  // the model takes the first page that is free: often the same one again
  scenario.least_handed_over = 1;
  scenario.silent_beats = 50;
  scenario.stalled_beats = 600;
  scenario.disturbed = std::ranges::any_of(trail.lines, Disturbs);
  for (uint32_t request = 0; request < trail.pages.size(); ++request) {
    const bool refused = std::ranges::any_of(
        trail.lines, [&](const TrailLine& line) { return line.action == "refuse" && line.numbers[0] / trail.lives == request; });
    if (refused)
      scenario.prefill_takes_tokens = trail.pages[request] == 1 ? (kShort + kShortRefused) / 2 : (kLong + kLongRefused) / 2;
    scenario.inputs.push_back(Prompt(trail, request, refused));
  }
  for (uint32_t request = 0; request < trail.cached; ++request) {
    Trail earlier = trail;
    earlier.pages = {2, 2};
    scenario.inputs.push_back(Prompt(earlier, request, false));
    scenario.inputs.back().tokens.resize(kPageTokens);
  }
  return scenario;
}

}  // namespace

Played Play(const Trail& trail, uint64_t* followed, const std::function<void(const std::string&)>& say) {
  const Scenario scenario = ScenarioOf(trail);
  return Player(trail, scenario, say).Play(followed);
}

}  // namespace cofferdam::sim
