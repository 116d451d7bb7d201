"""Code as users of simple_elmo wrote it, run by simple_elmo 0.9.2 and by this library: only the import differs.

    python simple_elmo_code.py MODEL TEXT OUT.npz

MODEL is a folder of bilm-tf's files, TEXT has a tokenised sentence a line. Only the standard library and numpy. What
simple_elmo has behind a sentence's end is not compared, and means only of sentences of one length: it takes them over
the longest sentence of a batch.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

if importlib.util.find_spec("simple_elmo"):
    from simple_elmo import ElmoModel
else:
    from elmo.compat.simple_elmo import ElmoModel

logging.disable(logging.INFO)


def main() -> None:
    """Ask for all there is and write it."""
    folder, text, out = sys.argv[1:]
    sentences = [line.split(" ") for line in Path(text).read_text(encoding="utf-8").split("\n")[:-1]]
    model = ElmoModel()
    model.load(folder, max_batch_size=32)
    found: dict[str, Any] = {}
    for layers in ("average", "top", "all"):
        for warmup in (True, False):
            vectors = model.get_elmo_vectors(sentences, warmup=warmup, layers=layers)
            found[f"shape {layers} {warmup}"] = np.array(vectors.shape)
            real = [row[..., : len(sentence), :] for row, sentence in zip(vectors, sentences, strict=True)]
            found[f"{layers} {warmup}"] = np.concatenate(real, axis=-2)
    (length, _), *_ = Counter(map(len, sentences)).most_common(1)
    alike = [sentence for sentence in sentences if len(sentence) == length]
    for layers in ("average", "top"):
        found[f"means {layers}"] = model.get_elmo_vector_average(alike, layers=layers)
    np.savez(out, **found)


if __name__ == "__main__":
    main()
