#pragma once

namespace hydra {

/// Releases what a backward pass that failed on this thread has left with autograd's queue, where
/// it would stay until the next one ends. Call it once the exception's unwinding is done.
void release_autograd_queue();

}  // namespace hydra
