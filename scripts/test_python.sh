#!/usr/bin/env bash
# Compares formats with the Python packages that define them, in a virtual environment under build/.
# Exits with 77 (skipped) where that environment cannot be made, for want of PyPI or of python3-venv, but
# with 1 where CI=true. The test python_comparisons of the preset dev runs it.
# HYDRA_PROBE names a format_probe that is built already, with report_probe beside it; otherwise both are built with the
# preset dev.
set -euo pipefail
cd "$(dirname "$0")/.."

# The versions that the code was written against; a change of theirs is to be seen, not to surprise.
packages=(tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6 huggingface_hub==2.4.0 tensorboard==2.21.0)
shared=${HYDRA_SHARED_DATA:-$PWD/../shared/data}  # compared where it is there
environment=build/python
stamp=$environment/packages.txt

skip() {
  [ "${CI:-}" != true ] || { echo "test_python: failed, since CI=true: $*" >&2; exit 1; }
  echo "test_python: SKIPPED: $*"
  exit 77
}

make_environment() {
  [ "$(cat "$stamp" 2>/dev/null)" != "${packages[*]}" ] || return 0
  rm -rf "$environment"
  mkdir -p build
  python3 -m venv "$environment" > /dev/null 2>&1 || skip "python3 -m venv makes no environment here"
  "$environment/bin/pip" install --quiet --disable-pip-version-check --retries 3 "${packages[@]}" ||
    skip "pip could not install ${packages[*]}: is PyPI there?"
  echo "${packages[*]}" > "$stamp"
}

make_probe() {
  probe=${HYDRA_PROBE:-}
  [ -z "$probe" ] || return 0
  cmake --preset dev > /dev/null
  cmake --build --preset dev --target format_probe report_probe
  probe=build/dev/tests/python/format_probe
}

make_environment
make_probe
failed=()
for comparison in tests/python/compare_*.py; do
  echo "test_python: $comparison"
  "$environment/bin/python" -B "$comparison" "$(realpath "$probe")" "$shared" ||
    failed+=("$comparison")
done
[ ${#failed[@]} -eq 0 ] || { echo "test_python: failed: ${failed[*]}" >&2; exit 1; }
echo "test_python: all comparisons agree"
