#!/usr/bin/env bash
# A process whose runtime dies with its static objects ends well, every time.
set -euo pipefail
for _ in $(seq 10); do
  timeout 60 "$1"
  timeout 60 "$1" exit
  timeout 60 "$1" thread
done
