// ggml's repacked weight layouts: which matrices have one, and how to allocate it.
#ifndef COFFERDAM_MODEL_REPACK_H_
#define COFFERDAM_MODEL_REPACK_H_

#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>

namespace cofferdam::model {

// Whether this processor multiplies a [in][out] matrix of `type` faster from a repacked copy. Thread-safe.
bool RepackSupports(ggml_type type, int64_t in, int64_t out);

// Rows of a batch that must go together for a row's bits not to depend on their number (I13).
uint32_t RepackRowMultiple(ggml_type type);

// Allocates `tensor` in a repacking buffer; ggml_backend_tensor_set then repacks plain data of the whole tensor.
// The caller owns the buffer. Null when memory is short. REQUIRES: RepackSupports(tensor).
ggml_backend_buffer_t AllocateRepacked(ggml_tensor* tensor);

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_REPACK_H_
