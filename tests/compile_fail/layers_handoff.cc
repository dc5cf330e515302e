// The handoff machines are sans-IO: neither the fabric nor the engine is on
// their include path, nor gRPC's messages.
#include "handoff/decode_handoff.h"

#ifdef MUST_FAIL_uses_fabric  // fabric/fabric.h: No such file|'fabric/fabric.h' file not found
#include "fabric/fabric.h"
#endif
#ifdef MUST_FAIL_uses_engine  // engine/engine.h: No such file|'engine/engine.h' file not found
#include "engine/engine.h"
#endif
#ifdef MUST_FAIL_uses_messages  // cofferdam.pb.h: No such file|'cofferdam.pb.h' file not found
#include "cofferdam.pb.h"
#endif
