"""What a stored precision costs and saves: size on disk, seconds to load, and how near the vectors stay to float32's.

`python benchmarks/stored.py [MODEL...]`, about 5 minutes on 2 cores: random weights of the original size and of
2048/256 with a head of 50,000 words, the embedded model, and models that are given. 200 sentences of UD English EWT
(`--text`). Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from cpu_peers import FILTERS
from numpy.typing import NDArray

import elmo
from elmo.bench import machine
from elmo.engine.precision import Precision
from elmo.formats.native import Dtype
from elmo.lm.softmax import SoftmaxHead
from elmo.tasks.readers import read_conllu
from elmo.vocab import Vocabulary

TEXT = Path(__file__).parents[2] / "shared" / "data" / "tasks" / "pos_ewt.tar.xz"
MEMBER = "pos_ewt/en_ewt-ud-test.conllu"
SENTENCES, HEAD_WORDS, MAX_FILE_MB = 200, 50_000, 45

COLUMNS = (
    "| stored as | MB | largest file | mean cosine, layers 0, 1, 2 | least | int8 engine, mean | load, s "
    "| first vectors, s |"
)
LOAD = """
import sys, time, torch, elmo.api
start = time.perf_counter()
model = elmo.load(sys.argv[1])
loaded = time.perf_counter()
model.embed(["The cat sat ."], precision=sys.argv[2])
print(loaded - start, time.perf_counter() - start)
"""


def drawn(dim: int, projection: int, highways: int, head_words: int | None = None) -> elmo.Model:
    """Random weights, as bilm-tf begins with."""
    torch.manual_seed(0)
    config = elmo.ModelConfig(
        lstm=elmo.LSTMConfig(
            dim=dim, projection_dim=projection, cell_clip=3.0, proj_clip=3.0, use_skip_connections=True
        ),
        char_cnn=elmo.CharCNNConfig(filters=FILTERS, n_highway=highways),
    )
    bilm = elmo.BiLM(config).eval().requires_grad_(False)
    if head_words is None:
        return elmo.Model.of(bilm)
    words = Vocabulary(("<S>", "</S>", "<UNK>", *(f"word{i}" for i in range(head_words - 3))))
    return elmo.Model.of(bilm, head=SoftmaxHead(head_words, projection).requires_grad_(False), vocab=words)


def vectors(model: elmo.Model, sentences: list[list[str]], precision: Precision = "fp32") -> NDArray[np.float64]:
    """Of all words, `(layers, words, dim)`."""
    return np.concatenate(model.embed(sentences, layers="all", precision=precision), axis=1).astype(np.float64)


def cosines(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """`(layers, words)`."""
    norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return (one * other).sum(axis=-1) / norms  # type: ignore[no-any-return]  # numpy's sum


def seconds(folder: Path, precision: Precision) -> tuple[float, float]:
    """To load, and to the first vectors, each the best of three processes; the file is in the system's cache."""
    command = [sys.executable, "-c", LOAD, str(folder), precision]
    runs = [tuple(map(float, subprocess.check_output(command, text=True).split())) for _ in range(3)]
    return min(run[0] for run in runs), min(run[1] for run in runs)


def rows(model: elmo.Model, sentences: list[list[str]], folder: Path) -> Iterator[str]:
    """A row of the table for each precision."""
    exact = vectors(model, sentences)
    dtype: Dtype
    for dtype in get_args(Dtype):
        path = folder / dtype
        elmo.save(model, path, dtype=dtype, max_file_mb=None if dtype == "float32" else MAX_FILE_MB)
        again = elmo.load(path)
        assert again.stored is not None
        largest = max(file.stat().st_size for file in path.iterdir())
        here = cosines(vectors(again, sentences), exact)
        engine = cosines(vectors(again, sentences, "int8"), exact)
        means = ", ".join(f"{mean:.6f}" for mean in here.mean(axis=1))
        load, first = seconds(path, "fp32")
        yield (
            f"| {dtype} | {again.stored.size / 1e6:.1f} | {largest / 1e6:.1f} | {means} | {here.min():.6f} "
            f"| {engine.mean():.6f} | {load:.2f} | {first:.2f} |"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", help="folders of models of your own")
    parser.add_argument("--text", type=Path, default=TEXT)
    arguments = parser.parse_args()
    sentences = [list(one.tokens) for one in read_conllu(f"{arguments.text}/{MEMBER}")[:SENTENCES]]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}; {sum(map(len, sentences)):,} words\n")
    models = {
        "4096/512, random": lambda: drawn(4096, 512, 2),
        f"2048/256 with a head of {HEAD_WORDS:,} words, random": lambda: drawn(2048, 256, 1, HEAD_WORDS),
        "the embedded model": elmo.load,
    } | {path: (lambda path=path: elmo.load(path)) for path in arguments.models}
    for name, make in models.items():
        print(f"{name}:\n")
        print(COLUMNS + "\n|" + "---|" * 8)
        with tempfile.TemporaryDirectory() as folder:
            for row in rows(make(), sentences, Path(folder)):
                print(row, flush=True)
        print()


if __name__ == "__main__":
    main()
