// What a newcomer types, and what comes back when it is wrong.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "e2e/cluster.h"
#include "tenure/record.h"

namespace cofferdam::e2e {
namespace {

using testing::Test;

void ExpectRefused(const std::vector<std::string>& arguments, const std::vector<std::string>& words) {
  const Ended ended = RunCofferdam(arguments);
  EXPECT_GT(ended.exit_code, 0) << "it did not end by itself: " << ended.output;
  for (const std::string& word : words)
    EXPECT_NE(ended.output.find(word), std::string::npos) << "no '" << word << "' in: " << ended.output;
}

TEST(Commands, HelpOfEachNamesItsOptions) {
  for (const char* command : {"up", "gateway", "prefill", "decode"}) {
    const Ended ended = RunCofferdam({command, "--help"});
    EXPECT_EQ(ended.exit_code, 0);
    for (const char* option : {"--model", "--config", "--log-level"})
      EXPECT_NE(ended.output.find(option), std::string::npos) << command;
  }
  EXPECT_EQ(RunCofferdam({"--version"}).exit_code, 0);
  EXPECT_EQ(RunCofferdam({"keys", "--help"}).exit_code, 0);
  const Ended incidents = RunCofferdam({"incidents", "--help"});
  EXPECT_EQ(incidents.exit_code, 0);
  for (const char* option : {"--log", "--since", "--until", "--min-prompt", "--json"})
    EXPECT_NE(incidents.output.find(option), std::string::npos) << option;
}

// A portable build installs one binary for each instruction-set level and this launcher as `cofferdam`.
class Launcher : public Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "cofferdam-launcher-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    std::filesystem::copy_file(COFFERDAM_LAUNCHER, folder_ / "cofferdam");
  }
  void TearDown() override {
    unsetenv("COFFERDAM_ISA");
    std::filesystem::remove_all(folder_);
  }
  Ended Run() { return RunProgram(folder_ / "cofferdam", {"--version"}); }

  std::filesystem::path folder_;
};

TEST_F(Launcher, BecomesTheBinaryBesideItThatThisProcessorRuns) {
  // Any processor that runs these tests runs the lowest level; a level above it may not even be tried.
  std::filesystem::create_symlink(COFFERDAM_BINARY, folder_ / "cofferdam-x86-64-v2");
  EXPECT_EQ(Run().exit_code, 0);
  EXPECT_EQ(Run().output, RunCofferdam({"--version"}).output);
}

TEST_F(Launcher, SaysWhyNothingCanBeStarted) {
  EXPECT_EQ(Run().exit_code, 78);
  EXPECT_NE(Run().output.find("portable build"), std::string::npos) << Run().output;
  setenv("COFFERDAM_ISA", "x86-64-v9", 1);
  EXPECT_EQ(Run().exit_code, 78);
  EXPECT_NE(Run().output.find("x86-64-v9"), std::string::npos) << Run().output;
}

TEST(Commands, UnknownOptionsAndCommandsAreRefusedByName) {
  ExpectRefused({"up", "--kv-tokenz", "5"}, {"--kv-tokenz"});
  ExpectRefused({"serve"}, {"serve"});
  ExpectRefused({}, {"subcommand"});
  ExpectRefused({"decode"}, {"--listen"});
  ExpectRefused({"prefill", "--listen", "127.0.0.1:7002"}, {"--fabric"});
  ExpectRefused({"gateway"}, {"address of a decode worker"});
}

TEST(Commands, APoolSmallerThanTheContextIsRefusedAndSaysByHowMuch) {
  ExpectRefused({"up", "--port", "0", "--context-length", "1024", "--kv-tokens", "512"}, {"1024", "512", "--shrink-context"});
}

// A folder with the log of one decode worker: r1 and r2 had page 3 one after the other.
class TenureFolder {
 public:
  TenureFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "cofferdam-log-XXXXXX";
    path_ = mkdtemp(pattern.data()) == nullptr ? "" : pattern;
    const tenure::Stamp stamp{kNoon, tenure::Role::kDecode, tenure::BootId(1)};
    Write(tenure::Boot{stamp, 16, 64, "1"});
    for (const uint64_t n : {1, 2}) {
      const std::string name = "r" + std::to_string(n);
      Write(tenure::Started{stamp, SequenceId(n), name, "d", 100 * n, 1, {{PageId(3), Generation(n)}}});
      Write(tenure::Ended{stamp, SequenceId(n), n == 1 ? tenure::Outcome::kFinished : tenure::Outcome::kIntegrity, 1, 1});
    }
  }
  ~TenureFolder() { std::filesystem::remove_all(path_); }
  TenureFolder(const TenureFolder&) = delete;
  TenureFolder& operator=(const TenureFolder&) = delete;

  void BreakTheSecond() {
    const tenure::Stamp stamp{kNoon, tenure::Role::kDecode, tenure::BootId(1)};
    Write(tenure::Incident{stamp, SequenceId(2), "r2", "d", "tags", PageId(3), Generation(2), Generation(1),
                           std::string(tenure::kActionEnded), ""});
  }
  const std::string& path() const { return path_; }

 private:
  static constexpr tenure::Micros kNoon = 1'796'126'400'000'000;  // 2026-12-01T12:00:00Z
  void Write(const tenure::Record& record) {
    std::string lines;
    tenure::AppendLines(record, lines);
    std::ofstream(path_ + "/decode-0000000000000001-000001.jsonl", std::ios::app) << lines;
  }
  std::string path_;
};

TEST(Commands, IncidentsSaysWhoWasInThePageAndEndsWithItsOwnExitCode) {
  TenureFolder folder;
  folder.BreakTheSecond();
  const Ended ended = RunCofferdam({"incidents", "--log", folder.path()});
  EXPECT_EQ(ended.exit_code, 3) << ended.output;
  for (const char* words : {"1 incident\n", "check \"tags\" failed on page 3", "generation 1: request r1", "0 findings"})
    EXPECT_NE(ended.output.find(words), std::string::npos) << words << " is not in: " << ended.output;
  // Before it, there was none.
  EXPECT_EQ(RunCofferdam({"incidents", "--log", folder.path(), "--until", "2026-12-01T11:59:59Z"}).exit_code, 0);
  EXPECT_EQ(RunCofferdam({"incidents", "--log", folder.path(), "--since", "2026-12-02"}).exit_code, 0);
}

TEST(Commands, IncidentsInJsonIsOneObject) {
  TenureFolder folder;
  folder.BreakTheSecond();
  const Ended ended = RunCofferdam({"incidents", "--log", folder.path(), "--json", "--min-prompt", "150"});
  EXPECT_EQ(ended.exit_code, 3);
  const Json json = Json::parse(ended.output, nullptr, false);
  ASSERT_TRUE(json.is_object()) << ended.output;
  EXPECT_EQ(json["incidents"][0]["content_may_be_of"]["listed"][0]["request"], "r1");
  ASSERT_EQ(json["long_prompts"].size(), 1u);
  EXPECT_EQ(json["long_prompts"][0]["request"], "r2");
}

// A request that was ended for a failed check, of which there is no record, is something to look at too.
TEST(Commands, IncidentsEndsWithThatExitCodeForAFindingAlone) {
  TenureFolder folder;
  const Ended ended = RunCofferdam({"incidents", "--log", folder.path()});
  EXPECT_EQ(ended.exit_code, 3) << ended.output;
  EXPECT_NE(ended.output.find("0 incidents"), std::string::npos) << ended.output;
}

TEST(Commands, IncidentsRefusesWrongInputAndSaysWhereItLooked) {
  TenureFolder folder;
  ExpectRefused({"incidents", "--log", "/nowhere/at/all"}, {"/nowhere/at/all"});
  ExpectRefused({"incidents", "--log", folder.path(), "--since", "yesterday"}, {"yesterday", "24h"});
  ExpectRefused({"incidents", "--log", folder.path(), "--since", "1h", "--until", "2h"}, {"--since is later"});
  ExpectRefused({"incidents", "--log", folder.path(), "--min-prompt", "0"}, {"--min-prompt"});
  ExpectRefused({"incidents", "--log", folder.path(), "--model", "x"}, {"--model"});
  EXPECT_EQ(RunCofferdam({"incidents", "--log", "/nowhere/at/all"}).exit_code, 78);
  EXPECT_EQ(RunCofferdam({"incidents", "--log", folder.path(), "--since", "yesterday"}).exit_code, 78);
  ExpectRefused({"incidents"}, {"cofferdam-e2e-", "/cofferdam"});  // in the state folder that each test has
}

// A process manager must tell what another start can help from what it cannot.
TEST(Commands, ARefusedConfigurationEndsWithItsOwnExitCode) {
  EXPECT_EQ(RunCofferdam({"up", "--port", "0", "--context-length", "1024", "--kv-tokens", "512"}).exit_code, 78);
  EXPECT_EQ(RunCofferdam({"up", "--port", "0", "--api-key", "#comment"}).exit_code, 78);
  EXPECT_EQ(RunCofferdam({"up", "--no-such-option"}).exit_code, 78);
}

TEST(Commands, WorkersListenOnThisMachineAlone) {
  ExpectRefused({"prefill", "--listen", "0.0.0.0:7000", "--fabric", "shm:/tmp/x"}, {"0.0.0.0:7000"});
  ExpectRefused({"decode", "--listen", "[::]:7000", "--prefill", "127.0.0.1:7001"}, {"[::]:7000"});
  ExpectRefused({"decode", "--listen", "127.0.0.1:7002", "--prefill", "10.0.0.1:7001"}, {"10.0.0.1:7001"});
  ExpectRefused({"gateway", "--port", "0", "--decode", "192.168.1.1:1", "--prefill", "127.0.0.1:7001"}, {"192.168.1.1:1"});
}

TEST(Commands, AModelThatIsNotThereOrNoModelIsRefusedWithItsName) {
  ExpectRefused({"up", "--port", "0", "--model", "/nowhere/model.gguf"}, {"/nowhere/model.gguf"});
  ExpectRefused({"up", "--port", "0", "--model", COFFERDAM_NOT_A_MODEL}, {COFFERDAM_NOT_A_MODEL});
}

TEST(Commands, AConfigFileSetsTheSameOptions) {
  const std::string path = std::filesystem::temp_directory_path() / ("cofferdam-config-" + std::to_string(getpid()) + ".toml");
  std::ofstream(path) << "served-model-name = [\"from-the-file\"]\nkv-tokens = 4096\npage-size = 32\n";
  Cluster cluster({"--config", path});
  ASSERT_TRUE(cluster.Start());
  const Response models = cluster.Ask("GET /v1/models HTTP/1.1\r\nHost: test\r\n\r\n");
  EXPECT_EQ(models.json()["data"][0]["id"], "from-the-file") << models.body;
  EXPECT_EQ(cluster.Info("decode").kv_tokens(), 4096u);
  EXPECT_EQ(cluster.Info("prefill").page_tokens(), 32u);
  std::filesystem::remove(path);
}

TEST(Commands, AConfigFileWithAnUnknownOptionIsRefusedByName) {
  const std::string path = std::filesystem::temp_directory_path() / ("cofferdam-config-" + std::to_string(getpid()) + ".toml");
  std::ofstream(path) << "kv-tokenz = 4096\n";
  ExpectRefused({"up", "--port", "0", "--config", path}, {"kv-tokenz"});
  std::ofstream(path) << "page-size = \"many\"\n";
  ExpectRefused({"up", "--port", "0", "--config", path}, {"page-size"});
  std::filesystem::remove(path);
  ExpectRefused({"up", "--port", "0", "--config", "/nowhere.toml"}, {"/nowhere.toml"});
}

// One worker with every core and a pool of --kv-tokens, and not a word of a prefill worker that would be missing.
TEST(Commands, ColocatedIsOneWorkerForPromptsAndAnswers) {
  Cluster cluster({"--kv-tokens", "4096", "--context-length", "1024"}, Mode::kColocated);
  ASSERT_TRUE(cluster.Start());
  const Json health = cluster.Ask("GET /health HTTP/1.1\r\nHost: test\r\n\r\n").json();
  EXPECT_EQ(health["decode_workers"], 1) << health;
  EXPECT_EQ(health["max_model_len"], 1024) << health;
  EXPECT_EQ(health["problems"], Json::array()) << health;
  EXPECT_EQ(cluster.Info("decode").role(), "decode");
  EXPECT_EQ(cluster.Info("decode").kv_tokens(), 4096u);
  EXPECT_EQ(cluster.Complete({{"prompt", std::vector<int>(900, 50)}, {"max_tokens", 8}}).status, 200);
  const Response metrics = cluster.Ask("GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n");
  EXPECT_NE(metrics.body.find("role=\"decode\""), std::string::npos);
  EXPECT_EQ(metrics.body.find("role=\"prefill\""), std::string::npos);
  EXPECT_EQ(cluster.ProcessOf("prefill"), -1);
  EXPECT_EQ(cluster.log().find("prefill"), std::string::npos) << cluster.log();
  EXPECT_EQ(cluster.Stop(), 0) << cluster.log();
}

TEST(Commands, TheModeOfAConfigFileHoldsToo) {
  const std::string path = std::filesystem::temp_directory_path() / ("cofferdam-config-" + std::to_string(getpid()) + ".toml");
  std::ofstream(path) << "mode = \"colocated\"\n";
  ExpectRefused({"up", "--port", "0", "--config", path, "--prefill-kv-tokens", "4096"}, {"--prefill-kv-tokens"});
  std::ofstream(path) << "mode = \"both\"\n";
  ExpectRefused({"up", "--port", "0", "--config", path}, {"--mode", "both", "colocated"});
  std::filesystem::remove(path);
}

TEST(Commands, AModeThatIsNoneOrHasNoSuchWorkerIsRefused) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--mode", "both"},
                                             {"--mode", ""},
                                             {"--mode", "colocated", "--prefill-kv-tokens", "4096"},
                                             {"--mode", "colocated", "--pull-answers"}}) {
    std::vector<std::string> arguments{"up", "--port", "0"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const Ended ended = RunCofferdam(arguments);
    EXPECT_EQ(ended.exit_code, 78) << ended.output;
    EXPECT_NE(ended.output.find(wrong.size() > 2 ? wrong[2] : "--mode"), std::string::npos) << ended.output;
    EXPECT_NE(ended.output.find("colocated"), std::string::npos) << ended.output;
  }
}

TEST(Commands, TheCommandLineWinsOverTheConfigFile) {
  const std::string path = std::filesystem::temp_directory_path() / ("cofferdam-config-" + std::to_string(getpid()) + ".toml");
  std::ofstream(path) << "kv-tokens = 4096\nshrink-context = true\n";
  Cluster cluster({"--config", path, "--kv-tokens", "1024"});
  ASSERT_TRUE(cluster.Start());
  EXPECT_EQ(cluster.Info("decode").kv_tokens(), 1024u);
  EXPECT_EQ(cluster.Info("decode").context_tokens(), 1024u);  // 2048 by itself: the flag of the file holds
  std::filesystem::remove(path);
}

// Whoever names a file of keys means a closed server: one without a key must never be an open one.
TEST(Commands, AKeyFileWithoutAKeyIsRefused) {
  const std::string path = std::filesystem::temp_directory_path() / ("cofferdam-keys-" + std::to_string(getpid()));
  for (const char* text : {"\n", "  \n\n", "# a comment\n", ""}) {
    std::ofstream(path) << text;
    ExpectRefused({"up", "--port", "0", "--api-key-file", path}, {path});
  }
  ExpectRefused({"up", "--port", "0", "--api-key-file", "/nowhere/keys"}, {"/nowhere/keys"});
  std::ofstream(path) << "# keys\nsk-first\n\n  sk-second  \n";
  Cluster cluster({"--api-key-file", path});
  ASSERT_TRUE(cluster.Start());
  const auto status_with = [&](const std::string& key) {
    return cluster.Ask("GET /v1/models HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer " + key + "\r\n\r\n").status;
  };
  EXPECT_EQ(status_with("sk-first"), 200);
  EXPECT_EQ(status_with("sk-second"), 200);
  EXPECT_EQ(status_with("# keys"), 401);
  EXPECT_EQ(status_with("sk-"), 401);
  EXPECT_EQ(cluster.Ask("GET /v1/models HTTP/1.1\r\nHost: test\r\n\r\n").status, 401);
  EXPECT_EQ(cluster.log().find("sk-first"), std::string::npos);
  std::filesystem::remove(path);
}

// A newcomer who reads a warning at the first start looks for what is wrong.
TEST(Commands, AHealthyStartWarnsOfNoWorker) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.Start());
  EXPECT_TRUE(Eventually([&] { return cluster.log().find("all workers are ready") != std::string::npos; }));
  for (const char* alarm : {"does not answer", "is not ready", "has no prefill worker"}) {
    EXPECT_EQ(cluster.log().find(alarm), std::string::npos) << cluster.log();
  }
}

// Without keys nobody but this machine's users gets in, unless whoever starts the server says so.
TEST(Commands, AnAddressThatOthersReachNeedsKeys) {
  ExpectRefused({"up", "--port", "0", "--host", "0.0.0.0"}, {"0.0.0.0", "cofferdam keys add", "--allow-anyone"});
  EXPECT_EQ(RunCofferdam({"up", "--port", "0", "--host", "0.0.0.0"}).exit_code, 78);
  Cluster cluster({"--host", "0.0.0.0", "--allow-anyone"});
  ASSERT_TRUE(cluster.Start());
  EXPECT_NE(cluster.log().find("whoever reaches it"), std::string::npos);
}

TEST(Commands, KeysAreMadeListedAndRevokedWhileTheServerRuns) {
  const std::string path = std::filesystem::temp_directory_path() / ("cofferdam-keyfile-" + std::to_string(getpid()) + ".json");
  std::filesystem::remove(path);
  const auto add = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"keys", "add", "--keys", path});
    const Ended ended = RunCofferdam(more);
    EXPECT_EQ(ended.exit_code, 0) << ended.output;
    const size_t at = ended.output.find("cd-");
    return at == std::string::npos ? "" : ended.output.substr(at, 46);
  };
  const std::string first = add({"--tenant", "acme", "--id", "acme-1"});
  Cluster cluster({"--keys", path});
  ASSERT_TRUE(cluster.Start());
  const auto status_with = [&](const std::string& key) {
    return cluster.Ask("GET /v1/models HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer " + key + "\r\n\r\n").status;
  };
  EXPECT_EQ(status_with(first), 200);
  EXPECT_EQ(status_with("cd-"), 401);
  const std::string second = add({"--tenant", "bolt", "--id", "bolt-1", "--requests-per-minute", "10", "--allow-model", "m"});
  EXPECT_TRUE(Eventually([&] { return status_with(second) == 200; }));
  const Ended list = RunCofferdam({"keys", "list", "--keys", path});
  for (const char* word : {"acme-1", "bolt-1", "acme", "bolt", "TENANT", "10"}) {
    EXPECT_NE(list.output.find(word), std::string::npos) << word << " in " << list.output;
  }
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text.find(first), std::string::npos) << "the file holds hashes alone";
  EXPECT_EQ(RunCofferdam({"keys", "list", "--json", "--keys", path}).output, text);
  EXPECT_EQ(static_cast<unsigned>(std::filesystem::status(path).permissions()), 0600u);
  EXPECT_EQ(RunCofferdam({"keys", "revoke", "--keys", path, "acme-1"}).exit_code, 0);
  EXPECT_TRUE(Eventually([&] { return status_with(first) == 401; }));
  EXPECT_EQ(status_with(second), 200);
  EXPECT_EQ(cluster.log().find(second), std::string::npos) << "a key is in no log";
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".lock");
}

TEST(Commands, KeysRefusesWrongInputAndChangesNothing) {
  const std::string path = std::filesystem::temp_directory_path() / ("cofferdam-keyfile-" + std::to_string(getpid()) + ".json");
  std::filesystem::remove(path);
  ExpectRefused({"keys"}, {"subcommand"});
  ExpectRefused({"keys", "add", "--tenant", "a"}, {"--keys"});
  ExpectRefused({"keys", "add", "--keys", path}, {"--tenant"});
  ExpectRefused({"keys", "list", "--keys", path}, {path});
  ExpectRefused({"keys", "add", "--keys", path, "--tenant", "a b"}, {"'tenant'"});
  ExpectRefused({"keys", "add", "--keys", path, "--tenant", "a", "--priority", "61"}, {"'priority'", "60"});
  ExpectRefused({"keys", "add", "--keys", path, "--tenant", "a", "--concurrency", "-1"}, {"--concurrency"});
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(RunCofferdam({"keys", "add", "--keys", path, "--tenant", "a", "--id", "one"}).exit_code, 0);
  ExpectRefused({"keys", "add", "--keys", path, "--tenant", "a", "--id", "one"}, {"'one'"});
  ExpectRefused({"keys", "revoke", "--keys", path, "one", "two"}, {"'two'", "nothing was revoked"});
  EXPECT_NE(RunCofferdam({"keys", "list", "--keys", path}).output.find("one"), std::string::npos);
  ExpectRefused({"up", "--port", "0", "--keys", path, "--api-key", "k"}, {"--keys", "--api-key"});
  std::ofstream(path) << "{}";
  ExpectRefused({"up", "--port", "0", "--keys", path}, {path});
  EXPECT_EQ(RunCofferdam({"up", "--port", "0", "--keys", path}).exit_code, 78);
  ExpectRefused({"keys", "add", "--keys", path, "--tenant", "a"}, {path});
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".lock");
}

TEST(Commands, JsonLogsAreOneObjectALine) {
  Cluster cluster({"--log-json", "--served-model-name", "a \"quoted\\ name"});
  ASSERT_TRUE(cluster.Start());
  EXPECT_EQ(cluster.Complete({{"prompt", "The"}, {"max_tokens", 2}}).status, 200);
  std::istringstream lines(cluster.log());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Json json = Json::parse(line, nullptr, false);
    EXPECT_TRUE(json.is_object() && json.contains("message")) << line;
  }
  EXPECT_GT(count, 8);
}

TEST(Commands, APortThatIsTakenIsRefusedByNumber) {
  Cluster first({});
  ASSERT_TRUE(first.Start());
  ExpectRefused({"up", "--port", std::to_string(first.port())}, {std::to_string(first.port())});
}

}  // namespace
}  // namespace cofferdam::e2e
