// What all connections of a gateway share.
#ifndef COFFERDAM_GATEWAY_SERVICE_H_
#define COFFERDAM_GATEWAY_SERVICE_H_

#include <sodium.h>

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gateway/generate_call.h"
#include "gateway/key_ring.h"
#include "gateway/key_watch.h"
#include "gateway/metrics.h"
#include "gateway/options.h"
#include "gateway/quota.h"
#include "gateway/retry_budget.h"
#include "gateway/workers.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace cofferdam::gateway {

// Attempts of this process: a random boot id and a counter that never repeats. Thread-safe.
class AttemptSource {
 public:
  AttemptSource() { randombytes_buf(&boot_id_, sizeof boot_id_); }
  v1::Attempt Next() {
    v1::Attempt attempt;
    attempt.set_boot_id(boot_id_);
    attempt.set_counter(counter_.fetch_add(1) + 1);
    return attempt;
  }

 private:
  uint64_t boot_id_ = 0;
  std::atomic<uint64_t> counter_{0};
};

// Longer bodies are parsed and tokenized on the text pool.
inline constexpr size_t kInlineBodyBytes = 64 << 10;

struct Service {
  Service(GatewayOptions given, std::unique_ptr<const text::Tokenizer> vocabulary,
          std::unique_ptr<const text::ChatTemplate> chat_template, const std::string& model_hash,
          std::optional<std::vector<KeyRecord>> records)
      : options(std::move(given)),
        tokenizer(std::move(vocabulary)),
        chat(std::move(chat_template)),
        keys(std::move(records)),
        workers(options, model_hash),
        body_bytes(options.max_total_body_bytes),
        in_flight(options.max_in_flight),
        queue(options.max_queue) {
    options.api_keys.clear();  // from here on there are only hashes
  }

  GatewayOptions options;
  std::unique_ptr<const text::Tokenizer> tokenizer;
  std::unique_ptr<const text::ChatTemplate> chat;
  KeyRing keys;
  std::unique_ptr<KeyWatch> key_watch;  // with a key file
  Metrics metrics;
  Workers workers;
  RetryBudget retries;
  AttemptSource attempts;
  std::shared_ptr<LiveCalls> calls = std::make_shared<LiveCalls>();
  Quota body_bytes;
  Quota in_flight;
  Quota queue;
  std::atomic<bool> stopping{false};
  int64_t created = 0;      // seconds since 1970, of the start
  std::string version;      // of Cofferdam
  std::string fingerprint;  // of the model's bytes and the version: the same seed gives the same answer while it stays
  // Long prompts are tokenized here, so that they do not hold up everybody's streams.
  boost::asio::thread_pool text_pool{1};
};

}  // namespace cofferdam::gateway

#endif  // COFFERDAM_GATEWAY_SERVICE_H_
