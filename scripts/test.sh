#!/usr/bin/env bash
# Sets up, builds, and runs every test that needs no GPU: the core under sanitizers, then everything.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh

failed=()
stage() {
  local preset=$1
  echo "test: $preset"
  cmake --preset "$preset" > /dev/null
  cmake --build --preset "$preset" || { failed+=("$preset (build)"); return 0; }
  ctest --preset "$preset" -LE long || failed+=("$preset")
}

stage no-torch-asan
stage no-torch-tsan
stage dev
if [ ${#failed[@]} -gt 0 ]; then
  echo "test: failed in: ${failed[*]}" >&2
  exit 1
fi
