#include <array>
#include <cstdio>
#include <string>

#include "hydra/model/plan.h"

namespace hydra {
namespace {

template <typename... Arguments>
std::string line(const char* format, Arguments... arguments) {
  std::array<char, 512> text{};
  std::snprintf(text.data(), text.size(), format, arguments...);
  std::string trimmed(text.data());
  trimmed.erase(trimmed.find_last_not_of(' ') + 1);
  return trimmed + "\n";
}

const char* what_backward_does(const ShardPlan& shard) {
  if (shard.recompute) return "recomputed in backward";
  return shard.backward > Nanoseconds(0) ? "graph kept" : "frozen, no backward";
}

std::string layer_range(const ShardPlan& shard, const std::vector<std::string>& names) {
  const std::string first = names.at(static_cast<std::size_t>(shard.first_layer));
  const std::string last = names.at(static_cast<std::size_t>(shard.end_layer - 1));
  return first == last ? first : first + " .. " + last;
}

}  // namespace

std::string Plan::to_text(const std::vector<std::string>& layer_names) const {
  std::string text = line("  %-5s %-28s %12s %12s %12s %12s %10s  %s", "shard", "layers",
                          "parameters", "gradients", "forward", "backward", "time", "");
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const ShardPlan& shard = shards[s];
    text += line("  %-5zu %-28s %12s %12s %12s %12s %8.1fms  %s", s,
                 layer_range(shard, layer_names).c_str(), to_string(shard.parts()).c_str(),
                 to_string(shard.gradients).c_str(), to_string(shard.forward_required).c_str(),
                 to_string(shard.backward_required).c_str(),
                 1e3 * seconds(shard.forward + shard.backward), what_backward_does(shard));
  }
  text += line("  device: %s required at most, %s with prefetch and drain, budget %s",
               to_string(predicted_peak).c_str(), to_string(desired).c_str(),
               to_string(device_budget).c_str());
  text +=
      line(fits_device ? "  why:    with its optimizer state the model takes %s: it stays there"
                       : "  why:    with its optimizer state in one shard the model would take %s",
           to_string(resident_bytes).c_str());
  text += line("  host:   %s state, %s per step in flight", to_string(host_state).c_str(),
               to_string(host_step).c_str());
  if (storage > Bytes(0)) {
    text += line("  storage: %s parameters and moments, at least %s of host cache over them",
                 to_string(storage).c_str(), to_string(host_cache).c_str());
  }
  text += line("  step:   %.1f ms predicted in %lld micro-batches, of which %.1f ms recomputation",
               1e3 * seconds(predicted_step), static_cast<long long>(micro_batches),
               1e3 * seconds(recomputation));
  return text;
}

}  // namespace hydra
