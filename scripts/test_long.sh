#!/usr/bin/env bash
# The full seed sweeps, and the engine under address, undefined-behaviour and thread sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh

failed=()
stage() {
  local preset=$1
  shift
  echo "test_long: $preset $*"
  cmake --preset "$preset" > /dev/null
  cmake --build --preset "$preset" || { failed+=("$preset (build)"); return 0; }
  ctest --preset "$preset" --timeout 7200 "$@" || failed+=("$preset")
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
