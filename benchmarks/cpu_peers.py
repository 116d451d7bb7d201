"""Side by side with AllenNLP and simple_elmo on this machine's CPU, in one run: `make bench-peers`.

The same sentences and the same random weights go through each, each at its own best batch size; the vectors are
compared first. Prints a Markdown table with ratios to the faster peer and, at the original size, what products would
allow on this machine (`limits.py`), measured right after. The peers live in environments of their own under `.peers`
(made by the Makefile; they need Python 3.10 and 3.11).
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from limits import MACS_A_WORD, MACS_OF_FIRST_INPUTS, products

import elmo
from elmo.engine import compiled
from elmo.engine.precision import PRECISIONS

HERE = Path(__file__).parent
TEXT = HERE.parents[1] / "shared" / "data" / "corpus" / "valid.wikipedia_simple.txt.xz"
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
SIZES = {"small": (1024, 128, 1), "original": (4096, 512, 2)}
CLOSE = {"fp32": 1e-4, "bf16": 0.1, "int8": 0.3}  # largest difference from the peers' vectors


def make_model(folder: Path, size: str) -> None:
    """Random weights of a published size, as bilm-tf would write them."""
    torch.manual_seed(0)
    dim, projection, highways = SIZES[size]
    config = elmo.ModelConfig(
        lstm=elmo.LSTMConfig(
            dim=dim, projection_dim=projection, cell_clip=3.0, proj_clip=3.0, use_skip_connections=True
        ),
        char_cnn=elmo.CharCNNConfig(filters=FILTERS, n_highway=highways),
    )
    elmo.save(elmo.Model.of(elmo.BiLM(config).eval()), folder, format="bilm-tf")


def write_sentences(path: Path, source: Path, count: int) -> int:
    """Real sentences of varying length, tokenised, one a line: how many words."""
    tokenizer = elmo.Tokenizer("en")
    lines: list[str] = []
    with lzma.open(source, "rt", encoding="utf-8") as file:
        for paragraph in file:
            lines += [" ".join(sentence.tokens) for sentence in tokenizer(paragraph)]
            if len(lines) >= count:
                break
    path.write_text("\n".join(lines[:count]) + "\n", encoding="utf-8")
    return sum(len(line.split()) for line in lines[:count])


def run(python: str, worker: str, *arguments: object) -> dict[str, Any]:
    """Run a worker to its end: what it measured."""
    command = [python, str(HERE / "peers" / worker), *map(str, arguments)]
    quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=quiet)
    if done.returncode != 0:
        sys.exit(f"{worker} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def difference(one: Path, other: Path) -> float:
    """The largest difference between two workers' vectors."""
    with np.load(one) as a, np.load(other) as b:
        return max(float(np.abs(a[key] - b[key]).max(initial=0.0)) for key in a.files)


def main() -> None:
    """Measure all and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=TEXT, help="raw text, .xz")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--one-by-one", type=int, default=200)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--peers", type=Path, default=HERE.parent / ".peers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = write_sentences(folder / "text", options.text, options.sentences)
        print(
            f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, PyTorch {torch.__version__}"
        )
        print(f"{options.sentences} sentences, {words:,} words of {options.text.name}")
        for size in options.sizes:
            make_model(folder / size, size)
            rows = measure_all(folder, size, options)
            print_table(size, rows + (measure_bert(folder, options) if size == "original" else []))
            if size == "original" and all(map(compiled.compiled, PRECISIONS)):
                print_limits(rows)


def measure_all(folder: Path, size: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row an implementation, the peers first; vectors that differ end the run."""
    common = (options.sentences, options.one_by_one)
    rows = []
    for worker, environment in (("allennlp_worker.py", "allennlp"), ("simple_elmo_worker.py", "simple_elmo")):
        python = str(options.peers / environment / "bin" / "python")
        rows.append(run(python, worker, folder / size, folder / "text", folder / f"{environment}.npz", *common))
    for precision, close in CLOSE.items():
        out = folder / f"{precision}.npz"
        row = run(sys.executable, "ours_worker.py", folder / size, folder / "text", out, *common, precision)
        row["difference"] = max(difference(folder / f"{peer}.npz", out) for peer in ("allennlp", "simple_elmo"))
        if row["difference"] > close:
            sys.exit(f"{size}, {precision}: the vectors differ from the peers' by {row['difference']:.1e}")
        rows.append(row)
    return rows


def measure_bert(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """BERT-base on the same text, for scale: another model, so there is nothing to compare its vectors with."""
    python = str(options.peers / "bert" / "bin" / "python")
    arguments = ("-", folder / "text", folder / "bert.npz", options.sentences, options.one_by_one)
    return [run(python, "bert_worker.py", *arguments, precision) for precision in ("fp32", "int8")]


def print_table(size: str, rows: list[dict[str, Any]]) -> None:
    """As Markdown."""
    fastest = {key: max(row[key] for row in rows[:2]) for key in ("words_per_second", "one_at_a_time")}
    print(f"\n{size} size ({SIZES[size][0]}/{SIZES[size][1]})\n")
    print("| | words/s | ratio | one at a time, words/s | ratio | median, ms | 95 %, ms | peak MB | difference |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        ratios = [row[key] / fastest[key] for key in ("words_per_second", "one_at_a_time")]
        apart = f"{row['difference']:.1e}" if "difference" in row else ""
        print(
            f"| {row['name']} | {row['words_per_second']:,.0f} | {ratios[0]:.1f} | {row['one_at_a_time']:,.0f} | "
            f"{ratios[1]:.1f} | {row['median_ms']:.1f} | {row['p95_ms']:.1f} | {row['memory_mb']:,.0f} | {apart} |"
        )


def print_limits(rows: list[dict[str, Any]]) -> None:
    """What products allow here (`limits.py`), in words a second and as ratios to the faster peer."""
    fastest = max(row["words_per_second"] for row in rows[:2])
    print("\n| products allow | words/s | ratio | without the first layer's inputs | ratio |")
    print("|---|---|---|---|---|")
    for precision in PRECISIONS:
        speed, _ = products(precision)
        allowed = speed / MACS_A_WORD, speed / (MACS_A_WORD - MACS_OF_FIRST_INPUTS)
        print(f"| {precision} | {' | '.join(f'{one:,.0f} | {one / fastest:.1f}' for one in allowed)} |", flush=True)


if __name__ == "__main__":
    main()
