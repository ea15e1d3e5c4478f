#!/usr/bin/env bash
# The whole comparison on a tiny model: it runs, its report is whole, and a run without offload is
# refused.
set -euo pipefail
bench=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

tiny=(--layers 4 --width 32 --heads 2 --vocabulary 512 --context 32 --batch-size 4 --pairs 2
      --steps 1 --threads 1)
"$bench" offload "${tiny[@]}" --dropout 0 --json "$dir/report.json"
python3 - "$dir/report.json" <<'PYTHON'
import json, sys
report = json.load(open(sys.argv[1]))
assert len(report["pairs"]) == 2, report
assert 0 < report["ratio"]["low"] <= report["ratio"]["median"] <= report["ratio"]["high"], report
assert report["ratio_without_recomputation"]["median"] > report["ratio"]["median"], report
assert 0 < report["overlap"] <= 1 and 0 < report["busy_share"] <= 1.001, report
assert report["device_peak_bytes"] <= report["device_budget_bytes"], report
counted = report["device_budget_bytes"] + report["host_peak_bytes"]
assert 0 < report["process_peak_bytes"] < counted + (96 << 20), report
assert report["recomputed_shards"] > 0 and len(report["links"]) == 2, report
assert report["first_loss_difference"] < 1e-5, report
PYTHON

if "$bench" offload "${tiny[@]}" --device-memory 1GiB 2> "$dir/error"; then
  echo "a model that fits its device passed for an offload" >&2
  exit 1
fi
grep -q "lower --device-memory" "$dir/error"
