"""Vectors of words without their context, kept for the next time that they are met."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from elmo.transfer import to_device

Int64s = NDArray[np.int64]


class WordCache:
    """Vectors of the words met last, in one table of fixed size: a word's characters are encoded once, not per use."""

    _LONGEST_WORD = 64  # characters; a longer word is rare, and as a key it would cost memory without bound

    def __init__(self, capacity: int, encode: Callable[[list[str]], Tensor]) -> None:
        """Keep at most `capacity` words; `encode` makes `(N, P)` vectors of N words."""
        self._encode = encode
        self._capacity = capacity
        self._slots: dict[str, int] = {}
        self._words: list[str] = []  # in each slot
        self._met = np.zeros(capacity, dtype=np.int64)  # when the word in each slot was met last
        self._clock = 0
        self._table_NP: Tensor | None = None
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def clear(self) -> None:
        """Forget all words."""
        with self._lock:
            self._slots.clear()
            self._words.clear()
            self._table_NP = None
            self.hits = 0
            self.misses = 0

    def vectors(self, words: list[str], new_words: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Vectors of distinct words, `(N, P)`, and those of them that were not here, encoded unless they are given."""
        with self._lock:
            return self._vectors(words, new_words)

    def _vectors(self, words: list[str], new_words: Tensor | None) -> tuple[Tensor, Tensor]:
        slots = np.fromiter(map(self._slots.get, words, itertools.repeat(-1)), dtype=np.int64, count=len(words))
        known, new = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        self.hits += len(known)
        self.misses += len(new)
        unknown = [words[i] for i in new.tolist()]
        if new_words is None:
            table = self._table_NP
            new_words = self._encode(unknown) if unknown or table is None else table.new_empty(0, table.shape[1])
        # index_copy_ and index_select, not brackets: these take all threads even for a few rows, which then keep the
        # cores busy for milliseconds in waiting for more.
        result = new_words.new_empty(len(words), new_words.shape[1])
        result.index_copy_(0, to_device(new, result.device), new_words)
        if len(known):
            result.index_copy_(0, to_device(known, result.device), self._lookup(slots[known]))
        self._store(unknown, new_words)
        return result, new_words

    def _lookup(self, slots: Int64s) -> Tensor:
        assert self._table_NP is not None
        self._meet(slots)
        return self._table_NP.index_select(0, to_device(slots, self._table_NP.device))

    def _meet(self, slots: Int64s) -> None:
        self._met[slots] = np.arange(self._clock, self._clock + len(slots))
        self._clock += len(slots)

    def _store(self, words: list[str], encoded_NP: Tensor) -> None:
        rows = [row for row, word in enumerate(words) if len(word) <= self._LONGEST_WORD][-self._capacity :]
        kept = [words[row] for row in rows]
        slots = self._make_room(len(kept))
        self._meet(slots)
        if self._table_NP is None:
            self._table_NP = encoded_NP.new_empty(self._capacity, encoded_NP.shape[1])
        stored_NP = encoded_NP.index_select(0, to_device(np.array(rows, dtype=np.int64), encoded_NP.device))
        self._table_NP.index_copy_(0, to_device(slots, stored_NP.device), stored_NP)
        # Last: where a user's Ctrl-C comes before, the words are not known yet.
        for slot, word in zip(slots.tolist(), kept, strict=True):
            self._words[slot] = word
            self._slots[word] = slot

    def _make_room(self, count: int) -> Int64s:
        """Slots for new words: those that are free, then those of the words that were met longest ago."""
        used = len(self._words)
        free = np.arange(used, min(used + count, self._capacity))
        self._words += [""] * len(free)
        if len(free) == count:
            return free
        oldest = np.argpartition(self._met[:used], count - len(free) - 1)[: count - len(free)]
        for slot in oldest.tolist():
            self._slots.pop(self._words[slot], None)
            self._words[slot] = ""
        return np.concatenate([free, oldest])
