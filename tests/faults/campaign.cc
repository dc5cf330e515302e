#include "faults/campaign.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "kv/corruption.h"
#include "model/executor.h"

namespace cofferdam::faults {
namespace {

using Mode = engine::VerifyReads::Mode;

constexpr uint32_t kPageTokens = 16, kQuestions = 48, kChunkTokens = 128;
constexpr uint64_t kPages = 2048;
constexpr size_t kTag = kv::kTagBytes;

struct Token {
  TokenId token = 0;
  uint32_t logprob_bits = 0;  // tells apart what the token alone would hide
  friend bool operator==(const Token&, const Token&) = default;
};

struct Question {
  engine::SequenceSpec spec;
  std::vector<Token> answer;  // of the undisturbed run
  // What a prefill worker would hand over: the pages of all tokens but the last.
  std::vector<std::vector<std::byte>> pages;
  std::vector<kv::Seal> seals;
  std::vector<kv::Digest128> identities;
};

// One engine with its pool, as a worker that was just started has them.
class Worker {
 public:
  Worker(const kv::Layout& layout, model::Executor& executor, std::vector<std::byte>& memory, const engine::VerifyReads& verify)
      : pool_(layout, Aligned(memory, layout), 7, kv::ReuseOrder::kLifo),
        engine_({.role = "test worker", .context_tokens = 512, .chunk_tokens = kChunkTokens, .verify_reads = verify}, executor,
                pool_) {}

  engine::Engine& engine() { return engine_; }
  kv::Pool& pool() { return pool_; }
  // Tags and payload.
  std::span<std::byte> Whole(PageId page) { return {pool_.Payload(page).data() - kTag, pool_.layout().page_bytes()}; }
  std::vector<engine::Event> Step() {
    std::vector<engine::Event> events;
    engine_.Step(events);
    return events;
  }
  uint64_t quarantined() const { return pool_.counts().by_state[static_cast<size_t>(kv::PageState::kQuarantined)]; }

 private:
  static std::span<std::byte> Aligned(std::vector<std::byte>& memory, const kv::Layout& layout) {
    memory.assign(kPages * layout.page_bytes() + 64, std::byte{0});
    return {memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64, kPages * layout.page_bytes()};
  }
  kv::Pool pool_;
  engine::Engine engine_;
};

class Campaign {
 public:
  Campaign(const std::shared_ptr<const model::Model>& model, const Options& options)
      : model_(model), layout_(model->layout()), options_(options), random_(options.seed) {
    auto executor = model::Executor::Create(model, {.threads = 1, .cpus = {}, .max_rows = kChunkTokens});
    CD_CHECK(executor.ok() && layout_.page_tokens() == kPageTokens, "the campaign's model has small pages");
    executor_ = *std::move(executor);
    for (uint32_t i = 0; i < kQuestions; ++i) questions_.push_back(Ask(i));
  }

  Result Run() {
    while (FaultsLeft()) {
      StartWorker();
      while (Injected() < options_.faults && worker_->quarantined() < kPages / 2) {
        TopUp();
        InjectIntoMemory();
        StepOnce();
      }
      while (worker_->engine().HasWork()) StepOnce();
      EndWorker();
    }
    return result_;
  }

 private:
  struct Active {
    size_t question = 0;
    uint32_t got = 0;
    std::optional<FaultKind> victim;
    bool wrong = false;
  };

  bool FaultsLeft() const { return Injected() < options_.faults; }
  uint64_t Draw(uint64_t below) { return kv::Draw(random_, below); }
  uint64_t Injected() const {
    uint64_t sum = 0;
    for (const Tally& tally : result_.by_kind) sum += tally.injected;
    return sum;
  }
  Tally& Of(FaultKind kind) { return result_.by_kind[static_cast<size_t>(kind)]; }

  // ---- the undisturbed run
  Question Ask(uint32_t number) {
    Question question;
    question.spec.domain_key = kv::DomainKey({}, absl::StrCat("tenant ", number % 4));
    const auto vocabulary = static_cast<uint64_t>(model_->info().vocabulary);
    for (uint64_t n = 17 + Draw(84); n > 0; --n) question.spec.tokens.push_back(static_cast<TokenId>(Draw(vocabulary)));
    question.spec.max_output = static_cast<uint32_t>(8 + Draw(33));
    question.spec.sampling = model::SamplingParams{.temperature = 0};
    Worker worker(layout_, *executor_, memory_, {});
    const SequenceId id = Start(worker, question.spec);
    worker.engine().Run(id);
    while (worker.engine().HasWork()) {
      for (const engine::Event& event : worker.Step()) {
        if (const auto* token = std::get_if<engine::TokenEvent>(&event)) question.answer.push_back(TokenOf(*token));
      }
    }
    HandOver(worker, question);
    return question;
  }
  void HandOver(Worker& worker, Question& question) {
    engine::SequenceSpec prompt{.domain_key = question.spec.domain_key, .tokens = question.spec.tokens};
    prompt.tokens.pop_back();
    question.identities = kv::PageIdentities(prompt.domain_key, layout_, prompt.tokens);
    const SequenceId id = Start(worker, prompt);
    worker.engine().Run(id);
    while (worker.engine().HasWork()) {
      for (const engine::Event& event : worker.Step()) {
        const auto* sealed = std::get_if<engine::SealedEvent>(&event);
        if (sealed == nullptr) continue;
        const auto bytes = worker.pool().Payload(sealed->page);
        question.pages.emplace_back(bytes.begin(), bytes.end());
        question.seals.push_back(sealed->seal);
      }
    }
  }
  static SequenceId Start(Worker& worker, const engine::SequenceSpec& spec) {
    return std::get<engine::Engine::Started>(worker.engine().Start(spec)).sequence;
  }
  static Token TokenOf(const engine::TokenEvent& event) { return {event.token, std::bit_cast<uint32_t>(event.logprob)}; }

  // ---- the load
  void StartWorker() {
    worker_ = std::make_unique<Worker>(layout_, *executor_, memory_, options_.verify);
    images_.assign(kPages, {});
    caught_in_memory_ = 0;
  }
  void EndWorker() {
    uint64_t failed = 0;
    for (const auto& count : worker_->engine().counters().checks.by_kind) failed += count.failed;
    // Which kind it was that no check counted can not be told from a sum; there must be none.
    if (failed < caught_in_memory_) Of(FaultKind::kWrongOwner).uncounted += caught_in_memory_ - failed;
    active_.clear();
    worker_.reset();
  }
  void TopUp() {
    while (active_.size() < options_.sequences) {
      const size_t number = Draw(kQuestions);
      auto started = worker_->engine().Start(questions_[number].spec);
      const auto* sequence = std::get_if<engine::Engine::Started>(&started);
      if (sequence == nullptr) return;
      if (Draw(2) == 0 && !Arrive(sequence->sequence, number)) continue;
      worker_->engine().Run(sequence->sequence);
      active_[sequence->sequence].question = number;
    }
  }
  // The prompt's pages come from a peer, one of them wrong in half of the cases. False when one was refused.
  bool Arrive(SequenceId id, size_t number) {
    const Question& question = questions_[number];
    const bool fault = Draw(2) == 0 && Injected() < options_.faults;
    const auto kind = static_cast<FaultKind>(static_cast<size_t>(FaultKind::kArrivalFlip) + Draw(5));
    const size_t bad = Draw(question.pages.size());
    for (uint32_t i = 0; i < question.pages.size(); ++i) {
      const auto view = worker_->engine().PageAt(id, i);
      std::ranges::copy(question.pages[i], view.payload.begin());
      kv::Seal seal = question.seals[i];
      const bool spoilt = fault && i == bad && Spoil(kind, number, i, view.payload, seal);
      if (spoilt) ++Of(kind).injected;
      const kv::Arrival arrival = kv::VerifyArrived(layout_, view, seal, question.identities[i], question.seals[i].tokens);
      if (const auto* verified = std::get_if<kv::Verified>(&arrival)) {
        if (spoilt) ++Of(kind).wrong;
        CD_CHECK(worker_->engine().Adopt(id, i, *verified).ok(), "nothing has touched the tags yet");
        continue;
      }
      CD_CHECK(spoilt, "what a peer sends unspoilt is good");
      ++Of(kind).caught;
      worker_->engine().Release(id);
      worker_->engine().Reclaim();
      return false;
    }
    return true;
  }
  // False when nothing was changed, since both are alike.
  bool Spoil(FaultKind kind, size_t number, uint32_t ordinal, std::span<std::byte> payload, kv::Seal& seal) {
    const Question& question = questions_[number];
    const size_t other = (number + 1 + Draw(kQuestions - 1)) % kQuestions;
    const size_t last = questions_[other].pages.size() - 1;
    const size_t there = std::min<size_t>(ordinal, last);
    switch (kind) {
      case FaultKind::kArrivalFlip:
        kv::FlipBit(payload, random_);
        return true;
      case FaultKind::kArrivalTorn:
        kv::TearCopy(payload);
        break;
      case FaultKind::kArrivalSwap:
        std::ranges::copy(question.pages[(ordinal + 1) % question.pages.size()], payload.begin());
        break;
      case FaultKind::kArrivalOther:
        std::ranges::copy(questions_[other].pages[there], payload.begin());
        seal = questions_[other].seals[there];
        break;
      default:
        std::ranges::copy(questions_[other].pages[there], payload.begin());
    }
    return !std::ranges::equal(payload, question.pages[ordinal]) || seal != question.seals[ordinal];
  }

  // ---- memory
  // A sequence that generates and is no victim; none when there is none.
  std::map<SequenceId, Active>::iterator Pick(SequenceId but = SequenceId()) {
    for (int attempt = 0; attempt < 8 && !active_.empty(); ++attempt) {
      const auto it = std::next(active_.begin(), static_cast<ptrdiff_t>(Draw(active_.size())));
      if (it->first != but && !it->second.victim.has_value() && it->second.got > 0) return it;
    }
    return active_.end();
  }
  uint64_t Covered(const Active& active) const { return questions_[active.question].spec.tokens.size() + active.got - 1; }
  engine::Engine::PageView AnyPage(SequenceId id, const Active& active) {
    return worker_->engine().PageAt(id, static_cast<uint32_t>(Draw(layout_.PagesFor(Covered(active)))));
  }
  void MakeVictim(Active& active, FaultKind kind) {
    active.victim = kind;
    ++Of(kind).injected;
  }
  void InjectIntoMemory() {
    // Seldom enough that about half of the sequences are left alone: they are the witnesses.
    if (Draw(3) != 0) return;
    const auto victim = Pick();
    if (victim == active_.end()) return;
    const auto kind = static_cast<FaultKind>(Draw(static_cast<size_t>(FaultKind::kArrivalFlip)));
    if (Inject(kind, victim->first, victim->second)) MakeVictim(victim->second, kind);
  }
  bool Inject(FaultKind kind, SequenceId id, Active& active) {
    const auto page = AnyPage(id, active);
    const std::span<std::byte> whole = worker_->Whole(page.page);
    switch (kind) {
      case FaultKind::kWrongOwner:
      case FaultKind::kSwap: {
        const auto other = Pick(id);
        if (other == active_.end()) return false;
        const std::span<std::byte> theirs = worker_->Whole(AnyPage(other->first, other->second).page);
        if (kind == FaultKind::kWrongOwner) {
          std::ranges::copy(theirs, whole.begin());
          return true;
        }
        std::ranges::swap_ranges(theirs, whole);
        MakeVictim(other->second, kind);
        return true;
      }
      case FaultKind::kStalePage: {
        const std::vector<std::byte>& image = images_[page.page.value()];
        if (image.empty()) return false;
        std::ranges::copy(image, whole.begin());
        return true;
      }
      case FaultKind::kOverrun:
        kv::WriteOverEdge(whole, random_);
        return true;
      case FaultKind::kTagFlip:
        kv::FlipTagBit(whole, random_);
        return true;
      case FaultKind::kSealedFlip:
        return FlipSealed(id, active);
      default:
        return FlipFilling(id, active);
    }
  }
  bool FlipSealed(SequenceId id, const Active& active) {
    const uint64_t sealed = Covered(active) / kPageTokens;
    if (sealed == 0) return false;
    kv::FlipBit(worker_->engine().PageAt(id, static_cast<uint32_t>(Draw(sealed))).payload, random_);
    return true;
  }
  bool FlipFilling(SequenceId id, const Active& active) {
    const auto slots = static_cast<uint32_t>(Covered(active) % kPageTokens);
    if (slots == 0) return false;
    const auto payload = worker_->engine().PageAt(id, static_cast<uint32_t>(Covered(active) / kPageTokens)).payload;
    kv::FlipWrittenBit(layout_, payload, slots, random_);
    return true;
  }

  // ---- what comes of it
  void StepOnce() {
    // What pages held before their tenure ends is what a stale page is made of.
    for (const auto& [id, active] : active_) {
      if (Draw(16) != 0 || active.victim.has_value() || active.got == 0) continue;
      const auto page = AnyPage(id, active);
      if (images_[page.page.value()].empty()) stale_next_.emplace_back(page.page, page.generation);
    }
    ++result_.steps;
    for (const engine::Event& event : worker_->Step()) Handle(event);
    TakeImages();
    worker_->engine().Reclaim();
  }
  // Of pages whose tenure has ended in this step, before they are zeroed.
  void TakeImages() {
    std::erase_if(stale_next_, [&](const std::pair<PageId, Generation>& at) {
      if (worker_->pool().StateOf(at.first) == kv::PageState::kRetired) {
        const auto whole = worker_->Whole(at.first);
        images_[at.first.value()].assign(whole.begin(), whole.end());
        return true;
      }
      return worker_->pool().GenerationOf(at.first) != at.second;
    });
  }
  void Handle(const engine::Event& event) {
    const SequenceId id = engine::SequenceOf(event);
    const auto found = active_.find(id);
    if (found == active_.end()) return;
    Active& active = found->second;
    if (const auto* token = std::get_if<engine::TokenEvent>(&event)) {
      const bool right = questions_[active.question].answer[active.got++] == TokenOf(*token);
      active.wrong = active.wrong || !right;
    } else if (const auto* failed = std::get_if<engine::FailedEvent>(&event)) {
      End(active, true, failed->wrong.empty());
      active_.erase(found);
    } else if (std::holds_alternative<engine::FinishedEvent>(event)) {
      End(active, false, false);
      active_.erase(found);
    }
  }
  void End(const Active& active, bool failed, bool without_a_page) {
    if (!active.victim.has_value()) {
      ++result_.bystanders;
      if (failed || active.wrong || active.got != questions_[active.question].answer.size()) ++result_.bystanders_disturbed;
      return;
    }
    Tally& tally = Of(*active.victim);
    if (failed) {
      ++caught_in_memory_;
      if (without_a_page) ++tally.uncounted;
    }
    ++(active.wrong ? tally.wrong : failed ? tally.caught : tally.missed);
  }

  const std::shared_ptr<const model::Model> model_;
  const kv::Layout& layout_;
  const Options options_;
  kv::Random random_;
  std::unique_ptr<model::Executor> executor_;
  std::vector<std::byte> memory_;
  std::vector<Question> questions_;
  std::unique_ptr<Worker> worker_;
  std::map<SequenceId, Active> active_;
  std::vector<std::vector<std::byte>> images_;  // by page: what an earlier tenure left there
  std::vector<std::pair<PageId, Generation>> stale_next_;
  uint64_t caught_in_memory_ = 0;
  Result result_;
};

}  // namespace

bool Result::Holds(Mode mode) const {
  bool holds = bystanders > 0 && bystanders_disturbed == 0;
  for (size_t i = 0; i < kFaultKinds; ++i) {
    const Tally& tally = by_kind[i];
    holds = holds && tally.uncounted == 0;
    if (MustCatch(static_cast<FaultKind>(i), mode)) holds = holds && tally.caught == tally.injected;
  }
  return holds;
}

std::string Table(const Result& result, const engine::VerifyReads& verify) {
  std::string out = absl::StrFormat("--verify-reads=%s\n%-32s %-10s %9s %9s %14s %14s\n", engine::ToString(verify), "fault",
                                    "must catch", "injected", "caught", "unseen, right", "wrong tokens");
  for (size_t i = 0; i < kFaultKinds; ++i) {
    const Tally& tally = result.by_kind[i];
    const auto kind = static_cast<FaultKind>(i);
    absl::StrAppendFormat(&out, "%-32s %-10s %9d %9d %14d %14d\n", std::string(ToString(kind)),
                          MustCatch(kind, verify.mode) ? "yes" : "no", tally.injected, tally.caught, tally.missed, tally.wrong);
  }
  absl::StrAppendFormat(&out, "others: %d answers, %d disturbed; %d steps\n", result.bystanders, result.bystanders_disturbed,
                        result.steps);
  return out;
}

Result RunCampaign(const std::shared_ptr<const model::Model>& model, const Options& options) {
  return Campaign(model, options).Run();
}

}  // namespace cofferdam::faults
