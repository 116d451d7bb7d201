"""The words of all parts as one table: exact counts in bounded memory, however many words there are.

Parts have their words in the order of a key, so the words of one range of keys after the other are brought together,
each range small enough for a dictionary. What stays in memory to the end is 24 bytes a word.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmo.errors import TextError
from elmo.lm.parts import key_of, load_part
from elmo.vocab import NOT_A_WORD, SPECIAL_WORDS, Vocabulary

_AT_ONCE = 2**21  # words of all parts that are brought together at a time: some 400 MB where all of them differ
_MOST_TYPES = 2**25  # their characters are 3.3 GB by then
_BLOCK = 2**17


@dataclass(frozen=True)
class WordTable:
    """All different words, in the order of their keys. Shapes: K words of all parts together, W different ones."""

    counts: NDArray[np.int64]
    """(W,)"""
    offsets: NDArray[np.int64]
    """(W + 1,): where each word's UTF-8 starts in `text`; a line break follows it."""
    text: Path
    numbers: Path
    """(K,) uint32: for part after part, the place in this table of each of its words."""
    part_starts: NDArray[np.int64]
    """(parts + 1,): where each part starts in `numbers`."""

    def __len__(self) -> int:
        """How many different words there are."""
        return len(self.counts)

    def of_part(self, number: int) -> NDArray[np.uint32]:
        """The places in the table of a part's words."""
        start, end = self.part_starts[number : number + 2]
        return np.fromfile(self.numbers, np.uint32, count=end - start, offset=4 * start)

    def words(self, indices: NDArray[np.int64]) -> Iterator[list[str]]:
        """The words at some places of the table, a block at a time."""
        if not len(self):
            return
        with self.text.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as text:
            for block in (indices[start : start + _BLOCK] for start in range(0, len(indices), _BLOCK)):
                starts, ends = self.offsets[block].tolist(), (self.offsets[block + 1] - 1).tolist()
                yield [text[start:end].decode() for start, end in zip(starts, ends, strict=True)]

    def by_frequency(self) -> NDArray[np.int64]:
        """Places in the table by falling frequency; words that are as frequent stay in the order of their keys."""
        return np.argsort(-self.counts, kind="stable")


def merge_words(parts: Sequence[Path], counts: Path, folder: Path) -> WordTable:
    """Bring the words of parts together.

    Args:
        parts: in the order of the text.
        counts: int64 in a file: for part after part, how often each of its words is to be counted.
        folder: where to put what is too large for memory.
    """
    sizes = [len(load_part(path, "keys")["keys"]) for path in parts]
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    n_ranges = max(1, -(-int(starts[-1]) // _AT_ONCE))
    edges = np.linspace(0, 2**32, n_ranges + 1).astype(np.int64)
    all_counts: list[NDArray[np.int64]] = []
    all_lengths: list[NDArray[np.int64]] = []
    n_types = 0
    with (folder / "words").open("wb") as text, (folder / "numbers").open("wb") as numbers:
        numbers.truncate(4 * int(starts[-1]))
        for low, high in pairwise(edges.tolist()):
            words, where, range_counts = _merge_range(parts, counts, starts, low, high)
            for place, ours in where:
                numbers.seek(4 * place)
                numbers.write((ours + np.uint32(n_types)).tobytes())
            text.writelines(word + b"\n" for word in words)
            all_lengths.append(np.fromiter(map(len, words), np.int64, len(words)) + 1)
            all_counts.append(range_counts)
            n_types += len(words)
            if n_types > _MOST_TYPES:
                raise TextError(f"there are more than {_MOST_TYPES:,} different words: is this text, split into words?")
    return WordTable(
        counts=np.concatenate(all_counts),
        offsets=np.concatenate([[0], np.cumsum(np.concatenate(all_lengths))]),
        text=folder / "words",
        numbers=folder / "numbers",
        part_starts=starts,
    )


def make_vocabulary(table: WordTable, *, max_words: int, min_count: int) -> Vocabulary:
    """The special words, then the most frequent words, at most `max_words` in all; ties by the word itself."""
    not_words = {*SPECIAL_WORDS, NOT_A_WORD}
    room = max_words - len(SPECIAL_WORDS)
    wanted = room + len(not_words)  # more, as these may be among them
    frequent = np.flatnonzero(table.counts >= min_count)
    least = min_count
    if len(frequent) > wanted:
        least = int(np.partition(table.counts[frequent], len(frequent) - wanted)[len(frequent) - wanted])
    more = frequent[table.counts[frequent] > least]
    ranked = [(-int(n), word) for n, word in zip(table.counts[more], _flat(table, more), strict=True)]
    equal = frequent[table.counts[frequent] == least]
    # Words that occur once may be most of the table: only as many as there is room for are held at a time.
    last = heapq.nsmallest(wanted - len(ranked), _flat(table, equal))
    words = [word for _, word in sorted(ranked)] + last
    return Vocabulary([*SPECIAL_WORDS, *[word for word in words if word not in not_words][:room]])


def _flat(table: WordTable, indices: NDArray[np.int64]) -> Iterator[str]:
    for block in table.words(indices):
        yield from block


class _Numbers(dict[bytes, int]):
    """Numbers words as they come."""

    def __missing__(self, word: bytes) -> int:
        number = self[word] = len(self)
        return number


def _merge_range(
    parts: Sequence[Path], counts: Path, starts: NDArray[np.int64], low: int, high: int
) -> tuple[list[bytes], list[tuple[int, NDArray[np.uint32]]], NDArray[np.int64]]:
    """The words whose keys are in a range, in order; places in the file of numbers and what goes there; the counts."""
    numbers = _Numbers()
    where: list[tuple[int, NDArray[np.uint32]]] = []
    sums = np.zeros(2**16, np.int64)
    for path, start in zip(parts, starts.tolist(), strict=False):
        arrays = load_part(path, "keys", "words")
        first, last = np.searchsorted(arrays["keys"], np.array([low, high], np.int64)).tolist()
        words = arrays["words"][first:last]
        ours = np.fromiter(map(numbers.__getitem__, words), np.uint32, count=len(words))
        if len(numbers) > len(sums):
            sums = np.concatenate([sums, np.zeros(max(len(sums), len(numbers) - len(sums)), np.int64)])
        sums[ours] += np.fromfile(counts, np.int64, count=len(words), offset=8 * (start + first))
        where.append((start + first, ours))
    words = sorted(numbers, key=key_of)
    order = np.fromiter(map(numbers.__getitem__, words), np.int64, count=len(words))
    places = np.empty(len(words), np.uint32)
    places[order] = np.arange(len(words), dtype=np.uint32)
    return words, [(place, places[ours]) for place, ours in where], sums[order]
