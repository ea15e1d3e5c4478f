#!/usr/bin/env bash
# The full seed sweeps, and the engine under address, undefined-behaviour and thread sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh

failed=()
# stage PRESET: configures, builds and tests; a failure is remembered and the next stage goes on.
stage() {
  local preset=$1
  echo "test_long: $preset"
  cmake --preset "$preset" > /dev/null || { failed+=("$preset (configure)"); return 0; }
  cmake --build --preset "$preset" || { failed+=("$preset (build)"); return 0; }
  ctest --preset "$preset" --timeout 7200 || failed+=("$preset")
}

export HYDRA_LONG=1
stage dev
unset HYDRA_LONG
export OMP_NUM_THREADS=1
stage asan
stage tsan
if [ ${#failed[@]} -gt 0 ]; then
  echo "test_long: failed in: ${failed[*]}" >&2
  exit 1
fi
