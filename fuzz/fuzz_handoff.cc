// Both machines of the handoff under any order of events: the input's bytes are the scheduler (src/handoff/random_world.h).
#include <cstdio>

#include "fuzz.h"
#include "handoff/random_world.h"

using cofferdam::handoff::testing::ByteChoices;
using cofferdam::handoff::testing::Marks;
using cofferdam::handoff::testing::World;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Marks marks;
  ByteChoices choices({data, size});
  World(choices, marks, [](const char* invariant) {
    std::fprintf(stderr, "broken: %s\n", invariant);
    CD_CHECK(false, "the invariants of the handoff hold in every order of events");
  }).Run();
  return 0;
}
