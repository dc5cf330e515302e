#include "gateway/generate_call.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>

#include "fixture.h"

namespace cofferdam::gateway {
namespace {

// The gateway waits until no call is counted, and then frees what they point into.
TEST(GenerateCallTest, ACallThatIsCountedNoMoreHoldsNothingOfTheGateways) {
  FakeWorker worker("hash");
  worker.Play([](Stage& stage) {
    stage.Accept();
    return stage.Finish(v1::Finished::STOP);
  });
  const auto stub = v1::Decode::NewStub(grpc::CreateChannel(worker.address(), grpc::InsecureChannelCredentials()));
  const auto live = std::make_shared<LiveCalls>();
  for (int round = 0; round < 300; ++round) {
    const auto held = std::make_shared<int>();
    {
      boost::asio::io_context context;
      GenerateCall::Start(
          *stub, {}, {.strand = boost::asio::make_strand(context), .deadline = 10s, .live = live, .notify = [held] { ++*held; }});
      ASSERT_TRUE(live->WaitUntilNone(10s));
    }
    ASSERT_EQ(held.use_count(), 1) << "in round " << round;
  }
}

}  // namespace
}  // namespace cofferdam::gateway
