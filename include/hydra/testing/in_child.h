#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace hydra::testing {

/// Runs `body` in a child and returns its exit status, or 100 + the signal that ended it: what it
/// changes of the process is gone then. By our custom 77 means that the machine does not allow the
/// set-up.
template <typename Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

}  // namespace hydra::testing
