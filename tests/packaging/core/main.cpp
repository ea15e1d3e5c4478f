// A user of the core: reaches into each of its folders, so that a library missing at link shows.

#include <cstdio>
#include <memory>

#include "hydra/core/bytes.h"
#include "hydra/core/log.h"
#include "hydra/device/virtual_device.h"
#include "hydra/io/block_io.h"
#include "hydra/memory/host_arena.h"
#include "hydra/schedule/policy.h"

int main() {
  const hydra::Bytes budget = hydra::parse_bytes("1MiB");
  hydra::VirtualDevice device({.name = "cpu0", .memory = budget});
  hydra::HostArena arena(budget);
  const auto policy = hydra::make_sharded_lrtf_policy();
  // Chosen at run time among all kinds, so that io_uring's library is linked.
  hydra::NullLogSink log;
  std::FILE* file = std::tmpfile();
  if (file == nullptr) return 1;
  const auto io = hydra::make_block_io(hydra::BlockIoKind::kAutomatic, fileno(file), 1, log);
  std::printf("%s of %s\n", device.name().c_str(), hydra::to_string(device.budget()).c_str());
  device.close();
  return policy != nullptr && io != nullptr && device.budget() == budget ? 0 : 1;
}
