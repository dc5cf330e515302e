// A worker's knowledge of, and connections to, another one whose pages it reads: a prefill worker, or any that it pulls from.
#ifndef COFFERDAM_WORKER_PREFILL_PEER_H_
#define COFFERDAM_WORKER_PREFILL_PEER_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "cofferdam.grpc.pb.h"
#include "fabric/fabric.h"
#include "handoff/transfer_window.h"
#include "kv/layout.h"

namespace cofferdam::worker {

// A thread of its own keeps asking the peer how it is, and connects the fabric anew when the peer was restarted.
class PrefillPeer {
 public:
  struct State {
    bool ready = false;
    std::string why_not = "not connected yet";
    v1::WorkerInfo info;
    std::shared_ptr<fabric::Reader> reader;  // null unless ready
  };

  // `layout` is ours: a peer with another one is refused, with both in the log and in `why_not`.
  PrefillPeer(std::string address, const kv::Layout& layout, size_t window_bytes, handoff::TransferWindow* all_peers);
  ~PrefillPeer();

  const std::string& address() const { return address_; }
  // Thread-safe.
  State state() const;
  v1::Prefill::Stub& stub() { return *stub_; }
  // The engine's thread alone.
  handoff::TransferWindow& window() { return window_; }

 private:
  void Main();
  void Refresh();
  void SetDown(std::string why);

  const std::string address_;
  const kv::Layout layout_;
  handoff::TransferWindow window_;
  std::unique_ptr<v1::Prefill::Stub> stub_;
  mutable Mutex mutex_;
  CondVar changed_;
  State state_ CD_GUARDED_BY(mutex_);
  grpc::ClientContext* asking_ CD_GUARDED_BY(mutex_) = nullptr;  // the question under way
  bool stopping_ CD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cofferdam::worker

#endif  // COFFERDAM_WORKER_PREFILL_PEER_H_
