#pragma once

namespace console {

// Signals belong to the process, so these are functions, for a program's main alone.

/// From now on the first SIGINT, SIGTERM or SIGHUP is only noted, and the second one ends the
/// process as if nobody had listened. SIGPIPE is ignored: a reader that has gone is a failed write.
/// What was ignored already stays so (nohup). Call before threads start.
void note_stop_signals();

/// Returns the number of the signal that was noted; 0: none. Thread safety: thread-safe.
int stop_signal();

}  // namespace console
