// A file of API keys, as an operator may have edited it.
#include <set>
#include <string>

#include "fuzz.h"
#include "gateway/key_file.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cofferdam::gateway;
  cofferdam::fuzz::Input input(data, size);
  const auto records = ParseKeyFile(input.Rest());
  if (!records.ok()) {
    CD_CHECK(absl::IsInvalidArgument(records.status()) && !records.status().message().empty(), "a refusal says why");
    return 0;
  }
  std::set<std::string> ids;
  std::set<KeyHash> hashes;
  for (const KeyRecord& record : *records) {
    CD_CHECK(CheckKeyRecord(record).ok(), "what is read keeps the rules");
    CD_CHECK(ids.insert(record.id).second && hashes.insert(record.hash).second, "a key is there once");
  }
  const auto again = ParseKeyFile(RenderKeyFile(*records));
  CD_CHECK(again.ok() && *again == *records, "what is written is read as it was");
  return 0;
}
