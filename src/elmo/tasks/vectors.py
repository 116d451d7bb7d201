"""Frozen vectors of a data set, computed once for all layers.

Shapes: L layers, N tokens of all sentences, T tokens of one, D width of a layer.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from elmo.embed import Embedder, Vectors
from elmo.errors import ElmoError

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


@contextmanager
def token_vectors(
    embedder: Embedder, sentences: Sequence[Sequence[str]], report: Report = lambda sentences, tokens: None
) -> Iterator[NDArray[np.float16]]:
    """Vectors of all tokens, sentence after sentence: `(L, N, D)`, in memory or, if there are many, in a mapped file.

    Args:
        embedder: one whose settings have a list of layers.
        sentences: lists of tokens.
        report: told how far it is.
    """
    starts = np.cumsum([0, *map(len, sentences)])
    shape = (len(embedder.layers), int(starts[-1]), embedder.config.dim)
    with ExitStack() as stack:
        store: NDArray[np.float16]
        if 2 * int(np.prod(shape)) <= _IN_MEMORY:
            store = np.empty(shape, np.float16)
        else:
            folder = stack.enter_context(TemporaryDirectory(prefix="elmo-vectors-"))
            store = _mapped(Path(folder), shape)
        for place, vectors_LTD in embed_in_text_order(embedder, sentences, report):
            store[:, starts[place] : starts[place + 1]] = vectors_LTD
        yield store


def _mapped(folder: Path, shape: tuple[int, int, int]) -> NDArray[np.float16]:
    needed, free = 2 * int(np.prod(shape)), shutil.disk_usage(folder).free
    if needed > free:  # to write to a mapped file on a full disk ends the process
        raise ElmoError(
            f"{needed:,} bytes of vectors do not fit on the disk of {folder}, which has {free:,}: set TMPDIR"
        )
    return np.memmap(folder / "vectors", dtype=np.float16, mode="w+", shape=shape)
