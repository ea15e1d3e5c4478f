#pragma once

namespace hydra {

/// Puts Hydra's allocator under ATen's CPU allocations: while a task of a virtual device runs on a
/// thread, what ATen allocates there comes out of that device's budget; everything else goes to the
/// allocator that was there before.
///
/// The only process-wide state of the library: installed once, never removed. Thread safety:
/// thread-safe, idempotent.
void install_cpu_allocator_shim();

}  // namespace hydra
