#include "sim/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/world.h"

namespace cofferdam::sim {
namespace {

enum Purpose : uint64_t { kBootIds = 200, kWorker = 201 };
constexpr Duration kScrubEvery = milliseconds(5);

}  // namespace

kv::Key KeyOf(uint32_t domain) { return kv::DomainKey(kv::Key{7}, NameOf(domain)); }
std::string NameOf(uint32_t domain) { return absl::StrCat("tenant-", domain); }

Worker::Worker(World& world, std::string role, size_t index, uint64_t pages)
    : world_(world),
      random_(world.scenario().seed, kWorker, index * 2 + (role == "decode" ? 1 : 0)),
      index_(index),
      role_(std::move(role)),
      name_(absl::StrCat(role_, " ", index)),
      pages_(pages) {}

Worker::~Worker() = default;

void Worker::Boot() {
  const Scenario& scenario = world_.scenario();
  boot_id_ = Mix(Mix(scenario.seed, kBootIds), Mix(index_ * 2 + (role_ == "decode" ? 1 : 0), ++boots_)) | 1;
  const size_t bytes = pages_ * SimLayout().page_bytes();
  storage_.assign(bytes + 64, std::byte{0});
  memory_ = std::span(storage_.data() + (64 - reinterpret_cast<uintptr_t>(storage_.data()) % 64) % 64, bytes);
  pool_ = std::make_unique<kv::Pool>(SimLayout(), memory_, boot_id_, scenario.lifo ? kv::ReuseOrder::kLifo : kv::ReuseOrder::kFifo);
  content_ =
      std::make_unique<Content>([this] { world_.clock().RunMemory(world_.clock().now() + microseconds(random_.Below(400))); });
  const bool takes_less = role_ == "prefill" && scenario.prefill_takes_tokens > 0;
  const uint64_t context = takes_less ? scenario.prefill_takes_tokens : scenario.context_tokens;
  engine_ = std::make_unique<engine::Engine>(engine::EngineOptions{.role = role_,
                                                                   .context_tokens = context,
                                                                   .chunk_tokens = scenario.chunk_tokens,
                                                                   .max_sequences = scenario.max_sequences,
                                                                   .first_output_tokens = scenario.first_output_tokens,
                                                                   .verify_reads = scenario.verify,
                                                                   .verify_content = scenario.verify_content,
                                                                   .prefix_cache = scenario.prefix_cache,
                                                                   .sample_seed = scenario.seed},
                                             *content_, *pool_);
}

void Worker::Crash() {
  if (!alive()) return;
  Forget();
  inbox_.clear();
  events_.clear();
  engine_.reset();
  content_.reset();
  pool_.reset();
  boot_id_ = 0;
  waking_ = beating_ = false;
  busy_until_ = held_until_ = silent_until_ = Time();
}

void Worker::Post(Agenda::Action action) {
  inbox_.push_back(std::move(action));
  Wake(world_.clock().now());
}

void Worker::Hold(Time until, bool silent) {
  held_until_ = std::max(held_until_, until);
  if (silent) silent_until_ = held_until_;
}

bool Worker::speaks() const { return silent_until_ <= world_.clock().now(); }

void Worker::Wake(Time at) {
  if (stepping_ || !alive()) return;  // a step that ends wakes
  at = std::max({at, busy_until_, held_until_});
  if (waking_ && wake_at_ <= at) return;
  waking_ = true;
  wake_at_ = at;
  world_.clock().At(at, [this, at, boot = boot_id_] {
    if (boot != boot_id_ || !waking_ || wake_at_ != at) return;
    waking_ = false;
    if (held_until_ > world_.clock().now()) return Wake(held_until_);
    Turn();
  });
  if (std::exchange(beating_, true)) return;
  world_.clock().After(kBeat, [this, boot = boot_id_] { Beat(boot); });
}

void Worker::Beat(uint64_t boot) {
  if (boot != boot_id_) return;
  if (speaks()) OnBeat();
  beating_ = Waits();
  if (beating_) world_.clock().After(kBeat, [this, boot] { Beat(boot); });
}

void Worker::Turn() {
  const Time now = world_.clock().now();
  const bool own_order = !world_.gates().closed();  // otherwise a trail says when
  if (own_order) content_->WriteLate();
  OnEvents(std::exchange(events_, {}));
  if (own_order) engine_->Reclaim();  // production zeroes on a thread of its own: what was let go may be free at any turn
  // What comes meanwhile is for the next turn.
  for (size_t left = inbox_.size(); left > 0 && alive(); --left) {
    const Agenda::Action action = std::move(inbox_.front());
    inbox_.pop_front();
    action();
  }
  OnTurn(now);
  if (own_order) engine_->Reclaim();
  if (random_.OneIn(4)) engine_->Scrub(SimLayout().payload_bytes() * 2, events_);
  if (engine_->HasWork() && world_.gates().TakeStep(this)) return StepOnce();
  if (!events_.empty() || !inbox_.empty()) return Wake(now + microseconds(20));
  const bool retired = own_order && pool_->counts().by_state[static_cast<size_t>(kv::PageState::kRetired)] > 0;
  if (retired) return Wake(now + microseconds(200));
  if (Waits()) Wake(now + kTick);
}

void Worker::StepOnce() {
  stepping_ = true;
  engine_->Step(events_);
  stepping_ = false;
  const bool stalled = engine_->Stalled();
  busy_until_ = world_.clock().now() + microseconds(stalled ? 300 : random_.Between(100, 1500));
  Wake(busy_until_);
}

void Worker::FlipSealedBit(uint64_t amount) {
  std::vector<PageId> sealed;
  for (uint32_t i = 0; i < pages_; ++i) {
    const kv::PageState state = pool_->StateOf(PageId(i));
    if (state == kv::PageState::kSealed || state == kv::PageState::kCached) sealed.push_back(PageId(i));
  }
  if (sealed.empty()) return;
  ++flips_;
  const std::span<std::byte> payload = pool_->Payload(sealed[amount % sealed.size()]);
  const uint64_t bit = amount / 64 % (payload.size() * 8);
  payload[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
}

void Worker::FlipTagBit(uint64_t amount) {
  const uint64_t page = amount % pages_, bit = amount / 64 % (kv::kTagBytes * 8);
  const kv::PageState state = pool_->StateOf(PageId(static_cast<uint32_t>(page)));
  // A free page has no tags; whoever gets it expects zeros there, and writes its own.
  if (state == kv::PageState::kFree || state == kv::PageState::kRetired) return;
  ++flips_;
  const size_t end = amount / 64 / 1024 % 2 == 0 ? 0 : SimLayout().page_bytes() - kv::kTagBytes;
  memory_[page * SimLayout().page_bytes() + end + bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
}

void Worker::TakePages(Time until, uint64_t leave) {
  const uint64_t free = pool_->counts().free();
  const uint64_t most = std::min(world_.scenario().context_tokens / kPageTokens, free > leave ? free - leave : 0);
  if (most == 0) return;
  engine::SequenceSpec spec{.domain_key = kv::Key{1}, .domain = "nobody"};
  spec.tokens.assign(most * kPageTokens, 1);
  const auto started = engine_->Start(std::move(spec));
  const auto* const sequence = std::get_if<engine::Engine::Started>(&started);
  if (sequence == nullptr) return;
  world_.clock().At(until, [this, id = sequence->sequence, boot = boot_id_] {
    if (boot == boot_id_) Post([this, id] { engine_->Release(id); });
  });
}

std::string Worker::LeftOver() const {
  if (!alive()) return {};
  pool_->CheckConservation();
  engine_->cache().CheckConsistency();
  if (engine_->sequences() > 0) return absl::StrCat(name_, " still has ", engine_->sequences(), " sequences");
  const auto& by_state = pool_->counts().by_state;
  for (const kv::PageState state :
       {kv::PageState::kReserved, kv::PageState::kFilling, kv::PageState::kSealed, kv::PageState::kRetired}) {
    if (const uint64_t count = by_state[static_cast<size_t>(state)]; count > 0)
      return absl::StrCat(name_, " still has ", count, " pages that are ", std::string(kv::ToString(state)));
  }
  return {};
}

}  // namespace cofferdam::sim
