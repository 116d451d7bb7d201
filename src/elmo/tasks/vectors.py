"""Frozen vectors of a data set, computed once for all layers.

Shapes: L layers, N tokens of all sentences, T tokens of one, D width of a layer.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.embed import Embedder, Vectors
from elmo.errors import ElmoError
from elmo.files import locked, new_file

Report = Callable[[int, int], None]
"""Told how many sentences and tokens are done."""

_IN_MEMORY = 2**29  # bytes; what is larger lies in a temporary file that is mapped


def text_order(n: int, rows: int) -> list[int]:
    """The order in which to give n sentences to an embedder that carries the state in so many rows.

    Row r reads the r-th of as many stretches of text, so that each sentence, but the first of a stretch, goes on from
    the one before it in the text. Longer stretches come first: the last batch may be smaller, but is never
    interrupted.
    """
    rows = max(1, min(rows, n))
    sizes = [n // rows + (row < n % rows) for row in range(rows)]
    starts = [sum(sizes[:row]) for row in range(rows)]
    longest = sizes[0] if sizes else 0
    return [start + k for k in range(longest) for start, size in zip(starts, sizes, strict=True) if k < size]


def embed_in_text_order(
    embedder: Embedder, sentences: Sequence[Sequence[str]], report: Report = lambda sentences, tokens: None
) -> Iterator[tuple[int, Vectors]]:
    """Embed sentences of a text: number and vectors `(L, T, D)` of each, each exactly once.

    They come in the order of the text, unless the state is carried: see `text_order`.
    """
    carry = embedder.settings.state == "carry"
    order = text_order(len(sentences), embedder.settings.batch_size) if carry else range(len(sentences))
    tokens = 0
    report(0, 0)
    vectors = embedder.embed_iter(sentences[place] for place in order)
    for done, (place, vectors_LTD) in enumerate(zip(order, vectors, strict=True), start=1):
        tokens += len(sentences[place])
        yield place, vectors_LTD
        report(done, tokens)


class FrozenLayers:
    """Vectors of sentences by a biLM that is not trained: computed once, taken out as often as an epoch needs them."""

    def __init__(
        self,
        embedder: Embedder,
        sentences: Iterable[Sequence[str]],
        report: Report = lambda sentences, tokens: None,
        *,
        folder: Path | None = None,
    ) -> None:
        """Embed each different sentence once.

        Args:
            embedder: one whose settings have a list of layers.
            sentences: lists of tokens; the same one may come again.
            report: told how far it is.
            folder: keep the vectors in a file there, which other processes find and share; in memory, or in a file that
                goes with the process, if not given.
        """
        different = list(dict.fromkeys(map(tuple, sentences)))
        starts = np.cumsum([0, *map(len, different)])
        self._starts = dict(zip(different, starts.tolist(), strict=False))
        self._layers = list(range(len(embedder.layers)))
        self._pinned = embedder.device.type == "cuda"
        shape = (int(starts[-1]), len(embedder.layers), embedder.config.dim)

        def fill(store_NLD: NDArray[np.float16]) -> None:
            for place, vectors_LTD in embed_in_text_order(embedder, different, report):
                store_NLD[starts[place] : starts[place + 1]] = vectors_LTD.swapaxes(0, 1)

        if folder is None:
            self._store_NLD = _room(shape)
            fill(self._store_NLD)
        else:
            self._store_NLD = _kept(folder / f"layers-{_fingerprint(embedder, different)}.f16", shape, fill)

    @property
    def shape(self) -> tuple[int, int]:
        """L and D."""
        return len(self._layers), self._store_NLD.shape[2]

    def only(self, layers: Sequence[int]) -> FrozenLayers:
        """The same with some of its layers; nothing is computed or copied."""
        chosen = copy(self)
        chosen._layers = [self._layers[layer] for layer in layers]
        return chosen

    def __call__(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """The layers of sentences that it was made with: `(B, T, L, D)` float16, zero where there is no token."""
        longest = max(map(len, sentences), default=0)
        made = torch.empty((len(sentences), longest, *self.shape), dtype=torch.float16, pin_memory=self._pinned)
        out_BTLD = made.numpy()
        for row, tokens in enumerate(sentences):
            start = self._starts[tuple(tokens)]
            found_TLD = self._store_NLD[start : start + len(tokens)]
            out_BTLD[row, : len(tokens)] = (
                found_TLD if len(self._layers) == found_TLD.shape[1] else found_TLD[:, self._layers]
            )
            out_BTLD[row, len(tokens) :] = 0
        return made


def token_vectors(
    embedder: Embedder, sentences: Sequence[Sequence[str]], report: Report = lambda sentences, tokens: None
) -> NDArray[np.float16]:
    """Vectors of all tokens, sentence after sentence: `(L, N, D)`, in memory or, if there are many, in a mapped file.

    Args:
        embedder: one whose settings have a list of layers.
        sentences: lists of tokens.
        report: told how far it is.
    """
    starts = np.cumsum([0, *map(len, sentences)])
    store_LND = _room((len(embedder.layers), int(starts[-1]), embedder.config.dim))
    for place, vectors_LTD in embed_in_text_order(embedder, sentences, report):
        store_LND[:, starts[place] : starts[place + 1]] = vectors_LTD
    return store_LND


def _kept(path: Path, shape: tuple[int, ...], fill: Callable[[NDArray[np.float16]], None]) -> NDArray[np.float16]:
    """The vectors of a file; where there is none yet, one process makes it, and others wait."""
    if 0 in shape:
        return np.empty(shape, np.float16)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock")):
        if not path.exists():
            for torn in path.parent.glob(f".{path.name}.new-*"):  # gigabytes of a process that was killed
                torn.unlink()
            _refuse_full(path.parent, shape)
            with new_file(path) as beside:
                fill(np.memmap(beside, dtype=np.float16, mode="w+", shape=shape))
    return np.memmap(path, dtype=np.float16, mode="r", shape=shape)


def _fingerprint(embedder: Embedder, sentences: Sequence[Sequence[str]]) -> str:
    """What the vectors of sentences follow from."""
    digest = hashlib.sha256(f"{embedder.digest()} {embedder.precision} {embedder.layers}".encode())
    for tokens in sentences:
        digest.update(("\n".join(tokens) + "\n\n").encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def _room(shape: tuple[int, ...]) -> NDArray[np.float16]:
    """Room in memory or, if it is much, in a file that has no name and so goes when it is no longer used."""
    if 2 * int(np.prod(shape)) <= _IN_MEMORY:
        return np.empty(shape, np.float16)
    _refuse_full(Path(tempfile.gettempdir()), shape, ": set TMPDIR")
    with tempfile.TemporaryFile(prefix="elmo-vectors-") as file:
        return np.memmap(file, dtype=np.float16, mode="w+", shape=shape)


def _refuse_full(folder: Path, shape: tuple[int, ...], advice: str = "") -> None:
    """To write to a mapped file on a full disk ends the process."""
    needed, free = 2 * int(np.prod(shape)), shutil.disk_usage(folder).free
    if needed > free:
        raise ElmoError(f"{needed:,} bytes of vectors do not fit on the disk of {folder}, which has {free:,}{advice}")
