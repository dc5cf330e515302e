#include "model/gguf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cofferdam::model {
namespace {

constexpr uint64_t kMaxSplitFiles = 1024;
// ggml's kernels load whole vectors; every converter pads tensors to 32 bytes.
constexpr size_t kMinAlignment = 32;

absl::Status Broken(const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::string(what)));
}

absl::Status WrongKind(const std::string& key, std::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat("the model file's setting '", key, "' is not ", std::string(wanted)));
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

void GgufFile::Unmap::operator()(const std::byte* start) const { munmap(const_cast<std::byte*>(start), size); }

absl::StatusOr<GgufFile::Part> GgufFile::OpenPart(const std::string& path) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) {
    const int error = errno;
    const std::string text = absl::StrCat("cannot open the model file ", path, ": ", std::generic_category().message(error));
    return error == ENOENT ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
  }
  struct stat stat {};
  if (fstat(file.fd, &stat) != 0 || !S_ISREG(stat.st_mode)) return Broken(path, "not a regular file");
  if (stat.st_size < 24) return Broken(path, "too short to be a GGUF file");
  const auto size = static_cast<size_t>(stat.st_size);
  void* start = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
  if (start == MAP_FAILED)
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", path, ": ", std::generic_category().message(errno)));
  Part part;
  part.mapping = {static_cast<const std::byte*>(start), Unmap{size}};
  if (std::memcmp(start, "GGUF", 4) != 0) return Broken(path, "not a GGUF file (wrong magic)");
  try {
    part.context.reset(gguf_init_from_buffer(start, size, gguf_init_params{.no_alloc = true, .ctx = nullptr}));
  } catch (const std::exception& error) {
    return Broken(path, absl::StrCat("its header cannot be read: ", error.what()));
  }
  if (part.context == nullptr) return Broken(path, "its GGUF header is broken or cut off");
  return part;
}

absl::Status GgufFile::AddTensors(const Part& part, const std::string& path) {
  const gguf_context* context = part.context.get();
  const int64_t count = gguf_get_n_tensors(context);
  const size_t file_size = part.mapping.get_deleter().size;
  const size_t data_offset = count > 0 ? gguf_get_data_offset(context) : 0;
  if (count > 0 && gguf_get_alignment(context) < kMinAlignment) {
    return Broken(path, absl::StrCat("tensors are aligned to ", gguf_get_alignment(context), " bytes; at least ", kMinAlignment,
                                     " are needed"));
  }
  for (int64_t i = 0; i < count; ++i) {
    const std::string name = gguf_get_tensor_name(context, i);
    FileTensor tensor;
    tensor.type = gguf_get_tensor_type(context, i);
    const int64_t* shape = gguf_get_tensor_ne(context, i);
    uint64_t elements = 1;
    for (size_t d = 0; d < 4; ++d) {
      tensor.shape[d] = shape[d];
      // A file cannot hold more elements than bits; checking each step keeps the product from wrapping.
      if (shape[d] <= 0 || static_cast<uint64_t>(shape[d]) > file_size * 8 / elements) {
        return Broken(path, absl::StrCat("tensor '", name, "' has a shape that cannot fit into the file"));
      }
      elements *= static_cast<uint64_t>(shape[d]);
    }
    tensor.bytes = gguf_get_tensor_size(context, i);
    const size_t offset = gguf_get_tensor_offset(context, i);
    if (data_offset > file_size || offset > file_size - data_offset || tensor.bytes > file_size - data_offset - offset) {
      return Broken(path, absl::StrCat("tensor '", name, "' reaches past the end of the file; the file is cut off"));
    }
    tensor.data = part.mapping.get() + data_offset + offset;
    if (!tensors_.emplace(name, tensor).second) return Broken(path, absl::StrCat("tensor '", name, "' occurs twice"));
  }
  return absl::OkStatus();
}

std::optional<std::string> SplitPath(const std::string& path, uint64_t index, uint64_t count) {
  const std::string first = absl::StrFormat("-%05d-of-%05d.gguf", 1, count);
  if (path.size() < first.size() || path.compare(path.size() - first.size(), first.size(), first) != 0) return std::nullopt;
  return absl::StrCat(path.substr(0, path.size() - first.size()), absl::StrFormat("-%05d-of-%05d.gguf", index, count));
}

absl::Status GgufFile::OpenRest(const std::string& path) {
  auto count = Unsigned("split.count");
  if (!count.ok()) return count.status();
  if (count->value_or(0) <= 1) return absl::OkStatus();
  const uint64_t files = **count;
  if (files > kMaxSplitFiles) return Broken(path, absl::StrCat("split into ", files, " files"));
  for (uint64_t i = 2; i <= files; ++i) {
    const auto next = SplitPath(path, i, files);
    if (!next) return Broken(path, absl::StrCat("is one of ", files, " files; give the first, named -00001-of-0000N.gguf"));
    auto part = OpenPart(*next);
    if (!part.ok()) return part.status();
    if (auto status = AddTensors(*part, *next); !status.ok()) return status;
    parts_.push_back(*std::move(part));
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  GgufFile file;
  auto part = OpenPart(path);
  if (!part.ok()) return part.status();
  if (auto status = file.AddTensors(*part, path); !status.ok()) return status;
  file.parts_.push_back(*std::move(part));
  if (auto status = file.OpenRest(path); !status.ok()) return status;
  return file;
}

int64_t GgufFile::FindKey(const std::string& key) const { return gguf_find_key(parts_.front().context.get(), key.c_str()); }

absl::StatusOr<std::optional<std::string>> GgufFile::Text(const std::string& key) const {
  const gguf_context* context = parts_.front().context.get();
  const int64_t id = FindKey(key);
  if (id < 0) return std::optional<std::string>();
  if (gguf_get_kv_type(context, id) != GGUF_TYPE_STRING) return WrongKind(key, "a string");
  return std::optional<std::string>(gguf_get_val_str(context, id));
}

absl::StatusOr<std::optional<uint64_t>> GgufFile::Unsigned(const std::string& key) const {
  const gguf_context* context = parts_.front().context.get();
  const int64_t id = FindKey(key);
  if (id < 0) return std::optional<uint64_t>();
  int64_t value = -1;
  switch (gguf_get_kv_type(context, id)) {
    case GGUF_TYPE_UINT8:
      value = gguf_get_val_u8(context, id);
      break;
    case GGUF_TYPE_INT8:
      value = gguf_get_val_i8(context, id);
      break;
    case GGUF_TYPE_UINT16:
      value = gguf_get_val_u16(context, id);
      break;
    case GGUF_TYPE_INT16:
      value = gguf_get_val_i16(context, id);
      break;
    case GGUF_TYPE_UINT32:
      value = gguf_get_val_u32(context, id);
      break;
    case GGUF_TYPE_INT32:
      value = gguf_get_val_i32(context, id);
      break;
    case GGUF_TYPE_INT64:
      value = gguf_get_val_i64(context, id);
      break;
    case GGUF_TYPE_UINT64:
      return std::optional<uint64_t>(gguf_get_val_u64(context, id));
    default:
      return WrongKind(key, "a single whole number");
  }
  if (value < 0) return WrongKind(key, "zero or more");
  return std::optional<uint64_t>(static_cast<uint64_t>(value));
}

absl::StatusOr<std::optional<float>> GgufFile::Float(const std::string& key) const {
  const gguf_context* context = parts_.front().context.get();
  const int64_t id = FindKey(key);
  if (id < 0) return std::optional<float>();
  double value = 0;
  switch (gguf_get_kv_type(context, id)) {
    case GGUF_TYPE_FLOAT32:
      value = gguf_get_val_f32(context, id);
      break;
    case GGUF_TYPE_FLOAT64:
      value = gguf_get_val_f64(context, id);
      break;
    default:
      return WrongKind(key, "a single number");
  }
  if (!std::isfinite(value) || std::abs(value) > std::numeric_limits<float>::max()) return WrongKind(key, "finite");
  return std::optional<float>(static_cast<float>(value));
}

absl::StatusOr<std::optional<bool>> GgufFile::Bool(const std::string& key) const {
  const gguf_context* context = parts_.front().context.get();
  const int64_t id = FindKey(key);
  if (id < 0) return std::optional<bool>();
  if (gguf_get_kv_type(context, id) != GGUF_TYPE_BOOL) return WrongKind(key, "true or false");
  return std::optional<bool>(gguf_get_val_bool(context, id));
}

std::optional<uint64_t> GgufFile::ArrayLength(const std::string& key) const {
  const gguf_context* context = parts_.front().context.get();
  const int64_t id = FindKey(key);
  if (id < 0 || gguf_get_kv_type(context, id) != GGUF_TYPE_ARRAY) return std::nullopt;
  return gguf_get_arr_n(context, id);
}

std::vector<std::string> GgufFile::Keys() const {
  const gguf_context* context = parts_.front().context.get();
  std::vector<std::string> keys;
  for (int64_t i = 0; i < gguf_get_n_kv(context); ++i) keys.emplace_back(gguf_get_key(context, i));
  return keys;
}

const FileTensor* GgufFile::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

size_t GgufFile::tensor_bytes() const {
  size_t sum = 0;
  for (const auto& [name, tensor] : tensors_) sum += tensor.bytes;
  return sum;
}

}  // namespace cofferdam::model
