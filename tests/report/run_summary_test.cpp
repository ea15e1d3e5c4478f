#include "hydra/report/run_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hydra/core/error.h"

namespace hydra {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::ordered_json;

RunSummary example() {
  RunSummary summary;
  summary.wall_seconds = 12.5;
  RunSummary::Job trained;
  trained.name = "gpt2-small";
  trained.state = "completed";
  trained.losses = {3.5, 2.25, 1.0};
  trained.learning_rates = {1e-4, 5e-5, 1e-5};
  trained.tokens_per_second = 1234.6;
  trained.seconds = 9.75;
  trained.parameters_sha256 = "abc123";
  RunSummary::Job broken;
  broken.name = "broken";
  broken.state = "failed";
  broken.reason = "step 1: the loss is NaN";
  broken.losses = {2.0, std::nan("")};
  broken.learning_rates = {1e-3, 1e-3};
  RunSummary::Job never;
  never.name = "never";
  never.state = "cancelled";
  summary.jobs = {trained, broken, never};
  // Of 12.5 seconds 9.4375 are busy.
  summary.devices = {{"cpu0", Bytes(64 << 20), Bytes(48 << 20), 0.755, 1.0, 0.5, 0.25, 1.3125}};
  summary.host_budget = Bytes(std::int64_t{1} << 30);
  summary.host_peak = Bytes(100);
  summary.links = {{"host to cpu0", Bytes(3 << 20), 1.5, 0.75},
                   {"cpu0 to host", Bytes(1 << 20), 0.25, 0.25}};
  return summary;
}

std::vector<std::string> keys(const Json& object) {
  std::vector<std::string> found;
  for (const auto& entry : object.items()) found.push_back(entry.key());
  return found;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) found.push_back(line);
  return found;
}

// Exactly the keys that docs/formats/summary.md lists.
TEST(RunSummaryTest, TheJsonHasTheDocumentedKeys) {
  const Json json = Json::parse(to_json(example()));
  EXPECT_THAT(keys(json), ElementsAre("identity", "wall_seconds", "jobs", "devices", "host",
                                      "links", "bottleneck", "lost_outputs"));
  EXPECT_THAT(keys(json["identity"]), ElementsAre("threads_per_device", "torch", "cpu_kernels"));
  EXPECT_THAT(keys(json["jobs"][0]),
              ElementsAre("name", "state", "reason", "losses", "learning_rates",
                          "tokens_per_second", "seconds", "parameters_sha256"));
  EXPECT_THAT(
      keys(json["devices"][0]),
      ElementsAre("name", "budget_bytes", "peak_bytes", "busy_share", "transfer_wait_seconds",
                  "unit_wait_seconds", "supply_wait_seconds", "idle_seconds"));
  EXPECT_THAT(keys(json["host"]), ElementsAre("budget_bytes", "peak_bytes"));
  EXPECT_FALSE(json.contains("storage"));
  EXPECT_FALSE(json.contains("drives"));
  EXPECT_THAT(keys(json["links"][0]), ElementsAre("name", "bytes", "seconds", "hidden_seconds"));
}

TEST(RunSummaryTest, TheJsonGivesEveryValueBack) {
  const Json json = Json::parse(to_json(example()));
  EXPECT_EQ(json["wall_seconds"], 12.5);
  ASSERT_EQ(json["jobs"].size(), 3U);
  const Json& trained = json["jobs"][0];
  EXPECT_EQ(trained["name"], "gpt2-small");
  EXPECT_EQ(trained["state"], "completed");
  EXPECT_EQ(trained["reason"], "");
  EXPECT_EQ(trained["losses"], Json({3.5, 2.25, 1.0}));
  EXPECT_EQ(trained["learning_rates"], Json({1e-4, 5e-5, 1e-5}));
  EXPECT_EQ(trained["tokens_per_second"], 1234.6);
  EXPECT_EQ(trained["seconds"], 9.75);
  EXPECT_EQ(trained["parameters_sha256"], "abc123");
  EXPECT_EQ(json["jobs"][1]["reason"], "step 1: the loss is NaN");
  EXPECT_EQ(json["jobs"][2]["losses"], Json::array());
  EXPECT_EQ(json["devices"][0]["budget_bytes"], 64 << 20);
  EXPECT_EQ(json["devices"][0]["peak_bytes"], 48 << 20);
  EXPECT_EQ(json["devices"][0]["busy_share"], 0.755);
  EXPECT_EQ(json["devices"][0]["transfer_wait_seconds"], 1.0);
  EXPECT_EQ(json["devices"][0]["unit_wait_seconds"], 0.5);
  EXPECT_EQ(json["devices"][0]["supply_wait_seconds"], 0.25);
  EXPECT_EQ(json["devices"][0]["idle_seconds"], 1.3125);
  EXPECT_EQ(json["host"]["budget_bytes"], std::int64_t{1} << 30);
  EXPECT_EQ(json["host"]["peak_bytes"], 100);
  EXPECT_EQ(json["links"][0]["name"], "host to cpu0");
  EXPECT_EQ(json["links"][1]["bytes"], 1 << 20);
  EXPECT_EQ(json["links"][1]["seconds"], 0.25);
}

TEST(RunSummaryTest, AStorageTierHasBudgetsAndPeaksInJsonAndTable) {
  RunSummary summary = example();
  summary.host_cache_budget = Bytes(2 << 20);
  summary.host_cache_peak = Bytes(1 << 20);
  summary.storage_budget = Bytes(8 << 20);
  summary.storage_peak = Bytes(3 << 20);
  const Json json = Json::parse(to_json(summary));
  EXPECT_EQ(json["host_cache"], Json({{"budget_bytes", 2 << 20}, {"peak_bytes", 1 << 20}}));
  EXPECT_EQ(json["storage"], Json({{"budget_bytes", 8 << 20}, {"peak_bytes", 3 << 20}}));
  const std::string table = to_table(summary);
  EXPECT_NE(table.find("host cache   2.00 MiB   1.00 MiB\n"), std::string::npos) << table;
  EXPECT_NE(table.find("storage      8.00 MiB   3.00 MiB\n"), std::string::npos) << table;
}

TEST(RunSummaryTest, DrivesHaveTheirDepthAndDirectionsInJsonAndTableAndBottleneck) {
  RunSummary summary = example();
  summary.storage_budget = Bytes(8 << 20);
  summary.links.push_back({"storage to host", Bytes(5 << 20), 11});
  summary.devices[0] = {"cpu0", Bytes(64 << 20), Bytes(48 << 20), 0.5, 6.25, 0, 0, 0};
  summary.drives = {{"/mnt/a", Bytes(5 << 20), Bytes(2 << 20), 10, 2, 1, 12.25, 3.5}};
  const Json json = Json::parse(to_json(summary));
  EXPECT_EQ(json["drives"], Json::parse(R"([{"directory": "/mnt/a", "read_bytes": 5242880,
      "written_bytes": 2097152, "read_seconds": 10.0, "write_seconds": 2.0, "both_seconds": 1.0,
      "read_depth": 12.25, "write_depth": 3.5}])"));
  EXPECT_FALSE(json["links"][2].contains("hidden_seconds"));
  const std::string table = to_table(summary);
  EXPECT_NE(table.find("drive       read  seconds  depth   written  seconds  depth  both ways\n"
                       "/mnt/a  5.00 MiB    10.00   12.2  2.00 MiB     2.00    3.5       1.00\n"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("bottleneck: storage: the drive of /mnt/a was busy 88 %"), std::string::npos)
      << table;
}

TEST(RunSummaryTest, ALossThatIsNotFiniteIsNull) {
  RunSummary summary = example();
  summary.jobs[0].losses = {std::nan(""), std::numeric_limits<double>::infinity(), 1.0};
  const Json losses = Json::parse(to_json(summary))["jobs"][0]["losses"];
  EXPECT_TRUE(losses[0].is_null());
  EXPECT_TRUE(losses[1].is_null());
  EXPECT_EQ(losses[2], 1.0);
}

TEST(RunSummaryTest, EveryBitOfALossIsKept) {
  RunSummary summary = example();
  const double loss = 1.0 / 3.0;
  summary.jobs[0].losses = {loss, std::nextafter(loss, 1.0)};
  const Json losses = Json::parse(to_json(summary))["jobs"][0]["losses"];
  EXPECT_EQ(losses[0].get<double>(), loss);
  EXPECT_EQ(losses[1].get<double>(), std::nextafter(loss, 1.0));
}

TEST(RunSummaryTest, AnEmptyRunHasEmptyLists) {
  const Json json = Json::parse(to_json(RunSummary()));
  EXPECT_EQ(json["jobs"], Json::array());
  EXPECT_EQ(json["devices"], Json::array());
  EXPECT_EQ(json["links"], Json::array());
}

TEST(RunSummaryTest, NamesOfAnyBytesGiveValidJson) {
  RunSummary summary = example();
  summary.jobs[0].name = "größe \"x\"\n";
  summary.jobs[1].name = "bad \xff byte";
  const Json json = Json::parse(to_json(summary));
  EXPECT_EQ(json["jobs"][0]["name"], "größe \"x\"\n");
  EXPECT_EQ(json["jobs"][1]["name"], "bad \uFFFD byte");
}

TEST(RunSummaryTest, TheFileIsTheJsonAndReplacesAnOlderOne) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "hydra_summary_test";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "summary.json").string();
  std::ofstream(path) << "older and longer than nothing";
  write_summary_json(example(), path);
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text, to_json(example()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);  // no .part left
  std::filesystem::remove_all(folder);
}

TEST(RunSummaryTest, AFileThatCannotBeWrittenIsAnErrorWithPathAndCause) {
  try {
    write_summary_json(RunSummary(), "/no/such/folder/summary.json");
    FAIL() << "nothing was thrown";
  } catch (const SystemError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("/no/such/folder/summary.json"), std::string::npos) << message;
    EXPECT_NE(message.find("No such file"), std::string::npos) << message;
  }
}

TEST(RunSummaryTest, AFailedRenameLeavesNoTemporaryFile) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "hydra_summary_rename_test";
  std::filesystem::create_directories(folder / "taken" / "by a folder");
  EXPECT_THROW(write_summary_json(RunSummary(), (folder / "taken").string()), SystemError);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

TEST(RunSummaryTest, TheTableAlignsItsColumns) {
  EXPECT_THAT(
      lines(to_table(example())),
      ElementsAre("model           state  first loss  last loss  tokens/s  seconds",
                  "gpt2-small  completed      3.5000     1.0000      1235      9.8",
                  "broken         failed      2.0000        nan         0      0.0",
                  "never       cancelled           -          -         0      0.0",
                  "broken: step 1: the loss is NaN",  //
                  "",                                 //
                  "memory     budget       peak  busy  transfers  units  supply  no job",
                  "cpu0    64.00 MiB  48.00 MiB  76 %        8 %    4 %     2 %    10 %",
                  "host     1.00 GiB      100 B",
                  "",                                         //
                  "link             moved  seconds  hidden",  //
                  "host to cpu0  3.00 MiB     1.50    50 %",
                  "cpu0 to host  1.00 MiB     0.25   100 %",
                  "",  //
                  "bottleneck: no job left: devices had no job 10 % of their time: submit more "
                  "jobs or use fewer devices; where one job is last by far, submit it first"));
}

TEST(RunSummaryTest, ADevicesTimesAddUpToTheWallTime) {
  const Utilisation utilisation = to_utilisation(example());
  EXPECT_EQ(utilisation.wall, std::chrono::milliseconds(12500));
  ASSERT_EQ(utilisation.devices.size(), 1U);
  const Utilisation::Device& device = utilisation.devices[0];
  EXPECT_NEAR(seconds(device.total()), 12.5, 1e-6);  // each time is cut to nanoseconds
  EXPECT_EQ(device.name, "cpu0");
  EXPECT_EQ(device.transfer_wait, std::chrono::milliseconds(1000));
  EXPECT_EQ(device.unit_wait, std::chrono::milliseconds(500));
  EXPECT_EQ(device.supply_wait, std::chrono::milliseconds(250));
  EXPECT_EQ(device.idle, std::chrono::microseconds(1312500));
  EXPECT_EQ(device.budget, Bytes(64 << 20));
  EXPECT_EQ(device.peak, Bytes(48 << 20));
  ASSERT_EQ(utilisation.links.size(), 2U);
  EXPECT_EQ(utilisation.links[0].name, "host to cpu0");
  EXPECT_EQ(utilisation.links[0].bytes, Bytes(3 << 20));
  EXPECT_EQ(utilisation.links[0].busy, std::chrono::milliseconds(1500));
  EXPECT_EQ(utilisation.host.budget, Bytes(std::int64_t{1} << 30));
  EXPECT_EQ(utilisation.host.peak, Bytes(100));
}

TEST(RunSummaryTest, TheBottleneckIsInTheJsonAndUnknownWithoutTheWaits) {
  RunSummary summary = example();
  EXPECT_EQ(Json::parse(to_json(summary))["bottleneck"], bottleneck(to_utilisation(summary)));
  summary.devices = {{"cpu0", Bytes(64 << 20), Bytes(48 << 20), 0.755}};
  EXPECT_EQ(Json::parse(to_json(summary))["bottleneck"],
            "unknown: 76 % of the devices' time is accounted for");
  EXPECT_EQ(Json::parse(to_json(RunSummary()))["bottleneck"], "unknown: nothing was measured");
}

TEST(RunSummaryTest, TheTableAlignsNamesByCharactersNotBytes) {
  RunSummary summary;
  RunSummary::Job job;
  job.state = "completed";
  job.name = "größe";
  summary.jobs.push_back(job);
  job.name = "abcde";
  summary.jobs.push_back(job);
  const auto table = lines(to_table(summary));
  EXPECT_EQ(table[1].substr(std::string("größe").size()), table[2].substr(5));
}

}  // namespace
}  // namespace hydra
