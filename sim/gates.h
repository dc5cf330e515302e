// What happens elsewhere, held until somebody says that it happens: for an order of events that is given, and not drawn (trail.h).
#ifndef COFFERDAM_SIM_GATES_H_
#define COFFERDAM_SIM_GATES_H_

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "sim/clock.h"

namespace cofferdam::sim {

enum class Gate : uint8_t {
  kCall,        // a gateway's call reaches decode
  kCallOver,    // and its cancellation
  kOpen,        // a stream reaches prefill
  kClosed,      // and prefill learns that it is over
  kAnnounced,   // a page's announcement reaches decode
  kEnded,       // and decode learns that the stream is over
  kFirstHalf,   // the first half of a page is copied
  kSecondHalf,  // and the second
  kRead,        // decode learns that a read has ended
};

struct GateKey {
  Gate gate{};
  uint64_t id = 0;  // of the call, the stream (kOpen, kClosed), or the fetch
  uint32_t ordinal = 0;
  friend auto operator<=>(const GateKey&, const GateKey&) = default;
};

// Open unless closed: then everything happens at its time. One thread; it owns what it holds.
class Gates {
 public:
  bool closed() const { return closed_; }
  void Close() { closed_ = true; }
  void Hold(const GateKey& key, Agenda::Action action) { held_[key].push_back(std::move(action)); }
  bool Holds(const GateKey& key) const { return held_.contains(key); }
  // The one that has waited longest. Null: none waits.
  Agenda::Action Take(const GateKey& key) {
    const auto found = held_.find(key);
    if (found == held_.end()) return nullptr;
    Agenda::Action action = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) held_.erase(found);
    return action;
  }
  // Open from then on; `each` gets what was held.
  template <typename Each>
  void Open(Each each) {
    closed_ = false;
    for (auto& [key, actions] : std::exchange(held_, {})) {
      for (Agenda::Action& action : actions) each(std::move(action));
    }
  }

  // What a worker begins by itself, once it is let: to admit a call (kCall) or a stream (kOpen), and a step.
  void LetAdmit(Gate gate, uint64_t id) { admitted_.insert({gate, id}); }
  void DoNotAdmit(Gate gate, uint64_t id) { admitted_.erase({gate, id}); }
  bool MayAdmit(Gate gate, uint64_t id) const { return !closed_ || admitted_.contains({gate, id}); }
  void LetStep(const void* worker) { stepping_ = worker; }
  bool TakeStep(const void* worker) {
    if (closed_ && stepping_ != worker) return false;
    stepping_ = nullptr;
    return true;
  }

 private:
  bool closed_ = false;
  std::map<GateKey, std::deque<Agenda::Action>> held_;
  std::set<std::pair<Gate, uint64_t>> admitted_;
  const void* stepping_ = nullptr;
};

}  // namespace cofferdam::sim

#endif  // COFFERDAM_SIM_GATES_H_
