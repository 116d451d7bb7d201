"""By which measure a sense's mean vector is nearest: tried on held-out parts of SemCor, so that no test set decides it.

    python scripts/sense_measures.py [--model M] [--data ../shared/data/tasks]

SemCor's sentences are cut into five stretches; the senses of each are told by means over the four others. Prints the
share of right answers by layer, over uses whose lemma has two senses or more in the four, with

- cosine: of a word's vector with a mean;
- Euclidean: their distance;
- unit vectors: the distance, where all vectors were brought to length 1 before means were taken. `elmo task senses` has
  this one.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import elmo
from elmo.progress import ProgressBar
from elmo.tasks.sense_readers import Lemma, SenseInstance, read_semcor
from elmo.tasks.vectors import embed_in_text_order

FOLDS = 5
Array = NDArray[np.float32]


def unit(vectors: Array) -> Array:
    """Of length 1."""
    scaled: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return scaled


MEASURES: dict[str, tuple[Callable[[Array], Array], Callable[[Array, Array], Array]]] = {
    "cosine": (lambda vectors: vectors, lambda means, vector: unit(means) @ vector),
    "Euclidean": (lambda vectors: vectors, lambda means, vector: -np.linalg.norm(means - vector, axis=1)),
    "unit vectors": (unit, lambda means, vector: -np.linalg.norm(means - vector, axis=1)),
}
"""What is done to all vectors first, and what is largest for the nearest mean."""


def main() -> None:
    """Embed SemCor once and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="the embedded model if not given")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tasks"))
    options = parser.parse_args()
    sentences = read_semcor(str(options.data / "wsd.tar.xz" / "wsd" / "semcor3.0.jsonl"))
    embedder = elmo.load(options.model).embedder(layers="all")
    uses: list[tuple[int, SenseInstance]] = []
    rows: list[Array] = []
    with ProgressBar("SemCor", total=len(sentences)) as bar:
        for place, vectors_LTD in embed_in_text_order(
            embedder, [one.tokens for one in sentences], lambda n, t: bar.update(n, t, "")
        ):
            for use in sentences[place].instances:
                uses.append((place * FOLDS // len(sentences), use))
                rows.append(vectors_LTD[:, use.start : use.end].mean(axis=1).astype(np.float32))
    vectors_NLD = np.stack(rows)
    print(f"| | {' | '.join(f'layer {layer}' for layer in embedder.layers)} |")
    print("|---" * (len(embedder.layers) + 1) + "|")
    for name, (prepared, nearness) in MEASURES.items():
        shares = [share(uses, prepared(vectors_NLD[:, layer]), nearness) for layer in range(len(embedder.layers))]
        print(f"| {name} | {' | '.join(f'{100 * one:.2f}' for one in shares)} |", flush=True)


def share(uses: list[tuple[int, SenseInstance]], vectors_ND: Array, nearness: Callable[[Array, Array], Array]) -> float:
    """Right answers among the held-out uses of lemmas with several senses."""
    right = total = 0
    for fold in range(FOLDS):
        known: defaultdict[Lemma, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for row, (own, use) in enumerate(uses):
            if own != fold:
                for key in use.keys:
                    known[use.lemma][key].append(row)
        means = {
            lemma: np.stack([vectors_ND[rows].mean(axis=0) for rows in senses.values()])
            for lemma, senses in known.items()
            if len(senses) > 1
        }
        for row, (own, use) in enumerate(uses):
            if own == fold and use.lemma in means:
                answer = list(known[use.lemma])[int(nearness(means[use.lemma], vectors_ND[row]).argmax())]
                right += answer in use.keys
                total += 1
    return right / total


if __name__ == "__main__":
    main()
