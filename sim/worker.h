// A worker process: the production engine and pool, and the loop that drives them, in virtual time.
#ifndef COFFERDAM_SIM_WORKER_H_
#define COFFERDAM_SIM_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kv/hash.h"
#include "kv/pool.h"
#include "sim/clock.h"
#include "sim/content.h"
#include "sim/random.h"

namespace cofferdam::sim {

class World;

inline constexpr Duration kBeat = milliseconds(100);
inline constexpr Duration kTick = milliseconds(25);

kv::Key KeyOf(uint32_t domain);
std::string NameOf(uint32_t domain);

class Worker {
 public:
  Worker(World& world, std::string role, size_t index, uint64_t pages);
  virtual ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Nothing that was sent to an earlier boot reaches this one.
  void Boot();
  void Crash();
  bool alive() const { return engine_ != nullptr; }
  uint64_t boot_id() const { return boot_id_; }
  // For later: on the loop, in order. Nothing but a turn: an empty one.
  void Post(Agenda::Action action);
  // The loop stands still until then; with `silent`, the heartbeats do, too.
  void Hold(Time until, bool silent);
  // Whether its heartbeats go out.
  bool speaks() const;
  // The steps so far, as heartbeats tell them.
  uint64_t steps() const { return engine_->counters().steps; }

  std::span<std::byte> memory() { return memory_; }
  std::span<const std::byte> memory() const { return memory_; }
  engine::Engine& engine() { return *engine_; }
  void WriteLate() { content_->WriteLate(); }  // Fault::kSealedTooEarly, in a trail
  kv::Pool& pool() { return *pool_; }
  const kv::Pool& pool() const { return *pool_; }
  const std::string& name() const { return name_; }

  void FlipSealedBit(uint64_t amount);
  void FlipTagBit(uint64_t amount);
  // Holds all but a few of the free pages until then.
  void TakePages(Time until, uint64_t leave);

  // At the end of a simulation, when everything has come to an end: what is left that should not be.
  std::string LeftOver() const;
  uint64_t flips() const { return flips_; }

 protected:
  virtual void OnEvents(const std::vector<engine::Event>& events) = 0;
  virtual void OnTurn(Time now) = 0;
  virtual void OnBeat() = 0;
  // Whether it waits for anything that time may bring.
  virtual bool Waits() const = 0;
  virtual void Forget() = 0;

  World& world_;
  Random random_;
  const size_t index_;

 private:
  void Wake(Time at);
  void Turn();
  void StepOnce();
  void Beat(uint64_t boot);

  const std::string role_, name_;
  const uint64_t pages_;
  uint64_t boots_ = 0, boot_id_ = 0, flips_ = 0;
  std::vector<std::byte> storage_;
  std::span<std::byte> memory_;
  std::unique_ptr<kv::Pool> pool_;
  std::unique_ptr<Content> content_;
  std::unique_ptr<engine::Engine> engine_;
  std::deque<Agenda::Action> inbox_;
  std::vector<engine::Event> events_;  // of the step under way
  Time busy_until_{}, held_until_{}, silent_until_{}, wake_at_{};
  bool waking_ = false, stepping_ = false, beating_ = false;
};

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_WORKER_H_
