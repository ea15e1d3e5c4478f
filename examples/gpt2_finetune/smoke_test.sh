#!/usr/bin/env bash
# Runs the example on a small text and checks what it writes. Argument: the program.
set -euo pipefail
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for i in $(seq 400); do echo "line $i: the quick brown fox jumps over the lazy dog"; done > "$work/text.txt"

common=(--text "$work/text.txt" --layers 2 --width 32 --heads 2 --context 32 --batch-size 4
        --micro-batch-size 2 --learning-rate 1e-3,3e-3 --steps 3 --threads 1)
"$program" "${common[@]}" --device-memory 400KiB --base-steps 3 --quiet --json "$work/two.json" \
  --trace "$work/trace.json" --metrics "$work/metrics.jsonl" --tensorboard "$work/events"
"$program" "${common[@]}" --device-memory 64MiB --devices cpu --base-steps 3 --quiet \
  --json "$work/one.json"
"$program" "${common[@]}" --device-memory 400KiB --base-steps 3 --quiet --json "$work/stored.json" \
  --storage "$work" --storage-size 2MiB --host-memory 32MiB --host-cache 300KiB
"$program" "${common[@]}" --device-memory 400KiB --plan | grep -q "required at most"
if "$program" "${common[@]}" --device-memory 1KiB --plan 2> "$work/error.txt"; then
  echo "a device of 1 KiB was not refused" >&2
  exit 1
fi
grep -q "raise the device's memory" "$work/error.txt"

python3 - "$work" <<'PYTHON'
import json, pathlib, sys
work = pathlib.Path(sys.argv[1])
two, one, stored, trace = (json.loads((work / f"{name}.json").read_text())
                           for name in ("two", "one", "stored", "trace"))
assert [job["state"] for job in two["jobs"]] == ["completed"] * 3, two["jobs"]
assert all(len(job["losses"]) == 3 for job in two["jobs"])
assert all(d["peak_bytes"] <= d["budget_bytes"] for d in two["devices"])
# Another number of devices with another budget and other cuts, or storage: the same bits.
fingerprints = [[job["parameters_sha256"] for job in run["jobs"]] for run in (two, one, stored)]
assert fingerprints[0] == fingerprints[1] == fingerprints[2], fingerprints
links = {link["name"]: link["bytes"] for link in stored["links"]}
assert links["host to storage"] > 0 and links["storage to host"] > 0, links
assert 0 < stored["storage"]["peak_bytes"] <= stored["storage"]["budget_bytes"] == 2 << 20
assert 0 < stored["host_cache"]["peak_bytes"] <= stored["host_cache"]["budget_bytes"]
names = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
assert {"cpu0 compute", "cpu0 upload", "host updates", "cpu0 memory", "host memory"} <= names, names
flows = [{e["id"] for e in trace["traceEvents"] if e["ph"] == phase} for phase in "sf"]
assert flows[1] and flows[1] <= flows[0], "an arrow ends where none began"
lines = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
for job in two["jobs"]:
    assert [line["loss"] for line in lines if line["job"] == job["name"]] == job["losses"], job["name"]
assert len(list((work / "events").rglob("events.out.tfevents.*"))) == 3
PYTHON
echo "the example's outputs are as documented"
