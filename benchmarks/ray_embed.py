"""Whether `elmo embed --engine ray` loses or repeats anything when a worker is killed, and then the driver.

    python benchmarks/ray_embed.py [--sentences 200000] [--workers 2] [--model M] [--keep FOLDER]

The sentences are drawn from those of examples/held_out.tsv: pieces of 1 to 39 words, 20 on average. Without `--model`
it is one of the size of configs/demo.toml (512 cells, 64 out each way) with drawn weights, for the sake of time. When a
quarter of the parts is there, a worker is killed (SIGKILL); when half of them is, the driver; the same command with
`--resume` then goes on. What is in the folder is compared, sentence by sentence, with what one process gives.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet
import torch

import elmo
from elmo.bench import machine
from elmo.config import ModelConfig

ROOT = Path(__file__).parents[1]
LONGEST = 39
KILLED = -signal.SIGKILL


@dataclass(frozen=True)
class Compared:
    """The folder beside one process."""

    rows: int
    in_order: bool
    """Whether the numbers of the rows are 0, 1, 2 ...: none is missing, none is there twice."""
    largest_difference: float
    seconds: float
    """That one process took."""


def main() -> None:
    """Embed, kill, go on, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work here, and leave what was made")
    options = parser.parse_args()
    print(machine())
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        run(options.keep, options.sentences, options.workers, options.model)
        return
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), options.sentences, options.workers, options.model)


def run(folder: Path, count: int, workers: int, model: Path | None) -> None:
    """All of it, in a folder."""
    text, out = folder / "text.txt", folder / "out"
    words = write_text(text, count)
    print(f"{count:,} sentences, {words:,} words, {text.stat().st_size:,} bytes; {workers} workers")
    path = draw_model(folder / "model") if model is None else model
    command = [sys.executable, "-m", "elmo", "embed", str(text), "-m", str(path), "--engine", "ray", "-o", str(out)]
    command += ["--workers", str(workers), "--quiet"]
    parts = text.stat().st_size // 2**20 + 1
    start = time.monotonic()
    embed_and_kill(command, out, parts)
    cut = time.monotonic()
    subprocess.run([*command, "--resume"], check=True)
    end = time.monotonic()
    print(f"first run {cut - start:.0f} s until it was killed, second {end - cut:.0f} s")
    print(f"{words / (end - start):,.0f} words/s, both starts of Ray and what was lost included")
    found = compare(elmo.load(path), text, out)
    print(f"one process: {found.seconds:.0f} s with reading and comparing, {words / found.seconds:,.0f} words/s")
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{found.rows:,} rows of {count:,}, in order, each once: {found.in_order}; {size / 1e9:.2f} GB")
    print(f"largest difference to one process: {found.largest_difference:.1e}")
    if found.rows != count or not found.in_order or not found.largest_difference <= 1e-5:
        sys.exit("FAILED")


def write_text(path: Path, count: int) -> int:
    """Draw sentences, one a line: how many words they have."""
    lines = (ROOT / "examples" / "held_out.tsv").read_text(encoding="utf-8").splitlines()
    words = [word for line in lines for word in line.split("\t")[1].split()]
    draw, total = random.Random(0), 0
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            length, start = draw.randint(1, LONGEST), draw.randrange(len(words) - LONGEST)
            file.write(" ".join(words[start : start + length]) + "\n")
            total += length
    return total


def draw_model(folder: Path) -> Path:
    """A model of the demo's size with weights drawn as training starts."""
    options = tomllib.loads((ROOT / "configs" / "demo.toml").read_text(encoding="utf-8"))["model"]
    torch.manual_seed(0)
    elmo.save(elmo.Model.of(elmo.BiLM(ModelConfig.from_options(options))), folder, overwrite=True)
    return folder


def embed_and_kill(command: list[str], out: Path, parts: int) -> None:
    """Kill a worker after a quarter of the parts, and the driver after half of them."""
    driver = subprocess.Popen(command)
    wait_for(out, parts // 4, driver)
    worker = workers_of(driver.pid)[0]
    os.kill(worker, signal.SIGKILL)
    print(f"worker {worker} killed, {made(out)} of about {parts} parts are there", flush=True)
    wait_for(out, parts // 2, driver)
    driver.kill()
    print(f"driver {driver.pid} killed, {made(out)} are there", flush=True)
    if driver.wait() != KILLED:
        sys.exit("the driver had ended before it was killed: give more sentences")


def made(out: Path) -> int:
    """How many parts there are."""
    return len(list(out.glob("part-*.parquet")))


def wait_for(out: Path, count: int, driver: subprocess.Popen[bytes]) -> None:
    """Wait until so many parts are there."""
    while made(out) < max(count, 1):
        time.sleep(0.05)
        if driver.poll() is not None:
            sys.exit(f"the driver ended with {driver.returncode}")


def workers_of(driver: int) -> list[int]:
    """Process ids of the workers that embed for a driver."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::MapWorker(MapBatches(_Worker))" in path.read_bytes() and descends(path.parent.name, driver):
                found.append(int(path.parent.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def descends(process: str, ancestor: int) -> bool:
    """Whether a process is an ancestor's child, or a child's."""
    while process not in ("0", "1", str(ancestor)):
        process = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1]
    return process == str(ancestor)


def compare(model: elmo.Model, text: Path, out: Path) -> Compared:
    """Embed in this process and look at each row of the folder."""
    start, largest, row, in_order = time.monotonic(), 0.0, 0, True
    with text.open(encoding="utf-8") as lines:
        expected = model.embed_iter(line.rstrip("\n") for line in lines)
        for index, flat in rows_of(out):
            vectors = next(expected)
            in_order &= index == row
            row += 1
            largest = max(largest, float(np.abs(flat - vectors.reshape(-1)).max(initial=0)))
        in_order &= next(expected, None) is None
    return Compared(row, in_order, largest, time.monotonic() - start)


def rows_of(out: Path) -> Iterator[tuple[int, np.ndarray[tuple[int], np.dtype[np.float32]]]]:
    """Numbers and vectors of all rows, file after file, some in memory at a time."""
    for path in sorted(out.glob("part-*.parquet")):
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["index", "vectors"]):
                for index, vectors in zip(batch.column("index").to_pylist(), batch.column("vectors"), strict=True):
                    yield index, vectors.values.flatten().to_numpy()


if __name__ == "__main__":
    main()
