// Mixed load over HTTP on questions whose undisturbed answers are known.
#ifndef COFFERDAM_TESTS_FAULTS_SERVER_LOAD_H_
#define COFFERDAM_TESTS_FAULTS_SERVER_LOAD_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "e2e/cluster.h"

namespace cofferdam::faults {

struct Question {
  http::Json body;
  std::string answer, finish_reason;  // undisturbed
};

// `count` questions, greedy and sampled, with answers of 1 to 64 tokens: each asked once, alone, of `cluster`, and its answer kept.
std::vector<Question> AskUndisturbed(const e2e::Cluster& cluster, size_t count, uint64_t seed);

// The keys of the tenants, as arguments of `up`.
std::vector<std::string> TenantArguments();

// How the requests of a load ended.
struct Outcomes {
  uint64_t right = 0;          // 200, and every byte of the undisturbed answer
  uint64_t clear_errors = 0;   // kv_integrity_violation; a stream that had begun had sent nothing but the start of the right answer
  uint64_t streams_ended = 0;  // of these, such streams
  uint64_t wrong = 0;          // any other answer's text
  uint64_t other = 0;          // any other error, or none at all
  uint64_t cut = 0;            // by the client, before the end
  std::vector<std::string> complaints;  // the first few of wrong and other
};

// One answer's judgement, into `outcomes`.
void Judge(const Question& question, bool stream, const http::Response& response, Outcomes& outcomes);

// Clients that ask at random, from construction to Stop.
class ServerLoad {
 public:
  ServerLoad(uint16_t port, const std::vector<Question>& questions, uint64_t seed, size_t clients);
  ~ServerLoad() { Stop(); }
  // Waits for the requests that are out.
  Outcomes Stop();

 private:
  void Client(uint64_t seed);

  const uint16_t port_;
  const std::vector<Question>& questions_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  Outcomes outcomes_;
  std::vector<std::jthread> clients_;
};

}  // namespace cofferdam::faults

#endif  // COFFERDAM_TESTS_FAULTS_SERVER_LOAD_H_
