// `base` uses no folder of ours: their headers are not on its include path.
#include "base/check.h"

#ifdef MUST_FAIL_uses_kv  // kv/pool.h: No such file|'kv/pool.h' file not found
#include "kv/pool.h"
#endif
