#include "hydra/report/run_summary.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "hydra/report/output_file.h"
#include "report/text_line.h"

namespace hydra {
namespace {

using Json = nlohmann::ordered_json;

std::string cell(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// Columns as wide as their widest cell; the first is left-aligned.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], column_count(row[c]));
    }
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string pad(widths[c] - column_count(row[c]), ' ');
      text += c == 0 ? row[c] + pad : "  " + pad + row[c];
    }
    text += "\n";
  }
  return text;
}

Json to_object(const RunSummary::Job& job) {
  Json losses = Json::array();
  for (const double loss : job.losses) losses.push_back(loss);
  return {{"name", job.name},
          {"state", job.state},
          {"reason", job.reason},
          {"losses", std::move(losses)},
          {"learning_rates", job.learning_rates},
          {"tokens_per_second", job.tokens_per_second},
          {"seconds", job.seconds},
          {"parameters_sha256", job.parameters_sha256}};
}

Json to_object(const RunSummary::Device& device) {
  return {{"name", device.name},
          {"budget_bytes", device.budget.count()},
          {"peak_bytes", device.peak.count()},
          {"busy_share", device.busy_share},
          {"transfer_wait_seconds", device.transfer_wait_seconds},
          {"unit_wait_seconds", device.unit_wait_seconds},
          {"supply_wait_seconds", device.supply_wait_seconds},
          {"idle_seconds", device.idle_seconds}};
}

Json to_object(const RunSummary::Link& link) {
  Json json{{"name", link.name}, {"bytes", link.bytes.count()}, {"seconds", link.seconds}};
  if (link.hidden_seconds) json["hidden_seconds"] = *link.hidden_seconds;
  return json;
}

Json to_object(const RunSummary::Drive& drive) {
  return {{"directory", drive.directory},           {"read_bytes", drive.read.count()},
          {"written_bytes", drive.written.count()}, {"read_seconds", drive.read_seconds},
          {"write_seconds", drive.write_seconds},   {"both_seconds", drive.both_seconds},
          {"read_depth", drive.read_depth},         {"write_depth", drive.write_depth}};
}

Json tier(Bytes budget, Bytes peak) {
  return {{"budget_bytes", budget.count()}, {"peak_bytes", peak.count()}};
}

Nanoseconds nanoseconds(double seconds) {
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(seconds));
}

std::vector<std::vector<std::string>> memory_rows(const RunSummary& summary) {
  std::vector<std::vector<std::string>> rows{
      {"memory", "budget", "peak", "busy", "transfers", "units", "supply", "no job"}};
  const auto share = [&](double seconds) {
    return cell("%.0f %%", summary.wall_seconds > 0 ? 100 * seconds / summary.wall_seconds : 0);
  };
  for (const auto& device : summary.devices) {
    rows.push_back({device.name, to_string(device.budget), to_string(device.peak),
                    cell("%.0f %%", 100 * device.busy_share), share(device.transfer_wait_seconds),
                    share(device.unit_wait_seconds), share(device.supply_wait_seconds),
                    share(device.idle_seconds)});
  }
  const auto add = [&](const char* name, Bytes budget, Bytes peak) {
    rows.push_back({name, to_string(budget), to_string(peak)});
  };
  add("host", summary.host_budget, summary.host_peak);
  if (summary.has_storage()) {
    add("host cache", summary.host_cache_budget, summary.host_cache_peak);
    add("storage", summary.storage_budget, summary.storage_peak);
  }
  return rows;
}

std::string identity_line(const RunSummary::Identity& identity) {
  if (identity.threads_per_device == 0) return "";
  return "identity: these bits are those of " + std::to_string(identity.threads_per_device) +
         (identity.threads_per_device == 1 ? " Torch thread" : " Torch threads") +
         " per device, LibTorch " + identity.torch + ", " + identity.cpu_kernels + " kernels\n";
}

std::vector<std::vector<std::string>> link_rows(const RunSummary& summary) {
  std::vector<std::vector<std::string>> rows{{"link", "moved", "seconds", "hidden"}};
  for (const auto& link : summary.links) {
    std::string hidden = "-";
    if (link.hidden_seconds && link.seconds > 0) {
      hidden = cell("%.0f %%", 100 * *link.hidden_seconds / link.seconds);
    }
    rows.push_back({link.name, to_string(link.bytes), cell("%.2f", link.seconds), hidden});
  }
  return rows;
}

std::vector<std::vector<std::string>> drive_rows(const RunSummary& summary) {
  std::vector<std::vector<std::string>> rows{
      {"drive", "read", "seconds", "depth", "written", "seconds", "depth", "both ways"}};
  for (const auto& drive : summary.drives) {
    rows.push_back({one_line(drive.directory), to_string(drive.read),
                    cell("%.2f", drive.read_seconds), cell("%.1f", drive.read_depth),
                    to_string(drive.written), cell("%.2f", drive.write_seconds),
                    cell("%.1f", drive.write_depth), cell("%.2f", drive.both_seconds)});
  }
  return rows;
}

bool is_of_storage(const RunSummary::Link& link) {
  return link.name == "host to storage" || link.name == "storage to host";
}

}  // namespace

Utilisation to_utilisation(const RunSummary& summary) {
  Utilisation utilisation;
  utilisation.wall = nanoseconds(summary.wall_seconds);
  for (const auto& device : summary.devices) {
    utilisation.devices.push_back(
        {device.name, nanoseconds(device.busy_share * summary.wall_seconds),
         nanoseconds(device.transfer_wait_seconds), nanoseconds(device.unit_wait_seconds),
         nanoseconds(device.supply_wait_seconds), nanoseconds(device.idle_seconds), device.budget,
         device.peak});
  }
  for (const auto& link : summary.links) {
    if (is_of_storage(link) && !summary.drives.empty()) continue;  // the drives say more
    utilisation.links.push_back({link.name, link.bytes, nanoseconds(link.seconds)});
  }
  for (const auto& drive : summary.drives) {
    utilisation.drives.push_back(
        {drive.directory, drive.read, drive.written,
         nanoseconds(drive.read_seconds + drive.write_seconds - drive.both_seconds)});
  }
  utilisation.host = {summary.host_budget, summary.host_peak};
  utilisation.host_cache = {summary.host_cache_budget, summary.host_cache_peak};
  utilisation.storage = {summary.storage_budget, summary.storage_peak};
  utilisation.steps = 0;
  for (const auto& job : summary.jobs) {
    *utilisation.steps += static_cast<std::int64_t>(job.losses.size());
  }
  return utilisation;
}

std::string to_json(const RunSummary& summary) {
  Json json;
  json["identity"] = {{"threads_per_device", summary.identity.threads_per_device},
                      {"torch", summary.identity.torch},
                      {"cpu_kernels", summary.identity.cpu_kernels}};
  json["wall_seconds"] = summary.wall_seconds;
  json["jobs"] = Json::array();
  for (const auto& job : summary.jobs) json["jobs"].push_back(to_object(job));
  json["devices"] = Json::array();
  for (const auto& device : summary.devices) json["devices"].push_back(to_object(device));
  json["host"] = tier(summary.host_budget, summary.host_peak);
  if (summary.has_storage()) {
    json["host_cache"] = tier(summary.host_cache_budget, summary.host_cache_peak);
    json["storage"] = tier(summary.storage_budget, summary.storage_peak);
  }
  json["links"] = Json::array();
  for (const auto& link : summary.links) json["links"].push_back(to_object(link));
  if (summary.has_storage()) {
    json["drives"] = Json::array();
    for (const auto& drive : summary.drives) json["drives"].push_back(to_object(drive));
  }
  json["bottleneck"] = bottleneck(to_utilisation(summary));
  json["lost_outputs"] = summary.lost_outputs;
  // Names are the user's: bytes that are not UTF-8 are replaced, not fatal.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_summary_json(const RunSummary& summary, const std::string& path) {
  OutputFile(path).write(to_json(summary));
}

std::string to_table(const RunSummary& summary) {
  std::vector<std::vector<std::string>> jobs{
      {"model", "state", "first loss", "last loss", "tokens/s", "seconds"}};
  for (const auto& job : summary.jobs) {
    jobs.push_back({one_line(job.name), job.state,
                    job.losses.empty() ? "-" : cell("%.4f", job.losses.front()),
                    job.losses.empty() ? "-" : cell("%.4f", job.losses.back()),
                    cell("%.0f", job.tokens_per_second), cell("%.1f", job.seconds)});
  }
  std::string text = aligned(jobs);
  for (const auto& job : summary.jobs) {
    if (!job.reason.empty()) {
      text += one_line(job.name) + ": " + one_line(job.reason) + "\n";
    }
  }
  for (const std::string& lost : summary.lost_outputs) text += one_line(lost) + "\n";
  text += "\n" + aligned(memory_rows(summary)) + "\n" + aligned(link_rows(summary));
  if (!summary.drives.empty()) text += "\n" + aligned(drive_rows(summary));
  return text + "\n" + identity_line(summary.identity) +
         "bottleneck: " + one_line(bottleneck(to_utilisation(summary))) + "\n";
}

}  // namespace hydra
