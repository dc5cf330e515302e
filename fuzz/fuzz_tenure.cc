// Lines of a tenure log, as `cofferdam incidents` finds them in files: what is read is to the byte what our own writer writes.
#include <string>

#include "fuzz.h"
#include "tenure/folder.h"
#include "tenure/record.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cofferdam::tenure;
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  Kind kind{};
  const bool has_kind = KindOf(line, kind);
  const auto record = Parse(line);
  FileId file;
  if (ParseFileName(line, file)) CD_CHECK(FileName(file) == line, "a file has one name");
  if (!record.ok()) return 0;
  CD_CHECK(has_kind && static_cast<size_t>(kind) == record->index(), "the first bytes say the kind");
  std::string again;
  AppendLines(*record, again);
  CD_CHECK(again == std::string(line) + "\n", "a line is read only as it is written");
  return 0;
}
