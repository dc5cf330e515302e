// The header of a model file as we use it: settings, tensors and their places in the file, hyper-parameters.
#include <cmath>
#include <optional>
#include <string>

#include "fuzz.h"
#include "model/gguf_file.h"
#include "model/hparams.h"

namespace cofferdam::model {
namespace {

void CheckTensors(const GgufFile& file, size_t file_bytes) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    uint64_t elements = 1;
    for (const int64_t size : tensor.shape) {
      CD_CHECK(size > 0, "a tensor has positive sizes");
      elements *= static_cast<uint64_t>(size);
    }
    CD_CHECK(elements <= file_bytes * 8, "a tensor has no more elements than the file has bits");
    CD_CHECK(tensor.bytes <= file_bytes, "a tensor lies in its file");
    // Whoever reads one reads all of it: both ends are mapped.
    if (tensor.bytes > 0) bytes += std::to_integer<uint64_t>(tensor.data[0] ^ tensor.data[tensor.bytes - 1]) & 0U;
    bytes += tensor.bytes;
    CD_CHECK(file.Find(name) == &tensor, "a tensor is found by its name");
  }
  CD_CHECK(bytes == file.tensor_bytes(), "the sum is that of the tensors");
}

void ReadEveryKey(const GgufFile& file) {
  for (const std::string& key : file.Keys()) {
    const auto text = file.Text(key);
    const auto number = file.Unsigned(key);
    const auto real = file.Float(key);
    const auto truth = file.Bool(key);
    const auto length = file.ArrayLength(key);
    const int kinds = int{text.ok()} + int{number.ok()} + int{real.ok()} + int{truth.ok()} + int{length.has_value()};
    CD_CHECK(kinds <= 1, "a setting has one kind");
    if (real.ok()) CD_CHECK(std::isfinite(real->value_or(0)), "a number is finite");
  }
}

void CheckHparams(const Hparams& h) {
  CD_CHECK(h.layers >= 1 && h.layers <= 1024 && h.heads >= 1 && h.heads <= 1024 && h.kv_heads >= 1, "counts keep their limits");
  CD_CHECK(h.heads % h.kv_heads == 0 && h.head_size >= 1 && h.head_size <= 512, "heads share KV heads evenly");
  CD_CHECK(h.vocabulary >= 1 && h.vocabulary <= 1 << 22 && h.context_length >= 1, "vocabulary and context keep their limits");
  CD_CHECK(h.rms_epsilon > 0 && h.rms_epsilon < 1, "the epsilon is in range");
  CD_CHECK(std::isfinite(h.rope.base) && std::isfinite(h.rope.scale) && h.rope.scale > 0 && std::isfinite(h.rope.magnitude),
           "RoPE is finite");
  CD_CHECK(h.rope.dimensions % 2 == 0 && h.rope.Describe().size() < 512, "RoPE turns pairs, and is described in a line");
}

}  // namespace
}  // namespace cofferdam::model

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cofferdam::model;
  static cofferdam::fuzz::MemoryFile memory;
  memory.Write({reinterpret_cast<const char*>(data), size});
  const auto file = GgufFile::Open(memory.path());
  if (!file.ok()) return 0;
  CheckTensors(*file, size);
  ReadEveryKey(*file);
  const auto hparams = ReadHparams(*file);
  if (hparams.ok()) CheckHparams(*hparams);
  return 0;
}
