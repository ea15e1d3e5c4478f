#!/usr/bin/env python3
"""Checks the tree against one rule that no compiler sees.

Usage: guard.py RULE [ROOT]. Prints one line per violation; exits with 1 when there is any and with
77 (CTest: skipped) when the tool that a rule needs is not there, or with 1 where CI=true.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
SOURCE_SUFFIXES = {".h", ".cpp"}
FIRST_TORCH_FOLDER = "model"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
PRIVATE_LIBRARIES = re.compile(r"^(fmt|spdlog|CLI|nlohmann|toml\+\+|toml)(/|\.h)")
CUDA_NAMES = re.compile(
    r"\b(cuda[A-Z]\w*|CUDA[A-Z_]\w*|k?CUDA|is_cuda)\b|\bcuda::"
    r"|^\s*#\s*include\s*[<\"]((c10|ATen|torch|torch/csrc)/)?cuda")

# Words that no public header has outside comments and strings, whatever it includes.
PUBLIC_WORDS = {
    r"\busing\s+namespace\b": "it would be the user's too",
    r"\b(spdlog|fmt|CLI|toml|nlohmann)\s*::": "users need not have this library",
    r"\bjson\b": "JSON is written and read in sources alone",
}
# Words that the library has nowhere outside comments and strings.
LIBRARY_WORDS = {
    r"\bstd\s*::\s*(cout|cerr|clog|wcout|wcerr)\b": "the library never prints",
    r"\b(v?f?printf|vd?printf|dprintf|f?puts|putchar|perror)\s*\(": "the library never prints",
    r"\bstd\s*::\s*(abort|exit|quick_exit|_Exit|terminate)\b": "the library never ends the process",
    r"(?<![.\w>])(abort|exit|_exit|quick_exit|_Exit|terminate)\s*\(": "the library never ends the process",
}
UNFINISHED = re.compile(r"\b(TODO|FIXME|HACK|XXX)\b")
URING_NAMES = re.compile(r"\b(liburing|io_uring\w*)\b")
EMPTY_NAMES = re.compile(r"(?<![a-z])(util|utils|utilities|helper|helpers|common|misc|manager)(?![a-z])", re.I)
# Line comments, block comments, raw strings, strings, characters (but not the ' of 1'000).
NO_CODE = re.compile(r'''//[^\n]*|/\*.*?\*/|\bR"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\[^\n]{1,4}?|[^'\\\n])[']''',
                     re.S)
# Rows of docs/TRIALS.md: the number, and in the last column what holds it.
TRIALS = ("1-2 4-5 7-8 10-11 13-14 16-17 19-20 22-23 25-26 28-29 31-32 34-35 37-38 40-41 43-44 46-47 49-50 52-53 "
          "55-56 58-59 61-62 64-65 67-68 70-71 73-74 76-77 79-80 82-83 85-86 88-89 91-92 94-95 97-98 100-101 "
          "103-104 106-107 109")
TRIAL = re.compile(r"^\| *(\d+) *\|.*\| *([^|]*?) *\|$")
NAMED_TEST = re.compile(r"`([\w./]+): ?([\w.]+)`")
# How the core is compiled, for tools that read it as a compiler does.
CORE_FLAGS = ["-std=c++20", "-Iinclude", "-Isrc", "-DHYDRA_DEBUG_CHECKS=1"]
DIAGNOSTIC = re.compile(r"^(.*?):(\d+)(?::\d+)?: (?:warning|error|fatal error): (.*)$", re.M)


class Skip(Exception):
    """The rule cannot be checked here."""


def sources(root, *tops):
    for top in tops:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES:
                yield path


def library_sources(root):
    """Yields (path, its folder among the layers); hydra/hydra.h, the umbrella, is in none."""
    for top in ("include/hydra", "src"):
        for path in sources(root, top):
            parts = path.relative_to(root / top).parts
            if len(parts) > 1:
                yield path, parts[0]


def includes(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1)


def code_lines(path):
    """Yields (number, line) without comments and what strings hold; includes stay as they are."""
    text = path.read_text(encoding="utf-8")
    blank = NO_CODE.sub(lambda match: '""' + "\n" * match.group(0).count("\n"), text)
    for number, (line, whole) in enumerate(zip(blank.split("\n"), text.split("\n")), 1):
        yield number, whole if INCLUDE.match(whole) else line


def layer_order(root):
    lines = (root / "cmake/layers.txt").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def layers(root):
    """A folder includes only itself and those above it in cmake/layers.txt; testing includes all."""
    rank = {folder: place for place, folder in enumerate(layer_order(root) + ["testing"])}
    for path, folder in library_sources(root):
        if folder not in rank:
            yield path, 1, f"folder {folder} is not in cmake/layers.txt"
            continue
        for number, included in includes(path):
            target = included.removeprefix("hydra/")
            if target == "hydra.h":
                yield path, number, "the library does not include its own umbrella header"
                continue
            target = target.split("/")[0]
            if target == "..":
                yield path, number, f"name the folder from the root of src: {included}"
            if rank.get(target, -1) > rank[folder]:
                yield path, number, f"{folder} may not include {target}, which lies below it"


def torch_free(root):
    """No folder of the core includes Torch."""
    order = layer_order(root)
    core = set(order[: order.index(FIRST_TORCH_FOLDER)])
    for path, folder in library_sources(root):
        for number, included in includes(path):
            if folder in core and included.split("/")[0] in ("torch", "ATen", "c10"):
                yield path, number, f"{folder} knows nothing of Torch: {included}"


def private_libraries(root):
    """No public header includes a library that users need not have."""
    for path in sources(root, "include"):
        for number, included in includes(path):
            if PRIVATE_LIBRARIES.match(included):
                yield path, number, f"public header includes {included}"


def cuda_names(root):
    """CUDA is named in device/cuda alone (comments may speak of it)."""
    for path, _ in library_sources(root):
        if "device/cuda/" in path.as_posix():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = CUDA_NAMES.search(line.split("//")[0])
            if match:
                yield path, number, f"CUDA outside device/cuda: {match.group(0)}"


def public_words(root):
    """No public header has a word of PUBLIC_WORDS, whatever brings it."""
    for path in sources(root, "include"):
        for number, line in code_lines(path):
            for pattern, why in PUBLIC_WORDS.items():
                match = None if INCLUDE.match(line) else re.search(pattern, line)
                if match:
                    yield path, number, f"{match.group(0)}: {why}"


def quiet_library(root):
    """The library never prints, aborts or exits: it throws, returns, and tells its sinks."""
    for path, folder in library_sources(root):
        if folder == "testing":
            continue
        for number, line in code_lines(path):
            for pattern, why in LIBRARY_WORDS.items():
                match = re.search(pattern, line)
                if match:
                    yield path, number, f"{match.group(0)}: {why}"
                    break


def uring_names(root):
    """liburing is named in io's sources alone (comments may speak of it)."""
    for path in sources(root, "include", "src"):
        if path.is_relative_to(root / "src/io"):
            continue
        for number, line in code_lines(path):
            match = URING_NAMES.search(line)
            if match:
                yield path, number, f"liburing outside src/io: {match.group(0)}"


def unfinished(root):
    """What is not done is told in the documentation's limits, not left in the sources."""
    for path in sources(root, "include", "src", "tests", "examples", "benchmarks", "tools"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = UNFINISHED.search(line)
            if match:
                yield path, number, f"{match.group(0)}: do it, or tell it among the limits"


def file_names(root):
    """Files and folders are named for what they hold."""
    for top in ("include", "src", "tests", "examples", "benchmarks", "tools", "scripts", "cmake", "docs"):
        for path in sorted((root / top).rglob("*")):
            match = EMPTY_NAMES.search(path.name)
            if match:
                yield path, 1, f"{match.group(0)}: say what its contents share, and that is the name"


def registration(root):
    """Every *_test.cpp is named in a hydra_test of its folder, and the folder is one that is built."""
    built = set(layer_order(root)) | {"guards", "testing"}
    for path in sorted((root / "tests").rglob("*_test.cpp")):
        parts = path.relative_to(root / "tests").parts
        listing = path.parent / "CMakeLists.txt"
        text = listing.read_text(encoding="utf-8") if listing.exists() else ""
        text = re.sub(r"#.*", "", text)
        if len(parts) != 2 or parts[0] not in built:
            yield path, 1, "tests/CMakeLists.txt does not build this folder"
        elif path.name not in re.split(r"[\s()]+", text):
            yield path, 1, f"not registered in {listing.relative_to(root)}"


def trial_numbers():
    for span in TRIALS.split():
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)


def trials(root):
    """docs/TRIALS.md has every trial once, in order, each held by tests that exist or with what it waits for."""
    path = root / "docs/TRIALS.md"
    wanted = list(trial_numbers())
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = TRIAL.match(line)
        if not match:
            continue
        trial, held_by = int(match.group(1)), match.group(2)
        if not wanted or trial != wanted[0]:
            yield path, number, f"trial {trial} where {wanted[0] if wanted else 'nothing more'} is due"
        if trial in wanted:
            del wanted[: wanted.index(trial) + 1]
        named = NAMED_TEST.findall(held_by)
        if not named and not held_by.startswith("Waits for "):
            yield path, number, f"trial {trial} names no test and does not say what it waits for"
        for file, test in named:
            if not has_test(root / file, test):
                yield path, number, f"{file} has no test {test}"
    if wanted:
        yield path, 1, f"trials {', '.join(map(str, wanted))} are missing at the end"


def has_test(path, name):
    """A GoogleTest of a source, or a test of CTest in a CMakeLists.txt."""
    if not path.is_file():
        return False
    suite, _, test = name.partition(".")
    pattern = rf"\bTEST(_P|_F)?\(\s*{suite}\s*,\s*{test}\s*\)" if test else rf"\bNAME\s+{suite}\b"
    return re.search(pattern, path.read_text(encoding="utf-8")) is not None


def clang_format():
    for name in ("clang-format-14", "clang-format"):
        program = shutil.which(name)
        if program and " 14." in subprocess.run([program, "--version"], capture_output=True, text=True).stdout:
            return program
    raise Skip("clang-format 14 is not installed: apt-get install clang-format-14, or run scripts/setup.sh")


def formatting(root):
    """All sources are as clang-format 14 writes them."""
    program = clang_format()
    for path in sources(root, "include", "src", "tests", "examples", "benchmarks", "tools"):
        run = subprocess.run([program, "--dry-run", "-Werror", f"--style=file:{root / '.clang-format'}",
                              str(path)], capture_output=True, text=True)
        if run.returncode != 0:
            line = re.search(r":(\d+):\d+: error", run.stderr)
            yield path, int(line.group(1)) if line else 1, f"run {pathlib.Path(program).name} -i on it"


def tool(name, package, version=""):
    """The path of a tool, which Debian's package brings; the version that goes with clang 14."""
    found = shutil.which(name + version) or shutil.which(name)
    if not found:
        raise Skip(f"{name} is not installed: apt-get install {package}, or run scripts/setup.sh")
    return found


def core_sources(root):
    order = layer_order(root)
    core = [root / "src" / folder for folder in order[: order.index(FIRST_TORCH_FOLDER)]]
    return [path for folder in core for path in sorted(folder.rglob("*.cpp"))]


def read_core(root, command, flags=()):
    """Runs a tool that reads C++ over each source of the core, as many at once as there are cores;
    yields what it complains of, once where a header shows it to many."""
    def run(path):
        return path, subprocess.run([*command, str(path), *flags], cwd=root, capture_output=True,
                                    text=True)

    seen = set()
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for path, done in pool.map(run, core_sources(root)):
            found = DIAGNOSTIC.findall(done.stdout + done.stderr)
            if done.returncode != 0 and not found:
                found = [(str(path), 1, (done.stderr or done.stdout).strip() or "the tool failed")]
            for name, line, message in found:
                place = (root / name).resolve(), int(line), message
                if place not in seen:
                    seen.add(place)
                    yield place


def clang_tidy(root):
    """The core has nothing that .clang-tidy asks for."""
    command = [tool("clang-tidy", "clang-tidy-14", "-14"), "--quiet", "--warnings-as-errors=*"]
    # Paths through a function beyond these cost twice the time of everything else together.
    limit = ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=20000")
    yield from read_core(root, command, ("--", *CORE_FLAGS, *limit))


def thread_safety(root):
    """What the core's annotations say of its mutexes holds in every function."""
    command = [tool("clang++", "clang-14", "-14"), "-fsyntax-only", "-Wthread-safety", "-Werror",
               *CORE_FLAGS]
    yield from read_core(root, command)


def doxygen(root):
    """The public headers make pages without a warning; HYDRA_DOXYGEN_OUTPUT says where they go."""
    command = [tool("doxygen", "doxygen"), "docs/Doxyfile"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {"HYDRA_DOXYGEN_OUTPUT": folder, **os.environ}
        pathlib.Path(environment["HYDRA_DOXYGEN_OUTPUT"]).mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)
    found = DIAGNOSTIC.findall(done.stderr)
    if done.returncode != 0 and not found:
        found = [("docs/Doxyfile", 1, done.stderr.strip() or "doxygen failed")]
    for name, line, message in found:
        yield (root / name).resolve(), int(line), message


RULES = {rule.__name__: rule for rule in
         (layers, torch_free, private_libraries, public_words, quiet_library, cuda_names, uring_names,
          unfinished, file_names, registration, trials, formatting, clang_tidy, thread_safety, doxygen)}


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in RULES:
        sys.exit(f"usage: guard.py {{{'|'.join(RULES)}}} [ROOT]")
    root = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else pathlib.Path(__file__).parents[2]).resolve()
    try:
        violations = list(RULES[sys.argv[1]](root))
    except Skip as reason:
        in_ci = os.environ.get("CI") == "true"
        print(f"{'failed, since CI=true' if in_ci else 'skipped'}: {reason}")
        sys.exit(1 if in_ci else SKIPPED)
    for path, number, message in violations:
        print(f"{path.relative_to(root)}:{number}: {message}")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
