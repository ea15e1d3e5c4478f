#include <cstdio>
#include <nlohmann/json.hpp>

#include "offload.h"

namespace bench {
namespace {

double per_step(const OffloadReport& report, double total) {
  return total / static_cast<double>(report.measured_steps);
}

double median_of(const OffloadReport& report, double OffloadPair::*side) {
  std::vector<double> values;
  for (const OffloadPair& pair : report.pairs) values.push_back(pair.*side);
  return estimate_ratio(std::move(values)).median;
}

double overlap(const OffloadReport& report) {
  const WindowFigures& figures = report.figures;
  return figures.copy_seconds > 0 ? figures.hidden_copy_seconds / figures.copy_seconds : 1;
}

double busy_share(const OffloadReport& report) {
  double hydra_seconds = 0;
  for (const OffloadPair& pair : report.pairs) hydra_seconds += pair.hydra_seconds;
  return per_step(report, report.figures.unit_seconds) /
         (hydra_seconds / static_cast<double>(report.pairs.size()));
}

template <typename... Values>
std::string line(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return std::string(text) + "\n";
}

std::string ratio_line(const char* name, const RatioEstimate& ratio) {
  return line("%-34s %.3f  [%.3f, %.3f] at %.1f %%%s", name, ratio.median, ratio.low, ratio.high,
              100 * ratio.confidence,
              ratio.high - ratio.low > 0.05 * ratio.median
                  ? "  (wider than 5 %: measure again on a quieter machine)"
                  : "");
}

nlohmann::json ratio_json(const RatioEstimate& ratio) {
  return {{"median", ratio.median},
          {"low", ratio.low},
          {"high", ratio.high},
          {"confidence", ratio.confidence}};
}

}  // namespace

std::string to_text(const OffloadReport& report) {
  const double tokens = static_cast<double>(report.tokens_per_step);
  const double torch = median_of(report, &OffloadPair::torch_seconds);
  const double hydra = median_of(report, &OffloadPair::hydra_seconds);
  std::string text;
  text += line("%s parameters, %d Torch threads, %lld tokens per step, %zu pairs",
               to_string(report.parameters).c_str(), report.threads,
               static_cast<long long>(report.tokens_per_step), report.pairs.size());
  text += line("plain loop in memory: peak %s, %.3f s per step, %.0f tokens/s",
               to_string(report.plain_peak).c_str(), torch, tokens / torch);
  text += line("hydra: device %s (peak %s, predicted %s), %lld shards, %lld recomputed",
               to_string(report.device_budget).c_str(), to_string(report.device_peak).c_str(),
               to_string(report.predicted_peak).c_str(), static_cast<long long>(report.shards),
               static_cast<long long>(report.recomputed_shards));
  text += line("       host peak %s; the process held %s for both by the system's count",
               to_string(report.host_peak).c_str(), to_string(report.process_peak).c_str());
  text += line("       %.3f s per step, %.0f tokens/s, device busy %.1f %%", hydra, tokens / hydra,
               100 * busy_share(report));
  text += ratio_line("ratio (recomputation counted)", report.ratio());
  text += ratio_line("ratio without recomputation", report.ratio_without_recomputation());
  text += line("copies hidden behind computation   %.1f %%", 100 * overlap(report));
  for (const auto& [track, link] : report.figures.links) {
    const double bytes = static_cast<double>(link.bytes.count());
    text += line("%-14s %.1f MiB per step, %.1f GB/s while busy", track.c_str(),
                 per_step(report, bytes) / (1 << 20), bytes / link.seconds / 1e9);
  }
  text += line("first losses differ by %.1e", report.first_loss_difference);
  return text;
}

std::string to_json(const OffloadReport& report) {
  nlohmann::json json;
  json["threads"] = report.threads;
  json["parameter_bytes"] = report.parameters.count();
  json["plain_peak_bytes"] = report.plain_peak.count();
  json["device_budget_bytes"] = report.device_budget.count();
  json["device_peak_bytes"] = report.device_peak.count();
  json["predicted_peak_bytes"] = report.predicted_peak.count();
  json["host_peak_bytes"] = report.host_peak.count();
  json["process_peak_bytes"] = report.process_peak.count();
  json["shards"] = report.shards;
  json["recomputed_shards"] = report.recomputed_shards;
  json["tokens_per_step"] = report.tokens_per_step;
  json["measured_steps"] = report.measured_steps;
  json["ratio"] = ratio_json(report.ratio());
  json["ratio_without_recomputation"] = ratio_json(report.ratio_without_recomputation());
  json["overlap"] = overlap(report);
  json["busy_share"] = busy_share(report);
  json["first_loss_difference"] = report.first_loss_difference;
  json["pairs"] = nlohmann::json::array();
  for (const OffloadPair& pair : report.pairs) {
    json["pairs"].push_back({{"plain_seconds_per_step", pair.torch_seconds},
                             {"hydra_seconds_per_step", pair.hydra_seconds},
                             {"recomputation_seconds_per_step", pair.recomputation_seconds}});
  }
  json["links"] = nlohmann::json::array();
  for (const auto& [track, link] : report.figures.links) {
    json["links"].push_back(
        {{"name", track},
         {"bytes_per_step", per_step(report, static_cast<double>(link.bytes.count()))},
         {"seconds_per_step", per_step(report, link.seconds)}});
  }
  return json.dump(2) + "\n";
}

}  // namespace bench
