"""The compiled half of the CPU engine: weights packed for `_kernels.c`, and what runs it on all threads.

The library is built with the package where there is a compiler, for CPUs with AVX-512; elsewhere `plain.py` stands in,
which is the same in PyTorch.

Shapes: N rows of a product, I its inputs, O its outputs; the LSTM's are those of `cpu.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, c_float, c_int, c_int64, c_void_p
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmo.chars import PAD
from elmo.config import Activation
from elmo.engine.precision import PRECISIONS, SCRATCH, Floats, LSTMWeights, Precision, Tokens, in_large_pages

LIBRARY = Path(__file__).with_name("_kernels.so")

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
_COLUMNS = 64  # of a block
_CELLS = 16  # of a block of gates
_SPANS = {"fp32": 256, "bf16": 2048, "int8": 128}
"""Values of a sum at a time. float32's rounding grows with the number of products that are added up in one go. bfloat16
takes 256 KB of weights, which stay in the second cache. A span of int8 has a scale of its own: what an LSTM's cells
give is heavy-tailed, and a large value leaves those that share its scale a few steps."""
_BLOCKS_AT_ONCE = 2  # while packing
_SLOTS_OF_WORDS = 256  # inputs whose gates are kept over a batch, the most frequent
_SLOTS_AHEAD = 128  # inputs whose gates are computed at a time, for the steps that come next


class _Weights(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("bias", c_void_p),
        ("groups", c_int64),
        ("blocks", c_int64),
        ("columns", c_int64),
        ("span", c_int64),
    )


class _Operand(ctypes.Structure):
    _fields_ = (("x", c_void_p), ("rows", c_int64), ("width", c_int64), ("operand", c_void_p), ("scales", c_void_p))


class _LstmCall(ctypes.Structure):
    _fields_ = (
        ("inputs", _Weights),
        ("recurrent", _Weights),
        ("projection", _Weights),
        ("cell_clip", c_float),
        ("proj_clip", c_float),
        ("outputs", c_int64),
        ("cells", c_int64),
        ("x", _Operand),
        ("sources", c_void_p),
        ("slots", c_void_p),
        ("pieces", c_void_p),
        ("n_pieces", c_int64),
        ("n_slots", c_int64),
        ("tokens", c_void_p),
        ("rows", c_void_p),
        ("gates", c_void_p),
        ("c", c_void_p),
        ("batch", c_int64),
        ("m", _Operand),
        ("h", _Operand),
        ("y", c_void_p),
        ("barrier", c_void_p),
    )


class _LinearCall(ctypes.Structure):
    _fields_ = (("weights", _Weights), ("x", _Operand), ("y", c_void_p), ("barrier", c_void_p))


class _ConvolutionCall(ctypes.Structure):
    _fields_ = (
        ("weights", _Weights),
        ("table", c_void_p),
        ("width", c_int64),
        ("ids", c_void_p),
        ("words", c_int64),
        ("characters", c_int64),
        ("window", c_int64),
        ("lengths", c_void_p),
        ("y", c_void_p),
        ("stride", c_int64),
        ("least", c_float),
        ("scratch", c_void_p),
    )


@cache
def library() -> Any:
    """The library that the package was built with, or None."""
    try:
        found = ctypes.CDLL(str(LIBRARY))
        found.elmo_precisions.restype = c_int
        if not found.elmo_precisions():
            return None
    except (OSError, AttributeError):
        return None
    calls: list[tuple[str, type[ctypes.Structure], str]] = [("lstm", _LstmCall, p) for p in PRECISIONS] + [
        ("linear", _LinearCall, p) for p in PRECISIONS
    ]
    calls += [("convolve", _ConvolutionCall, p) for p in ("fp32", "bf16")]
    for name, structure, precision in calls:
        function = getattr(found, f"elmo_{name}_{precision}")
        function.argtypes = [POINTER(structure), c_int, c_int]
        function.restype = None
    found.elmo_highway.argtypes = [c_void_p] * 3 + [c_int64, c_int, c_int]
    found.elmo_highway.restype = None
    return found


def compiled(precision: Precision) -> bool:
    """Whether the library is here and this CPU has what a precision needs of it."""
    return library() is not None and bool(library().elmo_precisions() >> PRECISIONS.index(precision) & 1)


class _Team:
    """Threads that run a function together, each its part; one call at a time, as they wait for each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0

    def run(self, function: Callable[[int, int], None], parts: int, abandon: Callable[[], object]) -> None:
        """Call `function(part, parts)` for every part at the same time; the caller does the first.

        Where that is interrupted, as by Ctrl-C, perhaps before the caller's own part, `abandon` is called: it must have
        the other parts wait for nobody any more. They have ended when this returns or raises, whatever happens.
        """
        if parts == 1:
            function(0, 1)
            return
        with self._lock:
            try:
                if self._pool is None or self._size < parts - 1:
                    self._pool, self._size = _started(parts - 1), parts - 1
                others = [self._pool.submit(function, part, parts) for part in range(1, parts)]
                function(0, parts)
                for other in others:
                    other.result()
            except BaseException:
                self._end(abandon)
                raise

    def _end(self, abandon: Callable[[], object]) -> None:
        """Wait for parts that have begun, also those that the caller does not know of; new threads come when asked."""
        while self._pool is not None:
            with contextlib.suppress(KeyboardInterrupt):  # it is being obeyed
                abandon()
                self._pool.shutdown()
                self._pool = None


def _started(threads: int) -> ThreadPoolExecutor:
    """A pool with all of its threads: an interrupt while one starts would leave it at work and unknown to the pool."""
    pool, together = ThreadPoolExecutor(threads, "elmo"), threading.Barrier(threads)
    try:
        for waiting in [pool.submit(together.wait) for _ in range(threads)]:
            waiting.result()
    except BaseException:
        together.abort()
        raise
    return pool


_TEAM = _Team()


def _forget_threads() -> None:
    global _TEAM  # a forked process has the object, but not its threads
    _TEAM = _Team()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def _barrier() -> Tensor:
    """What the kernels know as a barrier: how many have arrived, how often all have, and whether it was abandoned."""
    return torch.zeros(3, dtype=torch.int32)


def _run(name: str, precision: Precision, call: ctypes.Structure, barrier: Tensor | None = None) -> None:
    """Run a function of the library; `barrier` is the one in `call`, if its parts wait for each other."""
    function = getattr(library(), f"elmo_{name}_{precision}")
    run = partial(_part, function, call)
    _TEAM.run(run, torch.get_num_threads(), lambda: None if barrier is None else barrier[2].fill_(1))


def _part(function: Any, call: ctypes.Structure, part: int, parts: int) -> None:
    function(ctypes.byref(call), part, parts)


class _Packed:
    """A weight as the kernels read it; `call` points into the tensors, which are kept here."""

    def __init__(
        self,
        columns_of: Callable[[int, int], Tensor],
        columns: int,
        bias_O: Tensor | None,
        precision: Precision,
        span: int | None,
    ) -> None:
        """Pack a few blocks at a time, as a copy of a whole weight would be the most memory that is ever needed.

        Args:
            columns_of: gives the columns of some blocks, from one to another; the last may lack some.
            columns: how many there are.
            bias_O: added to the product.
            precision: of the product.
            span: values of a sum at a time; all if None.
        """
        blocks = -(-columns // _COLUMNS)
        group = 1 << PRECISIONS.index(precision)  # values that make 32 bits
        groups = -(-len(columns_of(0, 1)) // group)
        span = groups if span is None else span // group
        self.columns = columns
        self.precision = precision
        self.spans = -(-groups // span)
        self._data = in_large_pages((blocks, groups, _COLUMNS, group), _DTYPES[precision])
        self._scales = self._offsets = None
        if precision == "int8":
            self._scales = torch.empty(blocks * _COLUMNS)
            self._offsets = torch.empty(self.spans, blocks * _COLUMNS, dtype=torch.int32)
        for first in range(0, blocks, _BLOCKS_AT_ONCE):
            end = min(blocks, first + _BLOCKS_AT_ONCE)
            weight_IO = columns_of(first, end)
            padding = (0, (end - first) * _COLUMNS - weight_IO.shape[1], 0, groups * group - len(weight_IO))
            weight_IO = torch.nn.functional.pad(weight_IO, padding)
            if self._scales is not None and self._offsets is not None:
                scales_O = weight_IO.abs().amax(dim=0).clamp_min(1e-12) / 127
                weight_IO = (weight_IO / scales_O).round_()
                here = slice(first * _COLUMNS, end * _COLUMNS)
                self._scales[here] = scales_O
                for s, part in enumerate(torch.split(weight_IO, span * group)):
                    self._offsets[s, here] = -128 * part.sum(dim=0)
            blocked = weight_IO.view(groups, group, end - first, _COLUMNS).permute(2, 0, 3, 1)
            self._data[first:end] = blocked
        room = blocks * _COLUMNS
        self._bias = None if bias_O is None else torch.nn.functional.pad(bias_O, (0, room - len(bias_O)))
        kept = (self._data, self._scales, self._offsets, self._bias)
        self.call = _Weights(*[None if t is None else t.data_ptr() for t in kept], groups, blocks, columns, span)

    def operand(self, name: str, x_NI: Tensor) -> _Operand:
        """What is multiplied with it: float32 rows, and room for what the kernels make of them."""
        rows, width = x_NI.shape
        room, scales = None, None
        if self.precision != "fp32":
            room = SCRATCH.room(f"{name} operand", (rows, self.call.groups), torch.int32).data_ptr()
        if self.precision == "int8":
            scales = SCRATCH.room(f"{name} scales", (rows, self.spans), torch.float32).data_ptr()
        return _Operand(x_NI.data_ptr(), rows, width, room, scales)


def _pack(weight_IO: Tensor, bias_O: Tensor | None, precision: Precision, span: int | None = None) -> _Packed:
    def columns_of(first: int, end: int) -> Tensor:
        return weight_IO[:, first * _COLUMNS : end * _COLUMNS]

    return _Packed(columns_of, weight_IO.shape[1], bias_O, precision, span)


def _pack_gates(weight_IG: Tensor, bias_G: Tensor | None, precision: Precision) -> _Packed:
    """Columns are i, j, f, o of all cells; a block gets those of 16 cells."""
    cells = weight_IG.shape[1] // 4

    def columns_of(first: int, end: int) -> Tensor:
        return _by_cell(weight_IG.view(-1, 4, cells)[:, :, first * _CELLS : end * _CELLS])

    bias = None if bias_G is None else _by_cell(bias_G.view(1, 4, cells))[0]
    return _Packed(columns_of, -(-cells // _CELLS) * _COLUMNS, bias, precision, None)


def _by_cell(gates_I4D: Tensor) -> Tensor:
    """Blocks of 16 cells with their four gates, the last one padded: `(I, blocks * 64)`."""
    padded = torch.nn.functional.pad(gates_I4D, (0, -gates_I4D.shape[2] % _CELLS))
    return padded.view(len(padded), 4, -1, _CELLS).transpose(1, 2).reshape(len(padded), -1)


class Linear:
    """`x weight + bias`, `(N, I)` to `(N, O)`, float32 in and out."""

    def __init__(self, weight_IO: Tensor, bias_O: Tensor | None, precision: Precision) -> None:
        """Pack the weight."""
        self._packed = _pack(weight_IO, bias_O, precision, _SPANS[precision])

    def __call__(self, x_NI: Tensor) -> Tensor:
        """Multiply."""
        x_NI = x_NI.float().contiguous()
        y_NO = torch.empty(len(x_NI), self._packed.columns)
        barrier = _barrier()
        operand = self._packed.operand("x", x_NI)
        call = _LinearCall(self._packed.call, operand, y_NO.data_ptr(), barrier.data_ptr())
        _run("linear", self._packed.precision, call, barrier)
        return y_NO


class Convolutions:
    """The largest value of each filter over a word's characters, activated: `(N, C)` ids to `(N, F)`."""

    def __init__(
        self,
        table_VE: Tensor,
        filters: Sequence[tuple[Tensor, Tensor]],
        activation: Activation,
        precision: Precision,
    ) -> None:
        """Pack the characters' vectors and the filters, each `(number, E, width)` with its bias."""
        self._activation = activation
        self._precision: Precision = "fp32" if precision == "int8" and not compiled("bf16") else precision
        if self._precision == "int8":
            self._precision = "bf16"  # few of the products are here, and a character has few values
        table_VE = torch.nn.functional.pad(table_VE, (0, table_VE.shape[1] % 2))  # a group is up to two values
        self._table = table_VE.to(_DTYPES[self._precision], copy=True)
        self._filters = []
        for weight, bias in filters:
            padded = torch.nn.functional.pad(weight, (0, 0, 0, weight.shape[1] % 2))
            weight_IO = padded.permute(2, 1, 0).flatten(0, 1)  # (width * E, number)
            self._filters.append((weight.shape[2], _pack(weight_IO, bias, self._precision)))

    def __call__(self, ids_NC: Tensor) -> Tensor:
        """Convolve and take the largest."""
        words, characters = ids_NC.shape
        ids = ids_NC.to(torch.int32).contiguous()
        least, most = (int(ids.amin()), int(ids.amax())) if ids.numel() else (0, 0)
        if not 0 <= least <= most < len(self._table):
            raise IndexError(f"ids of characters are from 0 to {len(self._table) - 1}, not {least} to {most}")
        lengths = (ids != PAD).sum(dim=1, dtype=torch.int32)
        width = self._table.shape[1] * self._table.element_size()
        scratch = torch.empty(torch.get_num_threads(), characters * width, dtype=torch.uint8)
        y_NF = torch.empty(words, sum(packed.columns for _, packed in self._filters))
        start = 0
        for window, packed in self._filters:
            call = _ConvolutionCall(
                weights=packed.call,
                table=self._table.data_ptr(),
                width=width,
                ids=ids.data_ptr(),
                words=words,
                characters=characters,
                window=window,
                lengths=lengths.data_ptr(),
                y=y_NF[:, start:].data_ptr(),
                stride=y_NF.shape[1],
                least=0.0 if self._activation == "relu" else float("-inf"),
                scratch=scratch.data_ptr(),
            )
            _run("convolve", self._precision, call)
            start += packed.columns
        return y_NF if self._activation == "relu" else y_NF.tanh_()


def highway(x_NF: Tensor, carry_NF: Tensor, transform_NF: Tensor) -> Tensor:
    """`g relu(transform) + (1 - g) x` with `g = sigmoid(carry)`, in the place of `x`."""
    pointers = [tensor.data_ptr() for tensor in (x_NF, carry_NF, transform_NF)]
    _TEAM.run(partial(library().elmo_highway, *pointers, x_NF.numel()), torch.get_num_threads(), lambda: None)
    return x_NF


class LSTM:
    """One layer in one direction."""

    def __init__(self, weights: LSTMWeights, precision: Precision) -> None:
        """Pack the weights."""
        self._precision = precision
        self._cells = weights.cells
        self._cell_clip, self._proj_clip = (
            float("inf") if clip is None else clip for clip in (weights.cell_clip, weights.proj_clip)
        )
        self._inputs = _pack_gates(weights.inputs(), weights.bias(), precision)
        self._recurrent = _pack_gates(weights.recurrent(), None, precision)
        projection = weights.projection()
        self._projection = None if projection is None else _pack(projection, None, precision, _SPANS[precision])

    def __call__(self, x_NP: Floats, tokens: Tokens, m_BP: Floats, c_BD: Floats, y_NP: Floats) -> None:
        """Run over all steps into `y (tokens, P)`; `m` and `c` are changed in place, each row up to its own end."""
        batch, outputs = m_BP.shape
        plan = tokens.plan(_SLOTS_OF_WORDS, _SLOTS_AHEAD)
        x, m = (torch.from_numpy(np.ascontiguousarray(array)) for array in (x_NP, m_BP))
        h = SCRATCH.room("h", (batch, self._cells), torch.float32)
        kind = torch.float32 if self._precision == "fp32" else torch.bfloat16
        gates = SCRATCH.room("gates", (self._inputs.call.blocks, plan.n_slots, _COLUMNS), kind)
        barrier = _barrier()
        arrays = {name: getattr(plan, name).ctypes.data for name in ("sources", "slots", "pieces", "tokens", "rows")}
        call = _LstmCall(
            inputs=self._inputs.call,
            recurrent=self._recurrent.call,
            projection=_Weights() if self._projection is None else self._projection.call,
            cell_clip=self._cell_clip,
            proj_clip=self._proj_clip,
            outputs=outputs,
            cells=self._cells,
            x=self._inputs.operand("x", x),
            n_pieces=len(plan.pieces),
            n_slots=plan.n_slots,
            gates=gates.data_ptr(),
            c=c_BD.ctypes.data,
            batch=batch,
            m=self._recurrent.operand("m", m),
            h=(self._projection or self._recurrent).operand("h", h),
            y=y_NP.ctypes.data,
            barrier=barrier.data_ptr(),
            **arrays,
        )
        _run("lstm", self._precision, call, barrier)
        m_BP[: len(tokens.last)] = y_NP[tokens.last]
