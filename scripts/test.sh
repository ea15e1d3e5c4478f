#!/usr/bin/env bash
# Sets up, builds, and runs every test that needs no GPU: the core under sanitizers, then everything.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh

results=()
failed=()
# stage PRESET: configures, builds and tests; a failure is remembered and the next stage goes on.
stage() {
  local preset=$1 log=build/$1/ctest.log
  echo "test: $preset"
  local undone="configure"
  cmake --preset "$preset" > /dev/null && undone="build" && cmake --build --preset "$preset" &&
    undone=""
  [ ${#results[@]} -eq 0 ] || printf 'test: %s\n' "${results[@]}"
  if [ -n "$undone" ]; then
    failed+=("$preset ($undone)")
    results+=("$preset: $undone failed")
    return 0
  fi
  ctest --preset "$preset" -LE long 2>&1 | tee "$log" || failed+=("$preset")
  results+=("$preset: $(grep -m 1 '% tests passed' "$log" || echo 'no tests ran')")
}

stage no-torch-asan
stage no-torch-tsan
stage dev  # last, so that its summary ends the output
if [ ${#failed[@]} -gt 0 ]; then
  echo "test: failed in: ${failed[*]}" >&2
  exit 1
fi
