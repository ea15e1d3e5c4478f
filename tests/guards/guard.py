#!/usr/bin/env python3
"""Checks the tree against one rule that no compiler sees.

Usage: guard.py RULE [ROOT]. Prints one line per violation; exits with 1 when there is any and with
77 (CTest: skipped) when the tool that a rule needs is not there.
"""

import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = 77
SOURCE_SUFFIXES = {".h", ".cpp"}
FIRST_TORCH_FOLDER = "model"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
PRIVATE_LIBRARIES = re.compile(r"^(fmt|spdlog|CLI|nlohmann|toml\+\+|toml)(/|\.h)")
CUDA_NAMES = re.compile(
    r"\b(cuda[A-Z]\w*|CUDA[A-Z_]\w*|k?CUDA|is_cuda)\b|\bcuda::"
    r"|^\s*#\s*include\s*[<\"]((c10|ATen|torch|torch/csrc)/)?cuda")


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


def clang_format():
    for name in ("clang-format-14", "clang-format"):
        tool = shutil.which(name)
        if tool and " 14." in subprocess.run([tool, "--version"], capture_output=True, text=True).stdout:
            return tool
    raise Skip("clang-format 14 is not installed")


def formatting(root):
    """All sources are as clang-format 14 writes them."""
    tool = clang_format()
    for path in sources(root, "include", "src", "tests", "examples", "benchmarks", "tools"):
        run = subprocess.run([tool, "--dry-run", "-Werror", f"--style=file:{root / '.clang-format'}",
                              str(path)], capture_output=True, text=True)
        if run.returncode != 0:
            line = re.search(r":(\d+):\d+: error", run.stderr)
            yield path, int(line.group(1)) if line else 1, f"run {pathlib.Path(tool).name} -i on it"


RULES = {rule.__name__: rule for rule in
         (layers, torch_free, private_libraries, cuda_names, registration, formatting)}


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in RULES:
        sys.exit(f"usage: guard.py {{{'|'.join(RULES)}}} [ROOT]")
    root = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else pathlib.Path(__file__).parents[2])
    try:
        violations = list(RULES[sys.argv[1]](root))
    except Skip as reason:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    for path, number, message in violations:
        print(f"{path.relative_to(root)}:{number}: {message}")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
