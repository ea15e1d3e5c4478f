#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hydra/core/bytes.h"
#include "hydra/report/utilisation.h"

namespace hydra {

/// The outcome of a run as plain values; written by `write_summary_json`.
struct RunSummary {
  struct Job {
    std::string name;
    std::string state;   ///< "completed", "stopped", "failed", "cancelled", "running", "queued"
    std::string reason;  ///< of a failure, or what a queued job waits for; else empty
    std::vector<double> losses;
    std::vector<double> learning_rates;
    double tokens_per_second = 0;
    double seconds = 0;
    std::string parameters_sha256;
  };
  struct Device {
    std::string name;
    Bytes budget;
    Bytes peak;
    double busy_share = 0;  ///< of the wall time
    /// The rest of the wall time; see Utilisation::Device. All 0 where it was not measured.
    double transfer_wait_seconds = 0;
    double unit_wait_seconds = 0;
    double supply_wait_seconds = 0;
    double idle_seconds = 0;
  };
  struct Link {
    std::string name;  ///< "host to cpu0", "cpu0 to host", "host to storage", "storage to host"
    Bytes bytes;
    double seconds = 0;
    /// Of `seconds`, beside a computation of the link's device; nothing where it is not measured.
    std::optional<double> hidden_seconds{};
  };
  /// One drive of the storage tier.
  struct Drive {
    std::string directory;
    Bytes read;
    Bytes written;
    double read_seconds = 0;   ///< with a read in flight
    double write_seconds = 0;  ///< with a write in flight
    double both_seconds = 0;   ///< with both
    double read_depth = 0;     ///< reads in flight, on average over `read_seconds`
    double write_depth = 0;
  };

  /// What the bits of a result depend on beside the jobs' own definitions and the kind of CPU.
  struct Identity {
    int threads_per_device = 0;  ///< Torch threads; 0: not known
    std::string torch;           ///< version of the LibTorch that ran
    std::string cpu_kernels;     ///< instruction set of its kernels: "AVX2", "AVX512", "DEFAULT"
  };

  Identity identity;
  double wall_seconds = 0;
  std::vector<Job> jobs;
  std::vector<Device> devices;
  Bytes host_budget;
  Bytes host_peak;
  /// The storage tier, and the host's cache over it, which is not part of the host's budget above.
  /// All 0 where there is none.
  Bytes host_cache_budget;
  Bytes host_cache_peak;
  Bytes storage_budget;
  Bytes storage_peak;
  std::vector<Link> links;
  std::vector<Drive> drives;
  /// What is missing in files that were written beside the training; known once the runtime is
  /// closed.
  std::vector<std::string> lost_outputs;

  bool has_storage() const { return storage_budget > Bytes(0); }
};

/// Returns what the summary says of devices, links, drives and the host tier.
Utilisation to_utilisation(const RunSummary& summary);
/// Returns the summary as the JSON object that docs/formats/summary.md describes.
std::string to_json(const RunSummary& summary);
/// Writes `to_json` to a file. Errors: SystemError with path and cause.
void write_summary_json(const RunSummary& summary, const std::string& path);
/// Returns an aligned text table: a line per job, then devices, host, links and drives, and in
/// the last line the bottleneck.
std::string to_table(const RunSummary& summary);

}  // namespace hydra
