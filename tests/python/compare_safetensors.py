#!/usr/bin/env python3
"""Holds the safetensors reader and writer to Hugging Face's: the same bytes, the same refusals.

Usage: compare_safetensors.py PROBE
"""

import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import numpy
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save, save_file

PROBE = sys.argv[1]
NUMPY_DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32",
                "uint64", "int64", "float64", "complex64"]
# What Hydra refuses and the reference takes, by a part of Hydra's message; see docs/formats.
STRICTER = ["does not begin with {", "given twice", "twice", "is unknown", "more than 64", "\"__metadata__\" is null",
            "63 bits", "63-bit"]


def probe(*arguments, **options):
    return subprocess.run([PROBE, *map(str, arguments)], check=True, capture_output=True,
                          text=True, **options).stdout


def random_tensors(generator, count):
    numbers = numpy.random.default_rng(generator.randrange(2**32))
    tensors = {}
    for i in range(count):
        shape = tuple(generator.randrange(5) for _ in range(generator.randrange(4)))
        if generator.random() < 0.1:
            shape = (3000,)
        dtype = numpy.dtype(generator.choice(NUMPY_DTYPES))
        data = numbers.integers(0, 2 if dtype == bool else 256, (*shape, dtype.itemsize), numpy.uint8)
        name = generator.choice(["w.{}", "\u00e9 {}", "a\"\\/\n\t{}", "\u4e2d\U0001F600\x7f{}"]).format(i)
        tensors[name] = numpy.frombuffer(data.tobytes(), dtype).reshape(shape)
    return tensors


def compare_copies(work):
    """Files that the reference wrote are read and written again, byte for byte."""
    generator = random.Random(1)
    for i in range(200):
        metadata = generator.choice([None, {"format": "pt"}, {"\u00e9\u2028": "\x01\"\x7f"}])
        save_file(random_tensors(generator, generator.randrange(8)), work / "a", metadata)
        probe("copy", work / "a", work / "b")
        if (work / "a").read_bytes() != (work / "b").read_bytes():
            raise SystemExit(f"compare_safetensors: copy {i} differs: {(work / 'a').read_bytes()[:400]}")
    print("compare_safetensors: 200 files of all of numpy's dtypes, copied byte for byte")


def compare_dtypes(work):
    """Each dtype of the format, numpy's or not, through a header made by hand."""
    bits = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8,
            "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16,
            "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
            "U64": 64}
    header, begin = {}, 0
    for dtype in sorted(bits):
        end = begin + bits[dtype]
        header[f"t.{dtype}"] = {"dtype": dtype, "shape": [2, 4], "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    (work / "a").write_bytes(struct.pack("<Q", len(text)) + text + bytes(i % 256 for i in range(begin)))
    probe("copy", work / "a", work / "b")
    for name in ("a", "b"):
        with safe_open(work / name, "np") as file:
            found = {k: (file.get_slice(k).get_dtype(), file.get_slice(k).get_shape()) for k in file.keys()}
        if found != {k: (v["dtype"], v["shape"]) for k, v in header.items()}:
            raise SystemExit(f"compare_safetensors: the dtypes of {name} are {found}")
    print(f"compare_safetensors: all {len(bits)} dtypes, written so that the reference reads them")


def damaged(generator):
    data = bytearray(save(random_tensors(generator, generator.randrange(1, 4)), {"format": "pt"}))
    pieces = [b"0", b"9", b"[", b"]", b"{", b"}", b",", b'"', b" ", b"-", b"null", b"1e3", b"\\u0061",
              b"18446744073709551615", b'"U8"', b"F4", b"F32", b"\xff", b"\x00", b'"x":{},']
    for _ in range(generator.randrange(1, 4)):
        # Mostly in the header, where there is more to break.
        at = generator.randrange(8, max(9, min(len(data), 8 + struct.unpack_from("<Q", data)[0] % 1000)))
        choice = generator.randrange(4)
        if choice == 0:
            data[at : at + 1] = generator.choice(pieces)
        elif choice == 1:
            data[at:at] = generator.choice(pieces)
        elif choice == 2:
            del data[at : at + generator.randrange(1, 4)]
        else:
            data[generator.randrange(len(data))] = generator.randrange(256)
        if generator.random() < 0.7:  # keep the length right, so that the JSON is looked at
            end = data.rfind(b"}") + 1
            end += (8 - end) % 8 if data[end : end + 8].isspace() else 0
            data[:8] = struct.pack("<Q", max(0, end - 8))
    return bytes(data)


def altered(generator):
    """A file whose header is JSON still, but says something else, or the same in other words."""
    file = save(random_tensors(generator, generator.randrange(1, 4)), {"format": "pt"})
    (length,) = struct.unpack_from("<Q", file)
    header, data = json.loads(file[8 : 8 + length]), file[8 + length :]
    entry = header[generator.choice([k for k in header if k != "__metadata__"])]
    choice = generator.randrange(14)
    if choice == 0:
        entry["dtype"] = generator.choice(["F4", "F6_E2M3", "BOOL", "BF16", "F8_E8M0", "I64", "f32", ""])
    elif choice == 1:
        entry["shape"] = entry["shape"] + [1] * generator.choice([1, 2, 70])
    elif choice == 2:
        entry["shape"] = entry["shape"][1:]
    elif choice == 3:
        entry["data_offsets"][generator.randrange(2)] += generator.choice([-1, 1, 8, 2**63, 2**64])
    elif choice == 4:
        entry["shape"] = generator.choice([[0], [], [2**62, 8], [2**32, 2**32, 0], [-1], [1.0], None, "1"])
    elif choice == 5:
        del entry[generator.choice(list(entry))]
    elif choice == 6:
        entry["more"] = generator.choice([1, None, {}])
    elif choice == 7:
        header["__metadata__"] = generator.choice([None, {}, {"a": 1}, {"a": None}, [], "", {"a": ""}])
    elif choice == 8:
        header["new"] = {"dtype": "U8", "shape": [generator.randrange(2), 3],
                         "data_offsets": [len(data)] * 2}
    elif choice == 9:
        header["new"] = dict(entry)
    elif choice == 10:
        data = data[: len(data) - generator.randrange(3)] + bytes(generator.randrange(3))
    items = list(header.items())
    generator.shuffle(items)
    text = json.dumps(dict(items), ensure_ascii=generator.random() < 0.5,
                      indent=generator.choice([None, 1])).encode()
    if choice == 11:
        text = generator.choice([b" ", b"\n", b"\xef\xbb\xbf"]) + text
    elif choice == 12:
        text += generator.choice([b" ", b"\n\t\r ", b"\x00", b"{}", b"//"])
    elif choice == 13:
        text = text.replace(b'"dtype"', generator.choice([b'"dtype": "U8", "dtype"', b'"\\u0064type"']), 1)
    return struct.pack("<Q", len(text)) + text + data


def reference_takes(path):
    try:
        with safe_open(path, "np") as file:
            file.keys()
        return True
    except (SafetensorError, OSError, UnicodeError):
        return False


def compare_refusals(work, count=6000):
    """Whatever the reference refuses is refused; what it takes is taken, but for stated reasons."""
    generator = random.Random(3)
    paths = []
    for i in range(count):
        paths.append(work / f"fuzz{i}")
        paths[-1].write_bytes(generator.choice((damaged, altered))(generator))
    ours = probe("check", input="".join(f"{p}\n" for p in paths)).splitlines()
    taken = stricter = 0
    for path, outcome in zip(paths, ours, strict=True):
        theirs = reference_takes(path)
        if theirs and outcome != "ok" and any(part in outcome for part in STRICTER):
            stricter += 1
        elif theirs != (outcome == "ok"):
            raise SystemExit(f"compare_safetensors: {outcome}; the reference "
                             f"{'takes' if theirs else 'refuses'} {path.read_bytes()[:600]}")
        taken += theirs
    print(f"compare_safetensors: {count} damaged files: {taken} taken by the reference, of which "
          f"{stricter} are refused here for a stated reason; all else agrees")


def load_folder(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def compare_shards(work):
    """Folders are cut as huggingface_hub cuts them, and its folders are read."""
    generator = random.Random(4)
    for i in range(30):
        tensors = dict(sorted(random_tensors(generator, 12).items()))
        largest = generator.choice([100, 1000, 10000, 10**9])
        plan = split_state_dict_into_shards_factory(
            tensors, get_storage_size=lambda t: t.nbytes, filename_pattern="model{suffix}.safetensors",
            get_storage_id=lambda t: None, max_shard_size=largest)
        theirs, ours = work / f"theirs{i}", work / f"ours{i}"
        theirs.mkdir(), ours.mkdir()
        for name, keys in plan.filename_to_tensors.items():
            save_file({k: tensors[k] for k in keys}, theirs / name, {"format": "pt"})
        if plan.is_sharded:
            index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
            text = json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
            (theirs / "model.safetensors.index.json").write_text(text)
        probe("reshard", theirs, ours, largest)
        for path in theirs.iterdir():
            if path.read_bytes() != (ours / path.name).read_bytes():
                raise SystemExit(f"compare_safetensors: {path.name} of folder {i} differs")
        if len(list(theirs.iterdir())) != len(list(ours.iterdir())) or load_folder(ours).keys() != tensors.keys():
            raise SystemExit(f"compare_safetensors: folder {i} has other files")
    print("compare_safetensors: 30 folders of shards, cut and indexed byte for byte")


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        compare_copies(work)
        compare_dtypes(work)
        compare_refusals(work)
        compare_shards(work)


if __name__ == "__main__":
    main()
