// Reads GGUF files: settings and tensors, from a read-only shared mapping, with every count and offset checked.
#ifndef COFFERDAM_MODEL_GGUF_FILE_H_
#define COFFERDAM_MODEL_GGUF_FILE_H_

#include <ggml.h>
#include <gguf.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace cofferdam::model {

// One tensor as it lies in a mapped file. `data` is valid as long as its GgufFile.
struct FileTensor {
  ggml_type type = GGML_TYPE_F32;
  std::array<int64_t, 4> shape{};  // ggml's order: [0] runs fastest; unused dimensions are 1
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// A GGUF file, or all files of a split set. Immutable after Open; safe to use from any thread. Owns the mappings.
class GgufFile {
 public:
  // Errors: NotFound, InvalidArgument (the message says what is wrong and where), ResourceExhausted.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  GgufFile(GgufFile&&) noexcept = default;
  GgufFile& operator=(GgufFile&&) noexcept = default;

  // None when the key is absent. Errors: InvalidArgument when the value has another kind or does not fit.
  absl::StatusOr<std::optional<std::string>> Text(const std::string& key) const;
  absl::StatusOr<std::optional<uint64_t>> Unsigned(const std::string& key) const;
  absl::StatusOr<std::optional<float>> Float(const std::string& key) const;
  absl::StatusOr<std::optional<bool>> Bool(const std::string& key) const;
  // Entries of an array; none when the key is absent or is no array.
  std::optional<uint64_t> ArrayLength(const std::string& key) const;
  std::vector<std::string> Keys() const;

  const FileTensor* Find(const std::string& name) const;  // null when absent
  const absl::flat_hash_map<std::string, FileTensor>& tensors() const { return tensors_; }
  size_t tensor_bytes() const;

 private:
  struct Unmap {
    size_t size;  // of the mapping
    void operator()(const std::byte* start) const;
  };
  struct FreeGguf {
    void operator()(gguf_context* context) const { gguf_free(context); }
  };
  struct Part {
    std::unique_ptr<const std::byte, Unmap> mapping;
    std::unique_ptr<gguf_context, FreeGguf> context;
  };

  GgufFile() = default;
  static absl::StatusOr<Part> OpenPart(const std::string& path);
  absl::Status AddTensors(const Part& part, const std::string& path);
  absl::Status OpenRest(const std::string& path);
  int64_t FindKey(const std::string& key) const;

  std::vector<Part> parts_;  // settings are those of the first
  absl::flat_hash_map<std::string, FileTensor> tensors_;
};

// "model-00001-of-00003.gguf" with index 2 of 3 gives "model-00002-of-00003.gguf"; none when `path` is not the first
// of a set of `count` files.
std::optional<std::string> SplitPath(const std::string& path, uint64_t index, uint64_t count);

}  // namespace cofferdam::model

#endif  // COFFERDAM_MODEL_GGUF_FILE_H_
