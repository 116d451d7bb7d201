"""The CPU engine at the original size: agreement, growth, lengths, memory, and where the time goes.

`make bench-cpu`, about 6 minutes on 2 cores; raw text from `--text` (open English text, .xz). A profiling build of the
kernels is made for one part, so a compiler is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import lzma
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from cpu_peers import make_model
from limits import MACS_A_WORD
from limits import products as products_limit

import elmo
from elmo.bench import machine
from elmo.embed import Embedder, EmbedSettings
from elmo.engine import compiled
from elmo.engine.precision import PRECISIONS, Precision

HERE = Path(__file__).parent
CORPUS = HERE.parents[1] / "shared" / "data" / "corpus"

MEMORY = """
import sys
def peak():  # ru_maxrss would begin with what the parent had
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024
import torch
torch.randn(300, 300) @ torch.randn(300, 300)
bare = peak()
import elmo
model = elmo.load(sys.argv[1])
for _ in model.embed_iter((line for line in open(sys.argv[2])), precision=sys.argv[3]): pass
print(peak() - bare)
"""


def sentences_of(paths: list[Path], count: int) -> list[list[str]]:
    """Real sentences of raw text."""
    tokenizer = elmo.Tokenizer("en")
    sentences: list[list[str]] = []
    for path in paths:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for paragraph in file:
                sentences += [sentence.tokens for sentence in tokenizer(paragraph) if sentence.tokens]
                if len(sentences) >= count:
                    return sentences[:count]
    sys.exit(f"the text has {len(sentences)} sentences; {count} are needed")


def words(sentences: list[list[str]]) -> int:
    """Number of words."""
    return sum(map(len, sentences))


def speed(model: elmo.Model, sentences: list[list[str]], precision: Precision) -> float:
    """Words a second, the word cache empty at the start."""
    embedder = model.embedder(precision=precision)
    embedder.cache.clear()
    start = time.perf_counter()
    for _ in embedder.embed_iter(sentences):
        pass
    return words(sentences) / (time.perf_counter() - start)


def agreement(name: str, model: elmo.Model, sentences: list[list[str]]) -> None:
    """Cosines of each layer with float32's."""
    exact = np.concatenate(model.embed(sentences, layers="all", precision="fp32"), axis=1)
    print(f"\nCosine with fp32 over {exact.shape[1]:,} words, {name}, layers 0, 1, 2\n")
    print("| | mean | least |\n|---|---|---|")
    for precision in PRECISIONS[1:]:
        ours = np.concatenate(model.embed(sentences, layers="all", precision=precision), axis=1)
        cosines = (exact * ours).sum(-1) / np.linalg.norm(exact, axis=-1) / np.linalg.norm(ours, axis=-1)
        mean, least = (", ".join(f"{x:.6f}" for x in f(cosines, axis=1)) for f in (np.mean, np.min))
        print(f"| {precision} | {mean} | {least} |")


def growth_and_lengths(model: elmo.Model, sentences: list[list[str]]) -> None:
    """Few and many sentences; lengths as they come, and the same words in sentences of equal length."""
    few, many = sentences[:2000], sentences[:20_000]
    print("\nint8, words a second\n")
    first, all_, again = (speed(model, s, "int8") for s in (few, many, few))
    print(f"- 2,000 sentences: {first:,.0f}; 20,000: {all_:,.0f}; 2,000 again: {again:,.0f}")
    flat = [word for sentence in few for word in sentence]
    length = round(len(flat) / len(few))
    equal = [flat[i : i + length] for i in range(0, len(flat) - length, length)]
    pairs = [(speed(model, few, "int8"), speed(model, equal, "int8")) for _ in range(3)]
    mixed, same = (max(pair[k] for pair in pairs) for k in range(2))
    lengths = [len(s) for s in few]
    print(f"- lengths as they come ({min(lengths)} to {max(lengths)}): {mixed:,.0f}; all {length}: {same:,.0f}")


def profile(folder: Path, sentences: list[list[str]], library: Path) -> None:
    """Where the time goes, with kernels that count the cycles of their products."""
    compiled.LIBRARY = library
    compiled.library.cache_clear()
    counter = ctypes.c_uint64.in_dll(compiled.library(), "elmo_product_cycles")
    model = elmo.load(folder)
    few = sentences[:1000]
    print(f"\nWhere the time goes, {words(few):,} words, and how near the products' limit it comes\n")
    print("| | products | gates | characters | Python and the rest | words/s | limit | of the limit |")
    print("|---|---|---|---|---|---|---|---|")
    for precision in PRECISIONS:
        embedder = Embedder(model, EmbedSettings(precision=precision))
        list(embedder.embed_iter(few[:50]))
        embedder.cache.clear()
        times = {"lstm": 0.0, "characters": 0.0}
        run = compiled._run

        def timed(
            name: str, precision: Precision, call: Any, barrier: Any = None, run: Any = run, times: Any = times
        ) -> None:
            start = time.perf_counter()
            run(name, precision, call, barrier)
            times["lstm" if name == "lstm" else "characters"] += time.perf_counter() - start

        compiled._run = timed
        counter.value = 0
        cycles, start = _tsc_rate(), time.perf_counter()
        list(embedder.embed_iter(few))
        total = time.perf_counter() - start
        compiled._run = run
        products = counter.value / cycles
        most, whose = products_limit(precision)
        rate = words(few) / total
        parts = [products, times["lstm"] - products, times["characters"], total - sum(times.values())]
        shares = " | ".join(f"{100 * part / total:.0f} %" for part in parts)
        ceiling = most / MACS_A_WORD
        print(f"| {precision} | {shares} | {rate:,.0f} | {ceiling:,.0f} ({whose}) | {100 * rate / ceiling:.0f} % |")


def _tsc_rate() -> float:
    """Cycles of the counter that the kernels read, a second."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("cpu MHz"):
            return float(line.split(":")[1]) * 1e6
    sys.exit("the rate of this CPU's counter is not known")


def main() -> None:
    """Measure all and print it as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["valid.wikipedia_simple.txt.xz", "valid.wikipedia_en.txt.xz", "test.wikipedia_en.txt.xz"]
    names += ["test.wikipedia_simple.txt.xz", "valid.gutenberg_books.txt.xz"]
    parser.add_argument("--text", type=Path, nargs="*", default=[CORPUS / name for name in names])
    options = parser.parse_args()
    if not all(map(compiled.compiled, PRECISIONS)):
        sys.exit("this CPU lacks AVX-512, its bfloat16 or VNNI, or the package was built without a compiler")
    sentences = sentences_of(options.text, 20_000)
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "original", "original")
        model = elmo.load(folder / "original")
        agreement("random weights of the original size", model, sentences[:300])
        agreement("the embedded model", elmo.load(), sentences[:300])
        growth_and_lengths(model, sentences)
        (folder / "text").write_text("\n".join(map(" ".join, sentences[:2000])), encoding="utf-8")
        print("\nPeak memory beyond the interpreter and PyTorch, 2,000 sentences\n")
        for precision in PRECISIONS:
            command = [sys.executable, "-c", MEMORY, str(folder / "original"), str(folder / "text"), precision]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
            print(f"- {precision}: {float(done.stdout):,.0f} MB")
        source = Path(elmo.__file__).parent / "engine" / "_kernels.c"
        build = ["cc", "-O3", "-std=gnu11", "-DELMO_PROFILE", "-fno-math-errno", "-shared", "-fPIC"]
        subprocess.run([*build, str(source), "-o", str(folder / "profiled.so")], check=True)
        profile(folder / "original", sentences, folder / "profiled.so")


if __name__ == "__main__":
    main()
