#!/usr/bin/env python3
"""Holds event files to TensorBoard: its own writer's bytes, and what its readers make of them.

Usage: compare_tensorboard.py PROBE, beside which report_probe lies
"""

import io
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader, RawEventFileLoader
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.proto import event_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

PROBE = pathlib.Path(sys.argv[1]).with_name("report_probe")
NAMES = ["gpt2 rate 0.001", "team/a", "team_a", "../up", "größe 模型 \U0001F600", "x" * 255, "模" * 255, ".", "a\n\tb", "-v"]
TAGS = ["loss", "train/learning rate", "größe/\U0001F600", "t" * 300, "tokens per second"]


def as_float(value):
    """The float nearest to a double; beyond its range infinite."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def random_scalars(generator, names, count):
    values = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-300, 2.0**24 + 1]
    scalars = []
    for step in range(count):
        for name in names:
            value = generator.choice(values) if generator.random() < 0.2 else generator.gauss(0, 10)
            scalars.append({"run": name, "tag": generator.choice(TAGS), "step": step,
                            "value": value, "wall_time": 1.7e9 + step + generator.random()})
    return scalars


def write(folder, scalars):
    """Returns the file of each run."""
    lines = "".join(json.dumps({**s, "value": repr(s["value"]), "wall_time": repr(s["wall_time"])}) + "\n"
                    for s in scalars)
    out = subprocess.run([PROBE, "events", folder], input=lines, text=True, capture_output=True, check=True).stdout
    runs = list(dict.fromkeys(s["run"] for s in scalars))
    return dict(zip(runs, map(pathlib.Path, out.splitlines()), strict=True))


def event_of(scalar):
    event = event_pb2.Event(wall_time=scalar["wall_time"], step=scalar["step"])
    event.summary.value.add(tag=scalar["tag"], simple_value=as_float(scalar["value"]))
    return event


def compare_bytes(path, scalars):
    """The file is what TensorBoard's own writer makes of the same events."""
    raw = [event_pb2.Event.FromString(record) for record in RawEventFileLoader(str(path)).Load()]
    if len(raw) != len(scalars) + 1:
        raise SystemExit(f"compare_tensorboard: TensorBoard finds {len(raw)} whole records in {path}")
    first = event_pb2.Event(wall_time=raw[0].wall_time, file_version="brain.Event:2")
    theirs = io.BytesIO()
    writer = RecordWriter(theirs)
    for event in [first, *map(event_of, scalars)]:
        writer.write(event.SerializeToString(deterministic=True))
    if path.read_bytes() != theirs.getvalue():
        raise SystemExit(f"compare_tensorboard: {path} differs from what TensorBoard writes")


def compare_reading(path, scalars):
    """The loader, which checks every checksum, gives every value back."""
    events = [e for e in EventFileLoader(str(path)).Load() if e.summary.value]
    if len(events) != len(scalars):
        raise SystemExit(f"compare_tensorboard: {path} holds {len(events)} scalars of {len(scalars)}")
    for event, scalar in zip(events, scalars):
        (value,) = event.summary.value
        found = value.tensor.float_val[0]
        if (event.step, event.wall_time, value.tag) != (scalar["step"], scalar["wall_time"], scalar["tag"]) \
                or not same(found, as_float(scalar["value"])):
            raise SystemExit(f"compare_tensorboard: {scalar} was read as {event}")


def compare_runs(folder, files, scalars):
    """A folder of jobs is a folder of runs, each with its series."""
    runs = EventMultiplexer(tensor_size_guidance={"scalars": 0})  # 0: all of them
    runs.AddRunsFromDirectory(str(folder)).Reload()
    if set(runs.Runs()) != {p.parent.name for p in files.values()} or len(runs.Runs()) != len(files):
        raise SystemExit(f"compare_tensorboard: TensorBoard sees the runs {list(runs.Runs())}")
    for name, path in files.items():
        for tag in {s["tag"] for s in scalars if s["run"] == name}:
            ours = [s for s in scalars if (s["run"], s["tag"]) == (name, tag)]
            theirs = runs.Tensors(path.parent.name, tag)
            if [t.step for t in theirs] != [s["step"] for s in ours]:
                raise SystemExit(f"compare_tensorboard: {name!r} {tag!r} has the steps {[t.step for t in theirs]}")
            plugin = runs.SummaryMetadata(path.parent.name, tag).plugin_data.plugin_name
            if plugin != "scalars":
                raise SystemExit(f"compare_tensorboard: {tag!r} is shown by the plugin {plugin!r}")


def main():
    generator = random.Random(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / "logs"
        scalars = random_scalars(generator, NAMES, 60)
        files = write(folder, scalars)
        if any(path.parent.parent != folder for path in files.values()):
            raise SystemExit(f"compare_tensorboard: files outside their folder: {files}")
        for name, path in files.items():
            of_run = [s for s in scalars if s["run"] == name]
            compare_bytes(path, of_run)
            compare_reading(path, of_run)
        compare_runs(folder, files, scalars)
    print(f"compare_tensorboard: {len(files)} runs with {len(scalars)} scalars, byte for byte and read back")


if __name__ == "__main__":
    main()
