"""Weights that stay in their file until they are asked for, and then come one by one.

The file is kept open, so that a model can be used after its folder is gone; what was changed in it is an error.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from elmo.errors import ElmoError

_PIECE = 2**22  # numbers


@dataclass(frozen=True)
class Place:
    """Where a weight's numbers are in a file, plain and in the order of rows."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: Callable[[Tensor], Tensor] | None = None
    """Makes our layout of theirs, where they differ."""


class StoredWeights:
    """Reads weights by name: `stored(name, rows)`, float32."""

    def __init__(self, path: Path, places: Mapping[str, Place]) -> None:
        """Open the file, and keep it open."""
        self._path = path
        self._places = dict(places)
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise ElmoError(f"cannot read {path}: {error.strerror}") from error
        weakref.finalize(self, os.close, self._file)
        self._seen = self._signature()

    def __call__(self, name: str, rows: slice = slice(None)) -> Tensor:
        """Some rows of a weight, in our layout."""
        place = self._places[name]
        if place.layout is not None:
            return place.layout(self._read(name, place.offset, place.shape, place.dtype))[rows]
        if not place.shape:
            return self._read(name, place.offset, (), place.dtype)
        start, stop, step = rows.indices(place.shape[0])
        assert step == 1
        row = math.prod(place.shape[1:]) * place.dtype.itemsize
        return self._read(name, place.offset + start * row, (max(0, stop - start), *place.shape[1:]), place.dtype)

    def pieces(self, name: str) -> Iterator[Tensor]:
        """All the numbers of a weight, some at a time, in no layout."""
        place = self._places[name]
        count = math.prod(place.shape)
        for start in range(0, count, _PIECE):
            offset = place.offset + start * place.dtype.itemsize
            yield self._read(name, offset, (min(_PIECE, count - start),), place.dtype)

    def _read(self, name: str, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self._signature() != self._seen:
            raise ElmoError(f"{self._path} was changed since it was loaded: load it again")
        # Pages of its own, which the system has back at once: an allocator would keep them, a model's size in all.
        size = math.prod(shape) * dtype.itemsize
        room = mmap.mmap(-1, max(1, size))
        done = 0
        while done < size:
            with memoryview(room) as view:
                count = os.preadv(self._file, [view[done : min(size, done + 2**30)]], offset + done)
            if count == 0:
                raise ElmoError(f"{self._path} ends within {name}: the file is cut off")
            done += count
        return torch.frombuffer(room, dtype=dtype, count=math.prod(shape)).view(shape).float()

    def _signature(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns
