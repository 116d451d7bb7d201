"""Weights that stay in their file until they are asked for, and then come one by one.

The file is kept open, so that a model can be used after its folder is gone; what was changed in it is an error.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from elmo.errors import ElmoError
from elmo.formats.quantise import dequantise_
from elmo.memory import pages

_PIECE = 2**22  # numbers
_AT_ONCE = 2**26  # bytes
_SEEKING = threading.Lock()


@dataclass(frozen=True)
class Place:
    """Where a weight's numbers are in a file, plain and in the order of rows."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: Callable[[Tensor], Tensor] | None = None
    """Makes our layout of theirs, where they differ."""
    scale: Place | None = None
    """Where the scales of integers are, in the same file; see `quantise.py`."""

    def rows(self, start: int, stop: int) -> Place:
        """Some of its rows."""
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        return Place(self.offset + start * row, (max(0, stop - start), *self.shape[1:]), self.dtype)


class StoredWeights:
    """Reads weights by name: `stored(name, rows)`, float32."""

    def __init__(self, path: Path, places: Mapping[str, Place]) -> None:
        """Open the file, and keep it open."""
        self._path = path
        self.places = dict(places)
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise ElmoError(f"cannot read {path}: {error.strerror}") from error
        weakref.finalize(self, os.close, self._file)
        self._seen = self._signature()

    def __call__(self, name: str, rows: slice = slice(None)) -> Tensor:
        """Some rows of a weight, in our layout."""
        place = self.places[name]
        if place.layout is not None:
            return place.layout(self._read(name, place))[rows]
        if not place.shape:
            return self._read(name, place)
        start, stop, step = rows.indices(place.shape[0])
        assert step == 1
        values = self._read(name, place.rows(start, stop))
        if place.scale is None or not len(values):
            return values
        size = place.shape[0] // place.scale.shape[0]
        groups = start // size, -(-stop // size)
        scale = self._read(name, place.scale.rows(*groups))
        return dequantise_(values, scale, rows=size, skipped=start % size)

    def pieces(self, name: str) -> Iterator[Tensor]:
        """All the numbers of a weight as they are in the file, some at a time, in no layout."""
        place = self.places[name]
        count = math.prod(place.shape)
        flat = Place(place.offset, (count,), place.dtype)
        for start in range(0, count, _PIECE):
            yield self._read(name, flat.rows(start, min(count, start + _PIECE)))

    def _read(self, name: str, place: Place) -> Tensor:
        if self._signature() != self._seen:
            raise ElmoError(f"{self._path} was changed since it was loaded: load it again")
        values = _pages(place.shape, place.dtype)
        room = values.view(-1).view(torch.uint8).numpy().data
        done = 0
        while done < len(room):
            got = _read_at(self._file, room[done : done + _AT_ONCE], place.offset + done)
            if got == 0:
                raise ElmoError(f"{self._path} ends within {name}: the file is cut off")
            done += got
        return values if place.dtype == torch.float32 else _pages(place.shape, torch.float32).copy_(values)

    def _signature(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns


def _read_at(file: int, room: memoryview, offset: int) -> int:
    """Read bytes from a place in a file, and say how many; several threads may."""
    if hasattr(os, "preadv"):
        return os.preadv(file, [room], offset)
    with _SEEKING:  # Windows
        os.lseek(file, offset, os.SEEK_SET)
        got = os.read(file, len(room))
    room[: len(got)] = got
    return len(got)


def _pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Pages of its own, which the system has back at once: an allocator would keep them, a model's size in all."""
    count = math.prod(shape)
    return torch.frombuffer(pages(max(1, count) * dtype.itemsize), dtype=dtype)[:count].view(shape)
