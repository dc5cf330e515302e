#include "tenure/record.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tenure/testing.h"

namespace cofferdam::tenure {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
const Stamp kStamp{1'796'000'000'123'456, Role::kPrefill, BootId(0xab00000000000001)};

std::vector<Record> OneOfEach() {
  return {
      Boot{kStamp, 512, 64, "0.1.0"},
      Started{kStamp,
              SequenceId(7),
              "chatcmpl-1",
              "default",
              100,
              20,
              {{PageId(3), Generation(9)}, {PageId(4294967295), Generation(kMax)}},
              0},
      Started{kStamp, SequenceId(8), "", "", 0, 0, {}, 0},
      Ended{kStamp, SequenceId(kMax), Outcome::kIntegrity, 17, 4},
      Rejected{kStamp, "chatcmpl-2", "d41d8cd9", 131072, 1, "context_length_exceeded"},
      Incident{kStamp,
               SequenceId(7),
               "chatcmpl-1",
               "default",
               "tags",
               PageId(3),
               Generation(9),
               Generation(4),
               std::string(kActionEnded),
               "head tag \"wrong\" \\",
               {{{PageId(3), Generation(4)}, SequenceId(2), "chatcmpl-0", "other", 5, 6},
                {{PageId(3), Generation(1)}, SequenceId(1), "", "", 1, 0}}},
      Incident{.stamp = kStamp,
               .sequence = SequenceId(7),
               .check = "payload",
               .page = PageId(3),
               .expected_generation = Generation(9),
               .earlier = {{{PageId(3), Generation(4)}, SequenceId(2), "chatcmpl-0", "other", 5, 6}},
               .more_earlier = 3,
               .sharers = {{{PageId(3), Generation(9)}, SequenceId(6), "chatcmpl-3", "default", 8, 0},
                           {{PageId(3), Generation(9)}, SequenceId(5), "", "", 7, 9}},
               .more_sharers = kMax},
      Incident{.stamp = kStamp, .sequence = SequenceId(7), .more_sharers = 1},
      Gap{kStamp, 1'795'999'999'000'000, 12},
  };
}

std::string LineOf(const Record& record) {
  std::string line;
  AppendLines(record, line);
  EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
  line.pop_back();
  return line;
}

TEST(RecordTest, EachKindComesBackAsItWasWritten) {
  for (const Record& record : OneOfEach()) {
    const std::string line = LineOf(record);
    const auto parsed = Parse(line);
    ASSERT_TRUE(parsed.ok()) << line;
    EXPECT_EQ(*parsed, record) << line;
    Kind kind{};
    ASSERT_TRUE(KindOf(line, kind));
    EXPECT_EQ(static_cast<size_t>(kind), record.index());
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  }
}

TEST(RecordTest, EveryOutcomeAndRoleComesBack) {
  for (const Outcome outcome : {Outcome::kFinished, Outcome::kCancelled, Outcome::kFailed, Outcome::kHandedOver,
                                Outcome::kIntegrity, Outcome::kPreempted}) {
    for (const Role role : {Role::kPrefill, Role::kDecode}) {
      const Record record = Ended{{1, role, BootId(2)}, SequenceId(3), outcome, 4, 5};
      EXPECT_EQ(Parse(LineOf(record)).value(), record);
    }
  }
}

TEST(RecordTest, MorePagesThanALineHoldsBecomeLinesOfOneSequence) {
  Started started{.stamp = kStamp,
                  .sequence = SequenceId(5),
                  .request_id = std::string(kMaxNameBytes, '"'),
                  .domain = std::string(kMaxNameBytes, '\\')};
  for (uint32_t i = 0; i < 2 * kMaxPagesPerLine + 1; ++i) started.pages.push_back({PageId(4294967295 - i), Generation(kMax - i)});
  std::string text;
  AppendLines(started, text);
  std::vector<PageTenure> pages;
  std::vector<uint64_t> more;
  for (const std::string& line : LinesOf(text)) {
    EXPECT_LE(line.size(), kMaxLineBytes);
    const auto part = Parse(line);
    ASSERT_TRUE(part.ok());
    const auto& got = std::get<Started>(*part);
    EXPECT_EQ(got.sequence, started.sequence);
    pages.insert(pages.end(), got.pages.begin(), got.pages.end());
    more.push_back(got.more_pages);
  }
  EXPECT_EQ(pages, started.pages);
  EXPECT_EQ(more, (std::vector<uint64_t>{kMaxPagesPerLine + 1, 1, 0}));
}

TEST(RecordTest, LongOrStrangeStringsAreCutAndCleanedAndStillParse) {
  const Record record = Rejected{kStamp, std::string(1000, 'x'), "a\nb\x1b[2J\xff\xc3\xa4\x7f", 1, 1, std::string(5000, '"')};
  const auto parsed = Parse(LineOf(record));
  ASSERT_TRUE(parsed.ok());
  const auto& got = std::get<Rejected>(*parsed);
  EXPECT_EQ(got.request_id, std::string(kMaxNameBytes, 'x'));
  EXPECT_EQ(got.domain, "a?b?[2J????");
  EXPECT_EQ(got.code, std::string(kMaxWordsBytes, '"'));
}

TEST(RecordTest, ATimeBefore1970IsWrittenAsTheFirstMoment) {
  EXPECT_EQ(StampOf(*Parse(LineOf(Ended{{-5, Role::kDecode, BootId(1)}, SequenceId(1)}))).time, 0);
}

// A record has room for who, when and which page, and none for what was said.
TEST(RecordTest, NoKindHasAFieldForTextOrTokens) {
  for (const Record& record : OneOfEach()) {
    const auto json = nlohmann::json::parse(LineOf(record));
    for (const auto& [key, value] : json.items()) {
      for (const char* word : {"text", "content", "prompt", "messages", "token_ids", "key"}) EXPECT_NE(key, word);
    }
  }
}

TEST(RecordTest, AWrongTypeAMissingOrAForeignFieldIsRefused) {
  const std::string good = LineOf(OneOfEach()[1]);
  ASSERT_TRUE(Parse(good).ok());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string line = good;
    const size_t at = line.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return line.replace(at, from.size(), to);
  };
  const std::string refused[] = {
      with("\"sequence\":7", "\"sequence\":\"7\""),
      with("\"sequence\":7", "\"sequence\":-7"),
      with("\"sequence\":7", "\"sequence\":07"),
      with("\"sequence\":7", "\"sequence\":"),
      with("\"sequence\":7", "\"sequence\": 7"),
      with("\"sequence\":7", "\"sequence\":7.0"),
      with("\"sequence\":7", "\"sequence\":null"),
      with("\"sequence\":7", "\"sequence\":18446744073709551616"),
      with("\"sequence\":7", "\"sequence\":1e999"),
      with("\"sequence\":7", "\"sequence\":[7]"),
      with("\"sequence\":7", "\"sequence\":{\"sequence\":7}"),
      with("\"sequence\":7,", ""),
      with("\"sequence\":7", "\"sequence\":7,\"sequence\":7"),
      with("\"sequence\":7", "\"sequence\":7,\"prompt\":\"words\""),
      with("\"sequence\":7", "\"sequence\":7,\"outcome\":\"finished\""),
      with("\"request\":\"chatcmpl-1\"", "\"request\":1"),
      with("\"request\":\"chatcmpl-1\"", "\"request\":\"" + std::string(kMaxNameBytes + 1, 'x') + "\""),
      with("\"request\":\"chatcmpl-1\"", "\"request\":\"\\u001b[2J\""),
      with("\"role\":\"prefill\"", "\"role\":\"gateway\""),
      with("\"boot\":\"ab", "\"boot\":\"AB"),
      with("\"boot\":\"ab", "\"boot\":\"b"),
      with("\"kind\":\"started\"", "\"kind\":\"stopped\""),
      with("\"kind\":\"started\"", "\"kind\":\"ended\""),
      with("[3,9]", "[3]"),
      with("[3,9]", "[3,9,1]"),
      with("[3,9]", "[3,\"9\"]"),
      with("[3,9]", "[4294967296,9]"),
      with("[3,9]", "[[3,9]]"),
      with("[3,9]", "3"),
      with("[3,9]", "{}"),
      with("[[3", "[[-3"),
      good + "{}",
      good + " x",
      "[" + good + "]",
      " " + good,
  };
  for (const std::string& line : refused) EXPECT_FALSE(Parse(line).ok()) << line;
}

TEST(RecordTest, MoreThanALinesWorthIsRefused) {
  std::string pages = "[[1,1]";
  for (size_t i = 0; i < kMaxPagesPerLine; ++i) pages += ",[1,1]";
  std::string line = LineOf(OneOfEach()[2]);
  line.replace(line.find("[]"), 2, pages + "]");
  EXPECT_FALSE(Parse(line).ok());
  EXPECT_FALSE(Parse(LineOf(OneOfEach()[0]) + std::string(kMaxLineBytes, ' ')).ok());
  std::string earlier = LineOf(OneOfEach()[5]);
  const size_t at = earlier.find("\"earlier\":[") + 11;
  for (size_t i = 0; i < kMaxEarlier - 2; ++i) earlier.insert(at, R"([1,2,3,"a","b",4,5],)");
  EXPECT_TRUE(Parse(earlier).ok()) << earlier;
  EXPECT_FALSE(Parse(earlier.insert(at, R"([1,2,3,"a","b",4,5],)")).ok());
}

TEST(RecordTest, IncidentsFromBeforePagesWereSharedStillParse) {
  const std::string line =
      R"({"kind":"incident","time":1796000000123456,"role":"decode","boot":"ab00000000000001","sequence":7,"request":"a","domain":"b",)"
      R"("check":"tags","page":3,"expected":9,"found":4,"action":"x","detail":"","earlier":[[3,4,2,"c","d",5,6]]})";
  const auto parsed = Parse(line);
  ASSERT_TRUE(parsed.ok());
  const auto& incident = std::get<Incident>(*parsed);
  EXPECT_EQ(incident.earlier.size(), 1u);
  EXPECT_TRUE(incident.sharers.empty());
  EXPECT_EQ(incident.more_earlier + incident.more_sharers, 0u);
  EXPECT_EQ(LineOf(*parsed), line);
}

TEST(RecordTest, ARecordOfAnIncidentHasBoundedListsAndSaysHowManyTheyLeaveOut) {
  Incident incident{.stamp = kStamp, .sequence = SequenceId(1), .more_earlier = 1, .more_sharers = 2};
  const RememberedTenure longest{{PageId(~0u), Generation(kMax)},    SequenceId(kMax),
                                 std::string(kMaxNameBytes, '"'),    std::string(kMaxNameBytes, '"'),
                                 std::numeric_limits<Micros>::max(), std::numeric_limits<Micros>::max()};
  incident.earlier.assign(kMaxEarlier + 5, longest);
  incident.sharers.assign(kMaxSharers + 7, longest);
  const std::string line = LineOf(incident);
  EXPECT_LT(line.size(), kMaxLineBytes);
  const auto parsed = Parse(line);
  ASSERT_TRUE(parsed.ok());
  const auto& got = std::get<Incident>(*parsed);
  EXPECT_EQ(got.earlier.size(), kMaxEarlier);
  EXPECT_EQ(got.more_earlier, 6u);
  EXPECT_EQ(got.sharers.size(), kMaxSharers);
  EXPECT_EQ(got.more_sharers, 9u);
}

TEST(RecordTest, WhatTheWriterOfAnIncidentLeavesOutIsRefused) {
  std::string good = LineOf(Incident{.stamp = kStamp});
  good.pop_back();
  ASSERT_TRUE(Parse(good + "}").ok());
  EXPECT_TRUE(Parse(good + R"(,"more_earlier":1,"sharers":[[3,9,2,"c","d",5,6]],"more_sharers":1})").ok());
  for (const char* rest :
       {R"(,"sharers":[])", R"(,"more_sharers":0)", R"(,"more_earlier":0)", R"(,"more_sharers":1,"more_earlier":1)",
        R"(,"sharers":[[3,9,2,"c","d",5]])", R"(,"sharers":[[3,9,2,"c","d",5,6]],"sharers":[[3,9,2,"c","d",5,6]])"})
    EXPECT_FALSE(Parse(good + rest + "}").ok()) << rest;
}

// Whatever is accepted is what the writer would have written, to the byte, and JSON for other tools.
void ExpectSaneOrRefused(const std::string& line, int& accepted) {
  const auto parsed = Parse(line);
  if (!parsed.ok()) return;
  ++accepted;
  EXPECT_EQ(LineOf(*parsed), line);
  const auto json = nlohmann::json::parse(line, nullptr, false);
  ASSERT_TRUE(json.is_object()) << line;
  EXPECT_TRUE(json["time"].is_number_unsigned() && json["role"].is_string() && json["boot"].is_string()) << line;
}

TEST(RecordTest, NoBytesCrashTheParserOrPassForAnotherType) {
  std::mt19937_64 random(20261202);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  constexpr std::string_view kAlphabet = "{}[]\",:\\0123456789-+.eEtruefalsnull \x00\x1f\x7f\xff\xc3";
  std::vector<std::string> lines;
  for (const Record& record : OneOfEach()) lines.push_back(LineOf(record));
  int accepted = 0, mutated = 0;
  for (int i = 0; i < 40000; ++i) {
    std::string line = lines[below(lines.size())];
    if (i % 4 == 0) {
      line.resize(below(line.size()));
    } else if (i % 4 == 1) {
      line.assign(below(200), ' ');
      for (char& c : line) c = static_cast<char>(random());
      if (below(2) == 0) line.insert(0, "{\"kind\":\"ended\",");
    } else {
      for (size_t n = 1 + below(3); n > 0; --n) {
        const size_t at = below(line.size());
        const char c = kAlphabet[below(kAlphabet.size())];
        const size_t what = below(3);
        if (what == 0) line[at] = c;
        if (what == 1) line.insert(at, 1, c);
        if (what == 2 && line.size() > 1) line.erase(at, 1 + below(3));
      }
      ++mutated;
    }
    ExpectSaneOrRefused(line, accepted);
  }
  // Some mutations change a digit or a letter of a string, and are as good as before; most are not.
  EXPECT_GT(accepted, mutated / 100);
  EXPECT_LT(accepted, mutated / 2);
}

TEST(RecordTest, DeepNestingIsRefusedAndCostsNothing) {
  EXPECT_FALSE(Parse("{\"kind\":\"started\",\"tenures\":" + std::string(500'000, '[')).ok());
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"kind\":";
  EXPECT_FALSE(Parse("{\"kind\":\"started\",\"kind\":" + objects).ok());
}

TEST(RecordTest, BootIdsAreSixteenHexDigits) {
  EXPECT_EQ(Hex(BootId(0xff)), "00000000000000ff");
  BootId boot;
  EXPECT_TRUE(FromHex("00000000000000ff", boot));
  EXPECT_EQ(boot, BootId(0xff));
  for (const char* text : {"", "ff", "00000000000000FF", "00000000000000fg", "000000000000000ff"})
    EXPECT_FALSE(FromHex(text, boot)) << text;
}

}  // namespace
}  // namespace cofferdam::tenure
