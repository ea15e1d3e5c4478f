#!/usr/bin/env python3
"""Tries the example with command lines, files, outputs and signals that break programs.

Usage: hostile_test.py PROGRAM. Each case says what it expects; the first unexpected one ends the test.
"""

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
WORK = pathlib.Path(tempfile.mkdtemp())
TEXT = WORK / "text.txt"
TEXT.write_text("".join(f"line {i}: the quick brown fox jumps over the lazy dog\n" for i in range(4000)))
COMMON = ("--layers 2 --width 32 --heads 2 --context 32 --batch-size 4 --micro-batch-size 2 --threads 1 "
          "--device-memory 400KiB --steps 3 --learning-rate 1e-3").split()


def command(*options, text=TEXT, common=COMMON):
    """Later options replace the common ones, for giving one twice is an error of its own."""
    given = {option for option in options if str(option).startswith("--")}
    kept = []
    for name, value in zip(common[::2], common[1::2]):
        kept += [] if name in given else [name, value]
    text_options = [] if "--text" in given else ["--text", str(text)]
    return [str(PROGRAM), *text_options, *kept, *map(str, options)]


def run(*options, code=0, says="", **settings):
    done = subprocess.run(command(*options, **settings), capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == code, (options, done.returncode, done.stdout[-500:], done.stderr[-1500:])
    assert says in done.stderr, (options, says, done.stderr[-1500:])
    assert len(done.stderr) < 4000, (options, done.stderr)
    return done


def refused(*options, says="", **settings):
    done = run(*options, code=2, says=says, **settings)
    assert "step" not in done.stdout, (options, done.stdout)


def numbers():
    """Every option: its limits, zero, negative, huge, not a number, and twice."""
    whole = {"--layers": "0", "--width": "0", "--heads": "0", "--context": "0", "--steps": "0",
             "--batch-size": "0", "--models": "0", "--base-steps": "-1", "--micro-batch-size": "-1",
             "--warmup-steps": "-1", "--threads": "-1", "--seed": "-1"}
    for option, below in whole.items():
        common = [*COMMON[:-2]] if option == "--models" else COMMON
        for value in (below, "99999999999999999999"):
            refused(option, value, common=common)
    for value in ("-3", "x", "1.5", "nan", ""):
        refused("--steps", value)
    for option, values in {"--learning-rate": ("-1", "nan", "inf", "1e-3,x", "1e-3,-1"),
                           "--base-learning-rate": ("-1", "nan", "inf", "x"),
                           "--dropout": ("-0.1", "1", "2", "nan"),
                           "--weight-decay": ("-1", "nan", "inf"),
                           "--max-gradient-norm": ("-1", "nan", "1e-50", "x"),
                           "--device-memory": ("0", "-1MiB", "x", "1e30GiB", "nan", "4KiB"),
                           "--host-memory": ("-1MiB", "x", "4KiB"),
                           "--policy": ("best",), "--schedule": ("wave",), "--size": ("gpt5",),
                           "--devices": ("gpu", ",".join(["cpu"] * 1000)),
                           "--text-encoding": ("latin1",)}.items():
        for value in values:
            refused(option, value)
    refused("--models", "64", common=COMMON[:-2])
    refused("--width", "33", says="heads")
    done = run("--width", "1000000", code=2)
    assert "frame #" not in done.stderr, done.stderr
    refused("--context", "10000000")
    refused("--batch-size", str(1 << 24), "--context", str(1 << 20))
    refused("--warmup-steps", "10", says="warm-up must end")
    refused("--warmup-steps", "2", "--base-steps", "2", says="--base-steps")
    refused("--steps", "3", "--steps", "6")
    refused("--text", TEXT, "--text", TEXT)
    refused("--no-such-option")
    refused("--models", "3", "--learning-rate", "1e-3,1e-4", says="--models is 3")
    refused("--host-cache", "1MiB")
    refused("--storage", WORK)
    run("--help")
    run("--max-gradient-norm", "inf", "--quiet")
    run("--learning-rate", "0", "--quiet")


def names():
    path = WORK / "names.json"
    run("--learning-rate", "1e-3,1.0001e-3,1e-3", "--quiet", "--json", path,
        "--tensorboard", WORK / "names")
    found = [job["name"] for job in json.loads(path.read_text())["jobs"]]
    assert found == ["lr 0.001", "lr 0.0010001", "lr 0.001 (2)"], found
    assert len(list((WORK / "names").iterdir())) == 3


def texts():
    def made(content):
        path = WORK / "other.txt"
        path.write_bytes(content)
        return path

    refused(text=made(b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 4\n"),
            says="git lfs pull")
    refused(text=made("text ".encode("utf-16") * 500), says="UTF-16")
    refused(text=made(b"a\0b" * 500), says="byte of 0")
    refused(text=made(b"short"), says="33")
    refused(text=made(b""), says="empty")
    refused(text=WORK, says="directory")
    refused(text=WORK / "missing", says="does not exist")
    run("--text-encoding", "bytes", "--quiet", text=made(b"a\0b" * 500))
    done = run(text=made(b"\xef\xbb\xbf" + b"some text " * 100))
    assert "byte order mark" in done.stdout and "1000 tokens, 31 windows of 32, 7 tokens" in done.stdout, \
        done.stdout


def outputs():
    before = TEXT.read_bytes()
    link = WORK / "link"
    link.symlink_to(TEXT)
    for spelling in (TEXT, WORK / "." / "x" / ".." / "text.txt", link):
        (WORK / "x").mkdir(exist_ok=True)
        for option in ("--json", "--trace", "--metrics"):
            refused(option, spelling, says="same file")
    assert TEXT.read_bytes() == before
    refused("--json", WORK / "same", "--trace", WORK / "x" / ".." / "same", says="same file")
    for option in ("--json", "--trace", "--metrics"):
        refused(option, WORK / "no/such/dir/file", says="no/such/dir")
        refused(option, WORK, says="irectory")
    run("--json", "/dev/null", "--trace", "/dev/null", "--quiet")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    target = WORK / "target.json"
    target.write_text("old")
    (WORK / "to_target").symlink_to(target)
    run("--json", WORK / "to_target", "--quiet")
    assert (WORK / "to_target").is_symlink() and json.loads(target.read_text())["jobs"]
    # One output fails at the end: the others are written all the same, and the code says it.
    done = run("--json", "/dev/full", "--trace", WORK / "kept.json", "--quiet", code=3, says="/dev/full")
    assert json.loads((WORK / "kept.json").read_text())["traceEvents"] and "last loss" in done.stdout
    done = run("--metrics", "/dev/full", "--json", WORK / "full.json", "--quiet", code=3,
               says="No space left")
    assert json.loads((WORK / "full.json").read_text())["lost_outputs"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command("--json", WORK / "printed.json"), stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 3 and "standard output" in done.stderr, done
    assert json.loads((WORK / "printed.json").read_text())["jobs"][0]["state"] == "completed"
    # The same with a reader that has gone: | head -1
    piped = subprocess.Popen(command("--json", WORK / "piped.json"), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    piped.stdout.readline()
    piped.stdout.close()
    assert piped.wait(120) == 3, piped.stderr.read()
    assert json.loads((WORK / "piped.json").read_text())["jobs"][0]["state"] == "completed"
    assert [p.name for p in WORK.rglob("*.part")] == []


def signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for base in ("0", "1000000"):
            summary, trace = WORK / "stopped.json", WORK / "stopped_trace.json"
            process = subprocess.Popen(
                command("--steps", "1000000", "--base-steps", base, "--json", summary, "--trace", trace,
                        "--metrics", WORK / f"{number}{base}.jsonl", "--quiet"),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            metrics = WORK / f"{number}{base}.jsonl"
            until = time.time() + 60
            while time.time() < until and not (metrics.exists() and metrics.stat().st_size):
                time.sleep(0.02)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            assert process.returncode == 128 + number, (process.returncode, err)
            job = json.loads(summary.read_text())["jobs"][0]
            assert job["state"] == "stopped" and job["losses"] and job["parameters_sha256"], job
            assert json.loads(trace.read_text())["traceEvents"] and "last loss" in out
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            assert len(lines) == len(job["losses"])
    # The second one ends at once: a pipe that is never read holds the end up.
    pipe = WORK / "pipe"
    os.mkfifo(pipe)
    process = subprocess.Popen(command("--json", pipe, "--quiet"), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == -signal.SIGINT


for case in (numbers, names, texts, outputs, signals):
    started = time.time()
    case()
    print(f"{case.__name__}: as expected ({time.time() - started:.1f} s)", flush=True)
