#include "model/step.h"

#include <gtest/gtest.h>

#include <array>

namespace cofferdam::model {
namespace {

constexpr uint32_t kPageTokens = 16, kMaxRows = 8;

class Validate : public testing::Test {
 protected:
  Validate() {
    hparams_.vocabulary = 100;
    for (auto& table : tables_) table = pages_;
  }
  absl::Status Check(std::vector<BatchRow> rows) {
    return ValidateBatch({.rows = rows, .tables = tables_}, hparams_, kPageTokens, kMaxRows);
  }
  void ExpectRefused(std::vector<BatchRow> rows, const std::string& part) {
    const auto status = Check(std::move(rows));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status;
  }

  Hparams hparams_;
  std::byte page_{};
  std::array<std::byte*, 2> pages_ = {&page_, &page_};
  std::array<std::span<std::byte* const>, 3> tables_;
};

TEST_F(Validate, TakesRowsOfSeveralTables) {
  EXPECT_TRUE(Check({{.token = 1, .position = 5, .table = 2},
                     {.token = 99, .position = 6, .table = 2},
                     {.token = 0, .position = 31, .table = 0}})
                  .ok());
}

TEST_F(Validate, RefusesEveryBrokenRow) {
  ExpectRefused({}, "a batch of 0 rows");
  ExpectRefused(std::vector<BatchRow>(kMaxRows + 1), "a batch of 9 rows");
  ExpectRefused({{.token = -1}}, "vocabulary");
  ExpectRefused({{.token = 100}}, "vocabulary");
  ExpectRefused({{.token = 1, .table = 3}}, "table does not exist");
  ExpectRefused({{.token = 1, .position = 32}}, "past the table's pages");
  ExpectRefused({{.token = 1, .position = 0xffffffffu}}, "past the table's pages");
  ExpectRefused({{.token = 1, .position = 4}, {.token = 1, .position = 4}}, "does not follow");
  ExpectRefused({{.token = 1, .position = 4}, {.token = 1, .position = 3}}, "does not follow");
  ExpectRefused({{.token = 1, .table = 0}, {.token = 1, .table = 1}, {.token = 1, .position = 1, .table = 0}},
                "do not stand together");
  pages_[1] = nullptr;
  ExpectRefused({{.token = 1}}, "null page");
}

}  // namespace
}  // namespace cofferdam::model
