"""What engines share: precisions, an LSTM's weights, and where a batch's tokens are."""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.config import LSTMConfig, ModelConfig
from elmo.lstm import FORGET_BIAS
from elmo.memory import pages
from elmo.model import CharEncoder

Precision = Literal["fp32", "bf16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

Read = Callable[[str, slice], Tensor]
"""Some rows of a weight, by the name it has in `BiLM.state_dict`: from a network or a file, one at a time."""

_LARGEST_KEPT = 2**26  # bytes that a thread keeps for one use, once it needs no more

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]


def in_large_pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros for what is large: in pages of 2 MB where the system has them, and the system has them back when freed."""
    size = math.prod(shape) * dtype.itemsize
    room = pages(max(size, dtype.itemsize))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            room.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(room, dtype=dtype)[: math.prod(shape)].view(list(shape))


def network_encoder(config: ModelConfig, read: Read, device: torch.device) -> CharEncoder:
    """The network's own character encoder, frozen, with float32 weights on a device."""
    assert config.char_cnn is not None
    with torch.device("meta"):
        encoder = CharEncoder(config.char_cnn, config.lstm.projection_dim, config.n_words)
    names = encoder.state_dict()
    weights = {name: read(f"encoder.{name}", slice(None)).to(device, torch.float32) for name in names}
    encoder.load_state_dict(weights, assign=True)
    return encoder.requires_grad_(False)


class _Scratch(threading.local):
    """Room that is used again by the calls of a thread: new memory costs a fault a page, a tenth of the time in all."""

    def __init__(self) -> None:
        self._rooms: dict[str, Tensor] = {}

    def room(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Uninitialised; good until the thread asks for the same name again."""
        size = math.prod(shape) * dtype.itemsize
        there = self._rooms[name].numel() if name in self._rooms else -1
        # What a text like no other needed is held until the next one: callers keep pointers, not tensors.
        if there < size or size <= _LARGEST_KEPT < there:
            self._rooms[name] = in_large_pages((size,), torch.uint8)
        return self._rooms[name][:size].view(dtype).view(shape)


SCRATCH = _Scratch()


@dataclass(frozen=True)
class LSTMWeights:
    """A layer's weights in one direction, taken one at a time from where they are, which may be a file."""

    read: Read
    prefix: str
    config: LSTMConfig

    @property
    def cells(self) -> int:
        """D."""
        return self.config.dim

    @property
    def cell_clip(self) -> float | None:
        """The bound of a cell."""
        return self.config.cell_clip

    @property
    def proj_clip(self) -> float | None:
        """The bound of an output, where there is a projection."""
        return self.config.proj_clip

    def inputs(self) -> Tensor:
        """`(P, 4 * D)`, gates in the order i, j, f, o."""
        return self._rows("kernel", slice(self.config.projection_dim))

    def recurrent(self) -> Tensor:
        """`(P, 4 * D)`."""
        return self._rows("kernel", slice(self.config.projection_dim, None))

    def bias(self) -> Tensor:
        """`(4 * D,)`, the forget gate's own included."""
        bias = self._rows("bias").clone()
        bias[2 * self.cells : 3 * self.cells] += FORGET_BIAS
        return bias

    def projection(self) -> Tensor | None:
        """`(D, P)`, or nothing."""
        return self._rows("projection") if self.config.has_projection else None

    def _rows(self, name: str, rows: slice = slice(None)) -> Tensor:
        return self.read(f"{self.prefix}.{name}", rows)


@dataclass(frozen=True)
class Plan:
    """Which inputs' gates are computed when, and where they are kept meanwhile."""

    sources: Int32s
    """Rows of the inputs in the order in which they are computed."""
    slots: Int32s
    """Where each of these is put."""
    pieces: Int32s
    """`(pieces, 3)`: first source, end of its sources, the step until which they serve."""
    tokens: Int32s
    """The slot that each token's gates are in."""
    rows: Int32s
    """Of each step."""
    n_slots: int


@dataclass(frozen=True)
class Tokens:
    """A batch's tokens step after step, the longest rows first, each a row of a table of inputs."""

    inputs: Int64s
    """`(N,)`: the row of the table."""
    rows: Int64s
    """`(T,)`: how many rows are still there at each step."""

    @cached_property
    def last(self) -> Int64s:
        """`(B,)`: the place of each row's last token, for the rows that have one."""
        starts = np.cumsum(self.rows) - self.rows
        row = np.arange(int(self.rows[0]) if len(self.rows) else 0)
        lengths = np.searchsorted(-self.rows, -row, side="left")  # rows fall
        return starts[lengths - 1] + row

    def plan(self, kept: int, ahead: int) -> Plan:
        """Compute at most `kept` inputs once for all their tokens, others about `ahead` tokens before they are due."""
        counts = np.bincount(self.inputs)
        frequent = np.argsort(-counts, kind="stable")[:kept]
        frequent = frequent[counts[frequent] > 1]
        slot_of = np.full(len(counts), -1, dtype=np.int64)
        slot_of[frequent] = np.arange(len(frequent))
        tokens = slot_of[self.inputs]
        ends = np.concatenate([[0], np.cumsum(self.rows)])
        rare = np.concatenate([[0], np.cumsum(tokens < 0)])[ends]  # before each step
        sources, slots, pieces = [frequent], [np.arange(len(frequent))], []
        done, step, most = 0, 0, 0
        while step < len(self.rows):
            until = max(step + 1, int(np.searchsorted(rare, rare[step] + ahead, side="right")) - 1)
            here = slice(ends[step], ends[until])
            places = np.flatnonzero(tokens[here] < 0) + ends[step]
            tokens[places] = len(frequent) + np.arange(len(places))
            sources.append(self.inputs[places])
            slots.append(tokens[places])
            end = sum(map(len, sources))
            pieces.append((done, end, until))
            done, step, most = end, until, max(most, len(places))
        return Plan(
            sources=np.concatenate(sources).astype(np.int32),
            slots=np.concatenate(slots).astype(np.int32),
            pieces=np.asarray(pieces, dtype=np.int32).reshape(-1, 3),
            tokens=tokens.astype(np.int32),
            rows=self.rows.astype(np.int32),
            n_slots=max(1, len(frequent) + most),
        )


@dataclass(frozen=True)
class Steps:
    """Where the tokens of a batch are, step by step, the longest rows first."""

    order: Int64s
    """`(B,)`, rows by falling length."""
    rows: Int64s
    """How many rows are still there at each step."""
    forward: Int64s
    """`(N,)`, place in the flattened `(B * T)` of each token, step after step."""
    backward: Int64s
    """The same, each row read from its own end."""
    in_order: Tokens
    """The tokens of a layer above the first: its inputs are in the order in which they come."""

    @classmethod
    def of(cls, places_BT: Tensor) -> Steps:
        """Of a batch's places, -1 behind a row's last token."""
        mask = places_BT.numpy() >= 0
        width = mask.shape[1]
        lengths: Int64s = mask.sum(axis=1)
        order = np.argsort(-lengths, kind="stable")
        rows = (lengths > np.arange(int(lengths.max(initial=0)))[:, None]).sum(axis=1)
        step = np.repeat(np.arange(len(rows)), rows)
        starts = np.cumsum(rows) - rows
        row = order[np.arange(len(step)) - starts[step]]
        return cls(
            order=order,
            rows=rows,
            forward=row * width + step,
            backward=row * width + lengths[row] - 1 - step,
            in_order=Tokens(np.arange(len(step)), rows),
        )
