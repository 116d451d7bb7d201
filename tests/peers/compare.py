"""Old code, run by the software that it was written for and by this library: `make test-peers`.

Each script beside this one is run twice, by a peer's Python and by this one, on the same models and sentences; what the
two write is compared, and printed as a Markdown table. Fails where a difference is larger than is allowed. The peers
live in environments of their own under `.peers` (made by the Makefile; they need Python 3.10 and 3.11).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent)]  # conftest knows what is in a model's file

import elmo  # noqa: E402
from peers import allennlp_code, material  # noqa: E402

WITHIN_ALLENNLP, WITHIN_SIMPLE_ELMO = 2e-5, 5e-5
DRAWN_SHAPES = 6

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Row:
    """One comparison."""

    model: str
    what: str
    largest: float
    """Largest number in it, without its sign."""
    difference: float
    allowed: float


@dataclass(frozen=True)
class Bench:
    """Where things are: the peers, this library's Python, what is written meanwhile."""

    peers: Path
    folder: Path
    text: Path

    def run(self, peer: str | None, script: str, *arguments: object) -> None:
        """Run a script by a peer's Python, or by this one, to its end."""
        python = sys.executable if peer is None else str(self.peers / peer / "bin" / "python")
        quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
        if peer is not None:
            quiet.pop("PYTHONPATH", None)
        command = [python, str(HERE / script), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=quiet)
        if done.returncode != 0:
            sys.exit(f"{script} failed, run by {peer or 'this library'}:\n{done.stderr[-3000:]}")

    def allennlp(self, model: Path, what: str, *, ours: bool, saved: Path | None = None) -> Arrays:
        """What `allennlp_code.py` gives, by AllenNLP or by us."""
        out = self.folder / "out.npz"
        peer = None if ours else "allennlp"
        self.run(peer, "allennlp_code.py", what, model, self.text, out, *([] if saved is None else [saved]))
        return read(out)

    def simple_elmo(self, model: Path, *, ours: bool) -> Arrays:
        """What `simple_elmo_code.py` gives."""
        out = self.folder / "out.npz"
        self.run(None if ours else "simple_elmo", "simple_elmo_code.py", model, self.text, out)
        return read(out)


def read(path: Path) -> Arrays:
    """All arrays of a file."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def compared(model: str, theirs: Arrays, ours: Arrays, allowed: float, prefixes: dict[str, str]) -> Iterator[Row]:
    """A row for each kind of array, by how its name begins; names, shapes and masks must be the same."""
    if {name: a.shape for name, a in theirs.items()} != {name: a.shape for name, a in ours.items()}:
        sys.exit(f"{model}: names or shapes differ")
    for name in theirs:
        if theirs[name].dtype.kind != "f" and not np.array_equal(theirs[name], ours[name]):
            sys.exit(f"{model}: {name} differs")
    for prefix, what in prefixes.items():
        names = [name for name in theirs if name.startswith(prefix) and theirs[name].dtype.kind == "f"]
        if names:
            largest = max(float(np.abs(theirs[name]).max()) for name in names)
            apart = max(float(np.abs(theirs[name].astype(np.float64) - ours[name]).max()) for name in names)
            yield Row(model, what, largest, apart, allowed)


def allennlp_rows(bench: Bench, model: Path) -> Iterator[Row]:
    """The biLM and its mixes, in every way that they can be asked for."""
    kinds = {
        "layers": {f"layer {k}": f"layer {k}" for k in range(5)} | {"state": "state that is left"},
        "mix": {"output": "two mixes"},
        "norm": {"output": "layer norm, boundaries kept, fixed weights"},
        "cached": {"mixed": "cached vocabulary"},
    }
    for what, prefixes in kinds.items():
        theirs, ours = (bench.allennlp(model, what, ours=side) for side in (False, True))
        yield from compared(model.name, theirs, ours, WITHIN_ALLENNLP, prefixes)


def task_rows(bench: Bench, model: Path) -> Iterator[Row]:
    """A task model trained by either, and saved; then loaded by the other."""
    trained: dict[bool, Arrays] = {}
    for ours, what in ((False, "saved by AllenNLP, loaded here"), (True, "saved here, loaded by AllenNLP")):
        saved = bench.folder / f"{model.name}-{ours}.th"
        trained[ours] = bench.allennlp(model, "train", ours=ours, saved=saved)
        own, others = (bench.allennlp(model, "train", ours=side, saved=saved) for side in (ours, not ours))
        yield from compared(model.name, own, others, WITHIN_ALLENNLP, {"scores": f"task model {what}"})
    titles = {"loss": "losses of 4 steps, biLM trained too", "weight": "weights after them"}
    yield from compared(model.name, trained[False], trained[True], WITHIN_ALLENNLP, titles)


def simple_elmo_rows(bench: Bench, model: Path) -> Iterator[Row]:
    """Vectors with and without warm-up, and means."""
    theirs, ours = (bench.simple_elmo(model, ours=side) for side in (False, True))
    titles = {name: f"simple_elmo: {name}" for name in ("average", "top", "all", "means")}
    yield from compared(model.name, theirs, ours, WITHIN_SIMPLE_ELMO, titles)


def file_rows(bench: Bench, model: Path, package: Path) -> Iterator[Row]:
    """The files of `ElmoEmbedder.embed_file` and of `elmo embed`, name by name."""
    folders = {peer: bench.folder / f"files-{peer}" for peer in ("allennlp", "compat", "command")}
    for folder in folders.values():
        folder.mkdir()
    text = bench.folder / "distinct"
    lines = dict.fromkeys(bench.text.read_text(encoding="utf-8").splitlines())
    keys = [line for line in lines if not {"", "."} & set(line.split("/"))]  # as a sentence is to be a key
    text.write_text("".join(f"{line}\n" for line in keys), encoding="utf-8")
    bench.run("allennlp", "embedder_code.py", model, text, folders["allennlp"], package)
    bench.run(None, "embedder_code.py", model, text, folders["compat"])
    options = {
        "all": ["--layers", "all", "--sentence-to-index"],
        "top": ["--layers", "top", "--batch-size", "16"],
        "average": ["--layers", "average", "--use-sentence-keys"],
    }
    for name, given in options.items():
        out = folders["command"] / f"{name}.hdf5"
        command = [sys.executable, "-m", "elmo", "embed", text, "-o", out, "--model", model, "--state", "carry"]
        subprocess.run([*map(str, command), *given, "--quiet"], check=True)
        theirs = datasets(folders["allennlp"] / f"{name}.hdf5")
        for side, what in (("compat", "ElmoEmbedder"), ("command", "elmo embed")):
            ours = datasets(folders[side] / f"{name}.hdf5")
            yield from compared(model.name, theirs, ours, WITHIN_ALLENNLP, {"": f"file of {what}, {name}"})


def datasets(path: Path) -> Arrays:
    """All that is in an HDF5 file, the table of sentences as bytes."""
    found: Arrays = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        return {
            name: np.frombuffer(item[0], np.uint8) if name == "sentence_to_index" else item[...]
            for name, item in found.items()
        }


def export_rows(bench: Bench, model: Path) -> Iterator[Row]:
    """A model that is fine-tuned here, exported, and read by the peers."""
    tuned, exported = bench.folder / "tuned", bench.folder / "fine-tuned here"
    command = [sys.executable, "-m", "elmo"]
    # Held out is a copy of the text: the best step is to be one where something was learned.
    again = bench.folder / "text again"
    again.write_bytes(bench.text.read_bytes())
    text = ["--valid", str(again), "--epochs", "2", "--quiet"]
    tune = ["finetune", str(model), str(bench.text), "-o", str(tuned), *text]
    for arguments in (tune, ["convert", str(tuned), str(exported), "--format", "bilm-tf"]):
        subprocess.run([*command, *arguments], check=True, capture_output=True)
    sentences = [line.split(" ") for line in bench.text.read_text(encoding="utf-8").split("\n")[:-1]]
    ours = elmo.load(tuned).embed(sentences[:32], layers="all")
    untuned = elmo.load(model).embed(sentences[:32], layers="all")
    if max(float(np.abs(a - b).max()) for a, b in zip(ours, untuned, strict=True)) < 1e-2:
        sys.exit("fine-tuning has changed nothing, so there is nothing to see")
    layers = bench.allennlp(exported, "layers", ours=False)
    first = allennlp_code.ROWS[0]  # sentences of the first batch, which starts from zero as ours do
    theirs = [
        np.stack([layers[f"layer {k} 0"][i, 1 : len(s) + 1] for k in range(len(ours[i]))])
        for i, s in enumerate(sentences[:first])
    ]
    yield exported_row("AllenNLP", theirs, ours[:first], WITHIN_ALLENNLP)
    flat = bench.simple_elmo(exported, ours=False)["all False"]
    ends = np.cumsum([len(s) for s in sentences[:32]])
    yield exported_row("simple_elmo", np.split(flat[:, : ends[-1]], ends[:-1], axis=1), ours, WITHIN_SIMPLE_ELMO)


def exported_row(peer: str, theirs: list[NDArray[Any]], ours: list[NDArray[Any]], allowed: float) -> Row:
    """The native model's vectors beside those of a peer with the exported one."""
    largest = max(float(np.abs(a).max()) for a in theirs)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(theirs, ours, strict=True))
    return Row("fine-tuned here", f"its HDF5 in {peer}, all layers", largest, apart, allowed)


def rows(bench: Bench, options: argparse.Namespace) -> Iterator[Row]:
    """All comparisons."""
    models = {f"drawn {seed}": material.shape(seed) for seed in range(DRAWN_SHAPES)}
    models |= {size: material.published(size) for size in options.sizes}
    for number, (name, shape) in enumerate(models.items()):
        material.write(bench.folder / name, shape, number)
        yield from allennlp_rows(bench, bench.folder / name)
        yield from simple_elmo_rows(bench, bench.folder / name)
    for name in ("drawn 0", "drawn 1", *options.sizes[:1]):
        yield from task_rows(bench, bench.folder / name)
    yield from file_rows(bench, bench.folder / "drawn 0", options.allennlp_09)
    yield from export_rows(bench, bench.folder / "drawn 0")


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers")
    parser.add_argument("--allennlp-09", type=Path, default=ROOT / ".peers-allennlp-0.9")
    parser.add_argument("--sizes", nargs="*", default=["small", "original"], choices=["small", "original"])
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        sentences, real = material.sentences()
        bench = Bench(options.peers, Path(name), Path(name) / "text")
        bench.text.write_text("".join(" ".join(row) + "\n" for row in sentences), encoding="utf-8")
        print(
            f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, PyTorch {torch.__version__}"
        )
        words = sum(map(len, sentences))
        print(
            f"{len(sentences)} sentences, {words:,} words, in {len(material.RANGES)} scripts; {json.dumps(real)} real\n"
        )
        print("| model | | largest number | largest difference | allowed |\n|---|---|---|---|---|")
        for row in rows(bench, options):
            wrong += not row.difference <= row.allowed
            print(
                f"| {row.model} | {row.what} | {row.largest:.2f} | {row.difference:.1e} | {row.allowed:g} |", flush=True
            )
    sys.exit(f"{wrong} of these are too large" if wrong else 0)


if __name__ == "__main__":
    main()
