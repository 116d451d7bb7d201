"""What `elmo export` gives: file sizes, the largest difference to PyTorch, cosines of int8, words a second.

    python benchmarks/onnx_export.py [--model M] [--threads 1]

200 sentences of at most 40 words of examples/held_out.tsv, in batches of 40 rows, padded, the state of a batch carried
into the next; the readable network in PyTorch is what the exported graphs are compared with.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import elmo
from elmo.bench import machine
from elmo.formats.onnx import export
from elmo.model import State

ROWS = 40
SENTENCES = 200


def main() -> None:
    """Export in both precisions and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    model, batches = elmo.load(options.model), held_out()
    print(f"{machine()}, onnxruntime {onnxruntime.__version__}, {options.threads} threads")
    print("| | MB | largest difference, layers / states | mean cosine by layer | least | words/s |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for int8 in (False, True):
            path = Path(folder) / "model.onnx"
            export(model, path, int8=int8, overwrite=True)
            row = compare(model, path, batches, options.threads)
            print(f"| {'int8' if int8 else 'float32'} | {path.stat().st_size / 1e6:.1f} | {row} |")


def held_out() -> list[list[list[str]]]:
    """Batches of sentences, as they come."""
    lines = (Path(__file__).parents[1] / "examples" / "held_out.tsv").read_text(encoding="utf-8").splitlines()
    found = [line.split("\t")[1].split() for line in lines]
    chosen = [sentence for sentence in found if len(sentence) <= 40][:SENTENCES]
    return [chosen[start : start + ROWS] for start in range(0, SENTENCES, ROWS)]


def compare(model: elmo.Model, path: Path, batches: list[list[list[str]]], threads: int) -> str:
    """The rest of a row of the table."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options)
    ours = theirs = model.bilm.zero_state(ROWS)
    in_layers, in_states, seconds, cosines = 0.0, 0.0, 0.0, []
    for batch in batches:
        ids = model.bilm.with_boundaries(model.batch_to_ids(batch))
        inputs = {"char_ids": ids.numpy().astype(np.int64), "m": ours.m.numpy(), "c": ours.c.numpy()}
        start = time.perf_counter()
        layers, _, m, c = map(torch.from_numpy, session.run(None, inputs))
        seconds += time.perf_counter() - start
        expected = model.bilm(ids, theirs)
        ours, theirs = State(m, c), expected.state
        in_layers = max(in_layers, float((layers - expected.layers).abs().max()))
        in_states = max(in_states, float((m - theirs.m).abs().max()), float((c - theirs.c).abs().max()))
        cosines.append(torch.cosine_similarity(layers[:, expected.mask], expected.layers[:, expected.mask], dim=-1))
    cosines_LN = torch.cat(cosines, dim=1)
    means = ", ".join(f"{mean:.6f}" for mean in cosines_LN.mean(dim=1).tolist())
    words = sum(len(sentence) for batch in batches for sentence in batch)
    return f"{in_layers:.1e} / {in_states:.1e} | {means} | {cosines_LN.min():.6f} | {words / seconds:,.0f}"


if __name__ == "__main__":
    main()
