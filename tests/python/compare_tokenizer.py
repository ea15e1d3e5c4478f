#!/usr/bin/env python3
"""Holds the BPE tokenizer to Hugging Face's tokenizers: identical ids, and the speed of both.

Usage: compare_tokenizer.py PROBE [SHARED_DATA]. The GPT-2 vocabulary of SHARED_DATA is compared
where it is there; a small one is trained either way.
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import texts

PROBE = sys.argv[1]
SHARED = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
GOLDEN = pathlib.Path(__file__).parent.parent / "data" / "golden"
END = "<|endoftext|>"
NUMBERS = struct.Struct("<I")


def probe(*arguments):
    return subprocess.run([PROBE, *map(str, arguments)], check=True, capture_output=True).stdout


class Documents:
    """Byte strings in the probe's format."""

    def __init__(self, work, documents):
        self.work = work
        self.path = work / "documents"
        self.path.write_bytes(b"".join(NUMBERS.pack(len(d)) + d for d in documents))

    def encode(self, folder, threads=1, one_way=False):
        out = self.work / "ids"
        probe("encode", folder, self.path, out, threads, *(["one-way"] if one_way else []))
        data, at, lists = out.read_bytes(), 0, []
        while at < len(data):
            (count,) = NUMBERS.unpack_from(data, at)
            lists.append(list(struct.unpack_from(f"<{count}i", data, at + 4)))
            at += 4 + 4 * count
        return lists


def gpt2_like(vocabulary, merges, add_prefix_space=False):
    tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer


def trained(specials, add_prefix_space=False, size=700):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    corpus = [*texts.TORTURE, *texts.random_texts(300, seed=5), *(50 * texts.ENGLISH)]
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def same(name, theirs, ours, documents):
    for text, a, b in zip(documents, theirs, ours, strict=True):
        if a != b:
            raise SystemExit(f"compare_tokenizer: {name}: {text[:200]!r}\n  theirs {a[:50]}\n  ours   {b[:50]}")
    print(f"compare_tokenizer: {name}: {len(theirs)} texts, {sum(map(len, ours))} ids identical")


def compare(name, tokenizer, folder, work, documents, threads=1, one_way=False):
    theirs = [tokenizer.encode(d, add_special_tokens=False).ids for d in documents]
    ours = Documents(work, [d.encode() for d in documents]).encode(folder, threads, one_way)
    same(name, theirs, ours, documents)


def compare_classes(work):
    """Every code point's class, seen through how Hugging Face's splitter joins it."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    out = work / "classes"
    probe("classes", out)
    ours = out.read_text()

    def joins(first, second):
        return len(splitter.pre_tokenize_str(first + second)) == 1

    for code_point in range(0x110000):
        if 0xD800 <= code_point < 0xE000:
            continue
        c = chr(code_point)
        theirs = "L" if joins("a", c) else "N" if joins("1", c) else "O" if joins("!", c) else "S"
        if theirs != ours[code_point]:
            raise SystemExit(f"compare_tokenizer: U+{code_point:04X} is {theirs} there, {ours[code_point]} here")
    print("compare_tokenizer: the classes of all code points agree")


def compare_bytes(name, folder, tokenizer, work):
    """Bytes that are no UTF-8: split as the lossily decoded text is, the rest by its own ids."""
    damaged = list(texts.random_bytes(3000))
    Documents(work, damaged).encode(folder)  # the probe checks that every byte comes back
    lossy = [d.decode(errors="replace") for d in damaged]
    compare(f"{name}, lossily decoded bytes", tokenizer, folder, work, lossy)


def layouts(work, vocabulary, merges, tokenizer):
    """The same tokenizer in each layout of files that is read."""
    for names in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        folder = work / names[0]
        folder.mkdir(exist_ok=True)
        shutil.copy(vocabulary, folder / names[0])
        shutil.copy(merges, folder / names[1])
        yield names[0], folder
    folder = work / "tokenizer.json"
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    yield "tokenizer.json", folder


def compare_speed(folder, tokenizer, work, paths):
    """Paired rounds on one thread; theirs by the quicker of its calls (without offsets)."""
    documents = [p for path in paths for p in path.read_text(encoding="utf-8").split("\n\n")]
    Documents(work, [d.encode() for d in documents])
    size = sum(len(d.encode()) for d in documents) / 1e6
    ratios, ours, theirs = [], [], []
    for _ in range(9):
        start = time.perf_counter()
        tokenizer.encode_batch_fast(documents)
        theirs.append(time.perf_counter() - start)
        ours.append(float(probe("bench", folder, work / "documents", 1, 1)))
        ratios.append(theirs[-1] / ours[-1])
    middle = len(ratios) // 2
    print(f"compare_tokenizer: {size:.1f} MB in {len(documents)} documents, one thread: tokenizers "
          f"{size / sorted(theirs)[middle]:.1f} MB/s, Hydra {size / sorted(ours)[middle]:.1f} MB/s, "
          f"{sorted(ratios)[middle]:.1f} x ({min(ratios):.1f} to {max(ratios):.1f})")
    if sorted(ratios)[middle] < 2:
        raise SystemExit("compare_tokenizer: Hydra is less than twice as fast")


def compare_gpt2(work):
    vocabulary, merges = (SHARED / "gpt2-vocab" / n for n in ("vocab.json", "merges.txt"))
    tokenizer = gpt2_like(vocabulary, merges)
    paths = sorted((SHARED / "text").glob("*.txt"))
    whole = [path.read_bytes().decode() for path in paths]
    random_texts = texts.random_texts(10000)
    for name, folder in layouts(work, vocabulary, merges, tokenizer):
        compare(f"GPT-2 from {name}, torture set", tokenizer, folder, work, texts.TORTURE, threads=3)
        compare(f"GPT-2 from {name}, shared texts", tokenizer, folder, work, whole)
        compare(f"GPT-2 from {name}, random texts", tokenizer, folder, work, random_texts, threads=2)
    compare_bytes("GPT-2", folder, tokenizer, work)
    compare_speed(folder, tokenizer, work, paths)


def compare_trained(work):
    for add_prefix_space in (False, True):
        specials = [END, "<a>", "<a><b>", "\u00e9!", "  "]
        tokenizer = trained(specials, add_prefix_space)
        folder = work / f"trained{add_prefix_space}"
        folder.mkdir()
        tokenizer.save(str(folder / "tokenizer.json"))
        documents = texts.TORTURE + texts.random_texts(3000, seed=9)
        documents += ["<a><b><a>", "x<a><a><b>y", "<a ><b>", "\u00e9!\u00e9", "a    b     c"]
        compare(f"trained, add_prefix_space {add_prefix_space}", tokenizer, folder, work, documents,
                one_way=add_prefix_space)  # the space stays in the decoded text


def write_golden():
    """Writes the values that the C++ test holds without Python."""
    GOLDEN.mkdir(exist_ok=True)
    tokenizer = trained([END], size=600)
    tokenizer.save(str(GOLDEN / "tokenizer.json"), pretty=False)
    documents = texts.TORTURE + texts.ENGLISH + texts.random_texts(150, seed=11)
    documents = [d for d in documents if len(d) < 100]
    rows = [{"text": d, "ids": tokenizer.encode(d).ids} for d in documents]
    lines = ",\n".join(json.dumps(row) for row in rows)
    (GOLDEN / "cases.json").write_text(f"[\n{lines}\n]\n")


def main():
    if "--write-golden" in sys.argv:
        write_golden()
        return
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        compare_classes(work)
        compare_trained(work)
        if SHARED and (SHARED / "gpt2-vocab").is_dir():
            compare_gpt2(work)
        else:
            print("compare_tokenizer: SKIPPED for GPT-2's vocabulary: no shared data here")


if __name__ == "__main__":
    main()
