#include "tenure/folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tenure/testing.h"

namespace cofferdam::tenure {
namespace {

constexpr Micros kNow = 1'796'126'400'000'000;

// A file that was written so many hours ago.
void Put(const TempFolder& folder, const FileId& file, int hours_old) {
  std::ofstream(folder.File(file)) << "{}\n";
  const timespec at{.tv_sec = kNow / 1'000'000 - hours_old * 3600L, .tv_nsec = 0};
  const timespec times[] = {at, at};
  ASSERT_EQ(utimensat(AT_FDCWD, folder.File(file).c_str(), times, 0), 0);
}

FileId Decode(uint64_t boot, uint32_t number) { return {Role::kDecode, BootId(boot), number}; }

TEST(FolderTest, NamesComeBack) {
  for (const FileId& file : {Decode(1, 1), FileId{Role::kPrefill, BootId(~uint64_t{0}), 1234567}}) {
    FileId parsed;
    EXPECT_TRUE(ParseFileName(FileName(file), parsed));
    EXPECT_EQ(parsed, file);
  }
  EXPECT_EQ(FileName(Decode(0xab, 7)), "decode-00000000000000ab-000007.jsonl");
  FileId parsed;
  for (const char* name : {"", "decode", "decode-.jsonl", "decode-00000000000000ab-00007.jsonl",
                           "decode-00000000000000ab-000007.json", "decode-00000000000000xx-000007.jsonl",
                           "gateway-00000000000000ab-000007.jsonl", "decode-00000000000000ab-99999999999.jsonl",
                           "decode-00000000000000ab-+00007.jsonl", "decode-00000000000000ab-0000007.jsonl"}) {
    EXPECT_FALSE(ParseFileName(name, parsed)) << name;
  }
}

TEST(FolderTest, TheDefaultIsTheStateFolderOfTheUser) {
  EXPECT_EQ(DefaultFolder("/state", "/home/somebody").value(), "/state/cofferdam");
  EXPECT_EQ(DefaultFolder("relative", "/home/somebody").value(), "/home/somebody/.local/state/cofferdam");
  EXPECT_EQ(DefaultFolder("", "/home/somebody").value(), "/home/somebody/.local/state/cofferdam");
  EXPECT_EQ(DefaultFolder(nullptr, "/home/somebody").value(), "/home/somebody/.local/state/cofferdam");
  EXPECT_EQ(DefaultFolder(nullptr, nullptr).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(DefaultFolder("relative", "").ok());
}

TEST(FolderTest, ANewFolderIsOfItsOwnerAlone) {
  TempFolder folder;
  ASSERT_TRUE(MakeFolder(folder.path() + "/a/b").ok());
  struct stat found {};
  ASSERT_EQ(stat((folder.path() + "/a/b").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  EXPECT_TRUE(MakeFolder(folder.path() + "/a/b").ok());
  std::ofstream(folder.path() + "/file") << "x";
  EXPECT_FALSE(MakeFolder(folder.path() + "/file").ok());
  EXPECT_FALSE(MakeFolder(folder.path() + "/file/below").ok());
}

TEST(FolderTest, OldFilesOfAnyBootOfTheRoleGoFirst) {
  TempFolder folder;
  for (uint32_t i = 1; i <= 3; ++i) Put(folder, Decode(9, i), 30 - static_cast<int>(i));  // the older boot has the higher id
  for (uint32_t i = 1; i <= 3; ++i) Put(folder, Decode(1, i), 10 - static_cast<int>(i));
  const FileId prefill{Role::kPrefill, BootId(1), 1};
  Put(folder, prefill, 100);
  EXPECT_EQ(RemoveOldFiles(folder.path(), Decode(1, 3), {.max_files = 4}, kNow), 2u);
  EXPECT_EQ(*ListFiles(folder.path()), (std::vector<FileId>{prefill, Decode(1, 1), Decode(1, 2), Decode(1, 3), Decode(9, 3)}));
}

TEST(FolderTest, FilesThatAreTooOldGoHoweverFewThereAre) {
  TempFolder folder;
  Put(folder, Decode(1, 1), 49);
  Put(folder, Decode(1, 2), 47);
  EXPECT_EQ(RemoveOldFiles(folder.path(), Decode(2, 1), {.max_age = std::chrono::hours(48)}, kNow), 1u);
  EXPECT_EQ(*ListFiles(folder.path()), std::vector<FileId>{Decode(1, 2)});
}

TEST(FolderTest, WhatIsBeingWrittenNeverGoes) {
  TempFolder folder;
  Put(folder, Decode(1, 1), 1000);
  Put(folder, Decode(2, 1), 1000);
  // Another worker of the role, which wrote nothing for long.
  const int other = open(folder.File(Decode(2, 1)).c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  EXPECT_EQ(RemoveOldFiles(folder.path(), Decode(1, 1), {.max_files = 1, .max_age = std::chrono::hours(1)}, kNow), 0u);
  EXPECT_EQ(ListFiles(folder.path())->size(), 2u);
  close(other);
  EXPECT_EQ(RemoveOldFiles(folder.path(), Decode(1, 1), {.max_files = 1, .max_age = std::chrono::hours(1)}, kNow), 1u);
  EXPECT_EQ(*ListFiles(folder.path()), std::vector<FileId>{Decode(1, 1)});
}

}  // namespace
}  // namespace cofferdam::tenure
