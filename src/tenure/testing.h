// What the tests of the tenure log share.
#ifndef COFFERDAM_TENURE_TESTING_H_
#define COFFERDAM_TENURE_TESTING_H_

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tenure/folder.h"
#include "tenure/record.h"

namespace cofferdam::tenure {

// A new folder that goes with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "cofferdam-tenure-XXXXXX";
    path_ = mkdtemp(pattern.data()) == nullptr ? "" : pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const FileId& file) const { return path_ + "/" + FileName(file); }

 private:
  std::string path_;
};

inline std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// All records of a folder's files in order; lines that do not parse are left out and counted.
inline std::vector<Record> ReadRecords(const std::string& folder, int* bad = nullptr) {
  std::vector<Record> records;
  const std::vector<FileId> files = ListFiles(folder).value();
  for (const FileId& file : files) {
    for (const std::string& line : LinesOf(ReadFile(folder + "/" + FileName(file)))) {
      auto record = Parse(line);
      if (record.ok()) {
        records.push_back(*std::move(record));
      } else if (bad != nullptr) {
        ++*bad;
      }
    }
  }
  return records;
}

template <typename T>
std::vector<T> Only(const std::vector<Record>& records) {
  std::vector<T> found;
  for (const Record& record : records) {
    if (const T* one = std::get_if<T>(&record)) found.push_back(*one);
  }
  return found;
}

}  // namespace cofferdam::tenure

#endif  // COFFERDAM_TENURE_TESTING_H_
