#include "model/repack.h"

#include <ggml-cpu.h>

#include <array>
#include <cstring>

#include "base/check.h"

namespace cofferdam::model {
namespace {

// The processor's extra buffer types may include others (AMX); only this one's kernels were shown to keep I13.
constexpr const char* kRepackName = "CPU_REPACK";

ggml_backend_buffer_type_t FindRepackType() {
  ggml_backend_reg_t registry = ggml_backend_cpu_reg();
  ggml_backend_dev_t device = ggml_backend_reg_dev_get(registry, 0);
  const auto get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(registry, "ggml_backend_dev_get_extra_bufts"));
  if (get == nullptr) return nullptr;
  for (ggml_backend_buffer_type_t* type = get(device); type != nullptr && *type != nullptr; ++type) {
    if (std::strcmp(ggml_backend_buft_name(*type), kRepackName) == 0) return *type;
  }
  return nullptr;
}

ggml_backend_buffer_type_t RepackType() {
  static ggml_backend_buffer_type_t type = FindRepackType();
  return type;
}

}  // namespace

bool RepackSupports(ggml_type type, int64_t in, int64_t out) {
  if (RepackType() == nullptr || !ggml_is_quantized(type)) return false;
  alignas(16) std::array<std::byte, 4096> memory;
  ggml_context* context = ggml_init({.mem_size = memory.size(), .mem_buffer = memory.data(), .no_alloc = true});
  CD_CHECK(context != nullptr, "a ggml context of given memory");
  ggml_tensor* weight = ggml_new_tensor_2d(context, type, in, out);
  ggml_tensor* rows = ggml_new_tensor_2d(context, GGML_TYPE_F32, in, 4);
  ggml_tensor* product = ggml_mul_mat(context, weight, rows);
  // ggml decides by the weight's buffer, so it gets an empty one of the repacking type.
  weight->buffer = ggml_backend_buft_alloc_buffer(RepackType(), 0);
  const bool supported =
      weight->buffer != nullptr && ggml_backend_dev_supports_op(ggml_backend_buft_get_device(RepackType()), product);
  ggml_backend_buffer_free(weight->buffer);
  ggml_free(context);
  return supported;
}

uint32_t RepackRowMultiple(ggml_type type) {
  // Groups of four rows go through one kernel, the rest through another, and for these the two round differently.
  return type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q2_K || type == GGML_TYPE_Q5_K || type == GGML_TYPE_Q6_K ? 4 : 1;
}

ggml_backend_buffer_t AllocateRepacked(ggml_tensor* tensor) {
  const size_t size = ggml_backend_buft_get_alloc_size(RepackType(), tensor);
  ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(RepackType(), size);
  if (buffer == nullptr) return nullptr;
  CD_CHECK(ggml_backend_tensor_alloc(buffer, tensor, ggml_backend_buffer_get_base(buffer)) == GGML_STATUS_SUCCESS,
           "a tensor fits into the buffer made for it");
  ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  return buffer;
}

}  // namespace cofferdam::model
