#!/usr/bin/env bash
# Sets up, builds, and trains a small base model and four fine-tunes of it at once on real text.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh

echo "quickstart: building (the first time takes some minutes)"
cmake --preset release > /dev/null
cmake --build --preset release --target gpt2_finetune

mkdir -p build/quickstart
text=build/quickstart/text.txt
if [ ! -s "$text" ]; then
  bible -f 'gen1:1-rev22:21' < /dev/null > "$text.part"
  mv "$text.part" "$text"
fi

# The run itself; further options given to this script are handed on to it.
echo "quickstart: training on $(wc -c < "$text") bytes of the King James Bible"
build/release/examples/gpt2_finetune --text "$text" \
  --layers 6 --width 192 --heads 6 --context 128 --batch-size 8 --micro-batch-size 2 \
  --devices cpu,cpu --device-memory 16MiB \
  --base-steps 60 --steps 30 --warmup-steps 5 --learning-rate 1e-4,3e-4,1e-3,3e-3 \
  --json build/quickstart/summary.json "$@"
