"""Static word vectors: what a word is without its sentence, the `x` of the paper's `[x; ELMo]`.

The package has some of its own, trained on the embedded model's text (`models/static`); files of GloVe, word2vec and
fastText (text, `.gz`, `.xz`) do as well.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from elmo.errors import ElmoError
from elmo.tasks.files import lines, wrong

EMBEDDED = "default"
"""The name of the package's own vectors."""
NAMED = (EMBEDDED, "none")
"""What is no file: the package's own, and a table that is learned."""
_MOST_DIMENSIONS = 4096
_MOST_WORDS = 200_000


@dataclass(frozen=True)
class WordVectors:
    """Words and a vector for each."""

    words: tuple[str, ...]
    vectors: NDArray[np.float32]
    """`(V, D)`."""

    @property
    def dim(self) -> int:
        """D."""
        return int(self.vectors.shape[1])

    def digest(self) -> str:
        """What tells these from others."""
        found = hashlib.sha256("\n".join(self.words).encode())
        found.update(np.ascontiguousarray(self.vectors).tobytes())
        return found.hexdigest()[:16]

    @classmethod
    def read(cls, path: str) -> WordVectors:
        """Read vectors.

        Args:
            path: "default" for the package's own; a folder such as `scripts/static_vectors.py` makes; a text file with
                a word and its numbers a line, maybe behind a line with the two sizes, the most frequent words first:
                200,000 of them are taken.
        """
        if path == EMBEDDED and not Path(path).exists():
            with resources.as_file(resources.files("elmo") / "models" / "static") as folder:
                return _read_folder(folder)
        return _read_folder(Path(path)) if Path(path).is_dir() else _read_text(path)

    def write(self, folder: Path) -> None:
        """Write a folder that `read` takes: words.txt, and vectors.safetensors with 8 bits a number, a scale a word."""
        scale = np.maximum(np.abs(self.vectors).max(axis=1), 1e-12) / 127
        integers = np.rint(self.vectors / scale[:, None]).astype(np.int8)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"vectors": integers, "scale": scale.astype(np.float32)}, folder / "vectors.safetensors")
        (folder / "words.txt").write_text("\n".join(self.words) + "\n", encoding="utf-8")


def _read_folder(folder: Path) -> WordVectors:
    try:
        tensors = load_file(folder / "vectors.safetensors")
        words = tuple((folder / "words.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    except (OSError, UnicodeDecodeError, SafetensorError) as error:
        raise ElmoError(f"{folder} has no word vectors (words.txt, vectors.safetensors): {error}") from error
    vectors = tensors.get("vectors")
    if vectors is None or vectors.ndim != 2 or len(vectors) != len(words):
        shape = None if vectors is None else vectors.shape
        raise ElmoError(f"{folder} has {len(words):,} words and vectors of shape {shape}: a row for each is expected")
    scale = tensors.get("scale", np.ones(len(words), np.float32))
    return WordVectors(words, vectors.astype(np.float32) * scale[:, None])


def _read_text(path: str) -> WordVectors:
    words: list[str] = []
    rows: list[NDArray[np.float32]] = []
    dim = None
    for number, line in lines(path):
        word, *values = line.rstrip().split(" ")
        if number == 1 and len(values) == 1 and word.isdecimal():
            continue  # word2vec's sizes
        if not values:
            continue
        if dim is None:
            dim = len(values)
        if len(values) != dim or dim > _MOST_DIMENSIONS:
            raise wrong(path, number, f"a word and {len(values)} numbers", f"{min(dim, _MOST_DIMENSIONS)} numbers")
        try:
            row = np.array(values, np.float32)
        except ValueError:
            row = np.array(np.nan)
        if not np.isfinite(row).all():
            raise wrong(path, number, "something that is no number", "a word and its numbers")
        words.append(word)
        rows.append(row)
        if len(words) == _MOST_WORDS:
            break
    if not rows:
        raise ElmoError(f"{path} has no word vectors in it")
    return WordVectors(tuple(words), np.stack(rows))
