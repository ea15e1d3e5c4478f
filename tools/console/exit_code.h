#pragma once

namespace console {

/// What programs end with. After a signal that asked them to stop: 128 and its number.
enum ExitCode : int {
  kDone = 0,
  kJobFailed = 1,    ///< a job failed, or was refused while others ran
  kRefused = 2,      ///< the command line, or an input, before anything started
  kOutputLost = 3,   ///< all jobs ended well, and something that was asked for is not written
  kSignalled = 128,  ///< added to the signal's number
};

}  // namespace console
