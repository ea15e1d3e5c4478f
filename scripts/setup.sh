#!/usr/bin/env bash
# Installs what Hydra needs to build: Debian packages, and the pinned LibTorch into .deps/.
# Does nothing twice; honours packages and a LibTorch (HYDRA_TORCH_DIR, CMAKE_PREFIX_PATH) that are there.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build ccache libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev libspdlog-dev
          nlohmann-json3-dev liburing-dev python3 python3-pip unzip ca-certificates bible-kjv
          clang-14 clang-format-14 clang-tidy-14 doxygen python3-venv)
torch_version=$(sed -n 's/^torch==\([^ ]*\) .*/\1/p' scripts/torch_requirements.txt)
torch_stamp=.deps/torch_requirements.txt  # what .deps/torch was made from

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

missing_packages() {
  local package
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" ||
      echo "$package"
  done
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -gt 0 ] || { say "all Debian packages are there"; return; }
  command -v apt-get > /dev/null || fail "no apt-get here: install by hand ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo > /dev/null ||
      fail "missing packages: ${missing[*]}. Run this as root, or install sudo."
    sudo true || fail "missing packages: ${missing[*]}. sudo did not allow installing them."
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq || fail "apt-get update failed: is the network there?"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends "${missing[@]}" > /dev/null ||
    fail "apt-get could not install ${missing[*]}: is the network there?"
}

# Prints the LibTorch in CMAKE_PREFIX_PATH, as cmake/HydraTorch.cmake finds it.
prefix_torch() {
  local prefixes=() prefix root
  IFS=: read -r -a prefixes <<< "${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    [ -n "$prefix" ] || continue
    for root in "$prefix" "$prefix"/{torch,libtorch} "$prefix"/lib/python3.*/site-packages/torch; do
      [ ! -e "$root/lib/libtorch_cpu.so" ] || { echo "$root"; return; }
    done
  done
}

# .deps/torch is there and is the pinned one; one without a stamp is known by its own version.
has_pinned_torch() {
  [ -e .deps/torch/lib/libtorch_cpu.so ] || return 1
  [ -e "$torch_stamp" ] ||
    ! grep -q "^__version__ = '$torch_version\b" .deps/torch/version.py 2>/dev/null ||
    cp scripts/torch_requirements.txt "$torch_stamp"
  cmp -s scripts/torch_requirements.txt "$torch_stamp"
}

install_torch() {
  # The order of cmake/HydraTorch.cmake: what is found here is what is built with.
  if [ -n "${HYDRA_TORCH_DIR:-}" ]; then
    [ -e "$HYDRA_TORCH_DIR/lib/libtorch_cpu.so" ] ||
      fail "HYDRA_TORCH_DIR=$HYDRA_TORCH_DIR holds no lib/libtorch_cpu.so"
    say "using the LibTorch in $HYDRA_TORCH_DIR"
    return
  fi
  ! has_pinned_torch || { say "LibTorch $torch_version is there"; return; }
  if [ ! -e .deps/torch ]; then
    local found
    found=$(prefix_torch)
    [ -z "$found" ] || { say "using the LibTorch in $found"; return; }
  fi
  [ "$(uname -m)" = x86_64 ] ||
    fail "this machine is $(uname -m), the pinned LibTorch is for x86_64: name another in HYDRA_TORCH_DIR"

  mkdir -p .deps || fail "cannot write to $PWD/.deps"
  work=$(mktemp -d .deps/incoming.XXXXXX) || fail "cannot write to $PWD/.deps"
  # Not local: the trap runs when this function has returned.
  trap 'rm -rf "$work"' EXIT
  say "fetching LibTorch $torch_version (530 MB) into .deps/"
  local python=/usr/bin/python3
  "$python" -m pip --version > /dev/null 2>&1 || python=python3
  "$python" -m pip --version > /dev/null 2>&1 || fail "no python3 with pip here"
  "$python" -m pip download --quiet --no-deps --require-hashes --only-binary=:all: \
    --python-version 3.11 --implementation cp --abi cp311 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    -r scripts/torch_requirements.txt -d "$work" ||
    fail "pip could not fetch LibTorch, or its hash was wrong: is the network there?"
  local wheel
  for wheel in "$work"/*.whl; do
    unzip -q -o "$wheel" -d "$work/unpacked" || fail "cannot unpack LibTorch: is the disk full?"
    rm "$wheel"
  done
  rm -rf .deps/nvidia .deps/torch "$torch_stamp"
  mv "$work/unpacked/nvidia" .deps/nvidia
  mv "$work/unpacked/torch" .deps/torch
  cp scripts/torch_requirements.txt "$torch_stamp"
  say "LibTorch $torch_version is in .deps/torch"
}

install_packages
install_torch
