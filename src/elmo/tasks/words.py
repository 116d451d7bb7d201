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
_LONGEST_LINE = 2**20


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
            path: "default" for the package's own, whatever is called so in the working directory; a folder such as
                `scripts/static_vectors.py` makes; a text file with a word and its numbers a line, maybe behind a line
                with the two sizes, the most frequent words first: 200,000 of them are taken, and no more is read.
        """
        if path == EMBEDDED:
            with resources.as_file(resources.files("elmo") / "models" / "static") as folder:
                return _read_folder(folder)
        return _read_folder(Path(path)) if Path(path).is_dir() else _read_text(path)

    def write(self, folder: Path) -> None:
        """Write a folder that `read` takes: words.txt, and vectors.safetensors with 8 bits a number, a scale a word."""
        scale = np.maximum(np.abs(self.vectors).max(axis=1), 1e-12) / 127
        integers = np.rint(self.vectors / scale[:, None]).astype(np.int8)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"vectors": integers, "scale": scale.astype(np.float32)}, folder / "vectors.safetensors")
        (folder / "words.txt").write_bytes(("\n".join(self.words) + "\n").encode())


def _read_folder(folder: Path) -> WordVectors:
    try:
        tensors = load_file(folder / "vectors.safetensors")
        words = tuple((folder / "words.txt").read_bytes().decode().removesuffix("\n").split("\n"))
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
    dim = 0
    for number, line in lines(path, longest=_LONGEST_LINE):
        fields = line.rstrip().split(" ")
        if fields == [""]:
            continue
        if number == 1 and len(fields) == 2 and all(map(str.isdecimal, fields)):
            dim = int(fields[1][:9])  # word2vec's sizes
            continue
        dim = dim or len(fields) - 1
        if not 0 < dim <= _MOST_DIMENSIONS:
            raise wrong(path, number, f"a word and {dim:,} numbers", f"1 to {_MOST_DIMENSIONS:,} numbers")
        # a word may have spaces in it, as `. . .` of GloVe's has, but does not end with a number behind a space
        if len(fields) <= dim or (len(fields) > dim + 1 and _numbers(fields[-dim - 1 : -dim]) is not None):
            raise wrong(path, number, f"a word and {len(fields) - 1:,} numbers", f"{dim:,} numbers")
        row = _numbers(fields[-dim:])
        if row is None:
            raise wrong(path, number, "something that is no number", f"a word and its {dim:,} numbers")
        words.append(" ".join(fields[:-dim]))
        rows.append(row)
        if len(words) == _MOST_WORDS:
            break
    if not rows:
        raise ElmoError(f"{path} has no word vectors in it")
    return WordVectors(tuple(words), np.stack(rows))


def _numbers(fields: list[str]) -> NDArray[np.float32] | None:
    """The numbers that are written in fields; None if one of them is no finite number."""
    try:
        with np.errstate(over="ignore"):  # to an infinity, which is refused below
            found = np.array(fields, np.float32)
    except ValueError:
        return None
    return found if np.isfinite(found).all() else None
