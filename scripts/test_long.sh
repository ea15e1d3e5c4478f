#!/usr/bin/env bash
# The full seed sweeps, and the engine under address, undefined-behaviour and thread sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh

failed=()
# stage PRESET CTEST_OPTIONS...: configures, builds and tests; a failure is remembered and the next
# stage goes on.
stage() {
  local preset=$1
  shift
  echo "test_long: $preset"
  cmake --preset "$preset" > /dev/null || { failed+=("$preset (configure)"); return 0; }
  cmake --build --preset "$preset" || { failed+=("$preset (build)"); return 0; }
  ctest --preset "$preset" "$@" || failed+=("$preset")
}

stage dev
# One Torch thread per device: OpenMP's own synchronisation is invisible to the thread sanitizer.
export OMP_NUM_THREADS=1
stage asan -LE long
stage tsan -LE long
if [ ${#failed[@]} -gt 0 ]; then
  echo "test_long: failed in: ${failed[*]}" >&2
  exit 1
fi
