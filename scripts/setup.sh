#!/usr/bin/env bash
# Installs what Hydra needs to build: Debian packages, and the pinned LibTorch into .deps/.
# Does nothing twice; honours packages and a LibTorch (HYDRA_TORCH_DIR, CMAKE_PREFIX_PATH) that are there.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build ccache libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev
          nlohmann-json3-dev python3 python3-pip unzip ca-certificates bible-kjv)

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
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "missing packages: ${missing[*]}. Run this as root, or install sudo."
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq || fail "apt-get update failed: is the network there?"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends "${missing[@]}" > /dev/null ||
    fail "apt-get could not install ${missing[*]}: is the network there?"
}

has_torch() {
  local root
  for root in "${HYDRA_TORCH_DIR:-}" .deps/torch; do
    [ -n "$root" ] && [ -e "$root/lib/libtorch_cpu.so" ] && return 0
  done
  [ -n "${CMAKE_PREFIX_PATH:-}" ] || return 1
  local prefix
  IFS=: read -r -a prefixes <<< "$CMAKE_PREFIX_PATH"
  for prefix in "${prefixes[@]}"; do
    for root in "$prefix" "$prefix/torch" "$prefix/libtorch"; do
      [ -e "$root/lib/libtorch_cpu.so" ] && return 0
    done
  done
  return 1
}

install_torch() {
  has_torch && { say "LibTorch is there"; return; }
  mkdir -p .deps
  work=$(mktemp -d .deps/incoming.XXXXXX)
  # Not local: the trap runs when this function has returned.
  trap 'rm -rf "$work"' EXIT
  say "fetching LibTorch 2.11.0 (530 MB) into .deps/"
  local python=/usr/bin/python3
  "$python" -m pip --version > /dev/null 2>&1 || python=python3
  "$python" -m pip download --quiet --no-deps --require-hashes --only-binary=:all: \
    --python-version 3.11 --implementation cp --abi cp311 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    -r scripts/torch_requirements.txt -d "$work" ||
    fail "pip could not fetch LibTorch, or its hash was wrong: is the network there?"
  local wheel
  for wheel in "$work"/*.whl; do unzip -q -o "$wheel" -d "$work/unpacked"; done
  rm -rf .deps/nvidia .deps/torch
  mv "$work/unpacked/nvidia" .deps/nvidia
  mv "$work/unpacked/torch" .deps/torch
  say "LibTorch 2.11.0 is in .deps/torch"
}

[ "$(uname -m)" = x86_64 ] || fail "this machine is $(uname -m); the pinned LibTorch is for x86_64"
install_packages
install_torch
