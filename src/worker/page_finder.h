// Asks other workers how much of a prompt lies in their prefix caches.
#ifndef COFFERDAM_WORKER_PAGE_FINDER_H_
#define COFFERDAM_WORKER_PAGE_FINDER_H_

#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "kv/hash.h"
#include "worker/engine_loop.h"
#include "worker/prefill_peer.h"

namespace cofferdam::worker {

// The engine's thread only, but for Stop.
class PageFinder {
 public:
  struct Best {
    std::shared_ptr<PrefillPeer> peer;  // null: nobody holds any
    size_t pages = 0;                   // from the first, by its own word
  };

  // `loop` is not owned and outlives Stop.
  explicit PageFinder(EngineLoop& loop) : loop_(loop) {}

  // Asks all peers that are ready, at once. `done` is called once, on the engine's thread, when all have answered or had their
  // time; it is not called any more once the loop has ended. False, and nothing is called, when nobody is ready.
  bool Ask(const std::vector<std::shared_ptr<PrefillPeer>>& peers, const std::vector<kv::Digest128>& identities,
           std::function<void(const Best&)> done);

  // Waits until gRPC names this object no more. From another thread, while the loop runs.
  void Stop();

 private:
  struct Question;
  void OnAnswer(const std::shared_ptr<Question>& question, const std::shared_ptr<PrefillPeer>& peer, size_t pages);

  EngineLoop& loop_;
  Mutex mutex_;
  CondVar changed_;
  int live_calls_ CD_GUARDED_BY(mutex_) = 0;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_PAGE_FINDER_H_
