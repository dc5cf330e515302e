// The gateway never sees pages: the KV cache is not on its include path.
#include "gateway/options.h"

#ifdef MUST_FAIL_uses_kv  // kv/pool.h: No such file|'kv/pool.h' file not found
#include "kv/pool.h"
#endif
#ifdef MUST_FAIL_uses_worker  // worker/worker.h: No such file|'worker/worker.h' file not found
#include "worker/worker.h"
#endif
