#include "worker/page_finder.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "worker/wire.h"

namespace cofferdam::worker {
namespace {

// Answers come from a thread that computes nothing, in less than a millisecond; who needs longer is not waited for.
constexpr std::chrono::milliseconds kAnswerWithin{100};

struct Call {
  grpc::ClientContext context;
  v1::FindRequest request;
  v1::Found found;
};

}  // namespace

struct PageFinder::Question {
  size_t answers_due = 0;
  size_t most = 0;  // that can be meant
  Best best;
  std::function<void(const Best&)> done;
};

bool PageFinder::Ask(const std::vector<std::shared_ptr<PrefillPeer>>& peers, const std::vector<kv::Digest128>& identities,
                     std::function<void(const Best&)> done) {
  std::vector<std::shared_ptr<PrefillPeer>> ready;
  for (const std::shared_ptr<PrefillPeer>& peer : peers) {
    if (peer->state().ready) ready.push_back(peer);
  }
  if (ready.empty()) return false;
  auto question = std::make_shared<Question>(ready.size(), identities.size(), Best(), std::move(done));
  {
    MutexLock lock(mutex_);
    live_calls_ += static_cast<int>(ready.size());
  }
  for (const std::shared_ptr<PrefillPeer>& peer : ready) {
    auto call = std::make_shared<Call>();
    call->context.set_deadline(std::chrono::system_clock::now() + kAnswerWithin);
    for (const kv::Digest128& identity : identities) call->request.add_identities(ToWire(identity));
    peer->stub().async()->Find(&call->context, &call->request, &call->found,
                               [this, call, peer, question](const grpc::Status& status) {
                                 const size_t pages = status.ok() ? call->found.pages() : 0;
                                 loop_.Post([this, question, peer, pages] { OnAnswer(question, peer, pages); });
                                 MutexLock lock(mutex_);
                                 --live_calls_;
                                 changed_.NotifyAll();
                               });
  }
  return true;
}

void PageFinder::OnAnswer(const std::shared_ptr<Question>& question, const std::shared_ptr<PrefillPeer>& peer, size_t pages) {
  pages = std::min(pages, question->most);
  if (pages > question->best.pages) question->best = {.peer = peer, .pages = pages};
  if (--question->answers_due == 0) question->done(question->best);
}

void PageFinder::Stop() {
  MutexLock lock(mutex_);
  while (live_calls_ > 0) changed_.Wait(mutex_);
}

}  // namespace cofferdam::worker
