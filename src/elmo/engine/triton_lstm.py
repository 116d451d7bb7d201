"""Triton kernels of the projected, clipped LSTM, both directions at once: two launches a time step.

`gates`: the product of a step's input and of the output before it, the gates, the cell.
`project`: the projection of the step's output, clipped; split over its inputs where there are few rows.
`gates_backward` and `project_backward` are their gradients. Weights and what feeds a product are bfloat16 or float32;
sums, gates and cells are float32.

In a launch, each layer is one step behind the layer below it: a stack of K layers takes T + K - 1 launches of each.
Tokens are packed: those of time step t are the rows `starts[t] .. starts[t] + rows[t]` of a table, the longest rows of
the batch first, so the rows that are at their end leave by themselves, and their state stays as it was. Time is read
from memory, so that a captured graph of some steps serves any batch.

A layer's gates are stored in groups of 16 cells: 16 pairs (i, j), then 16 pairs (f, o). So a tile of a product has all
four gates of its cells, and each thread of a tensor core's accumulator has them in its own registers.

Shapes: K layers, 2 directions, N tokens, B rows, P projection, D cell, G = 4 * D gates in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

GROUP = 16
"""Cells whose gates lie together."""


def pack(gates: Tensor) -> Tensor:
    """Put the last dimension, gates in the order i, j, f, o, into the kernels' order; a new, contiguous tensor."""
    *lead, width = gates.shape
    by_gate = gates.reshape(*lead, 2, 2, width // (4 * GROUP), GROUP)  # half, pair, group, cell
    n = len(lead)
    return by_gate.permute(*range(n), n + 2, n, n + 3, n + 1).reshape(*lead, width).contiguous()


def unpack(packed: Tensor) -> Tensor:
    """The inverse of `pack`."""
    *lead, width = packed.shape
    by_group = packed.reshape(*lead, width // (4 * GROUP), 2, GROUP, 2)
    n = len(lead)
    return by_group.permute(*range(n), n + 1, n + 3, n, n + 2).reshape(*lead, width).contiguous()


@triton.jit
def _tanh(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _sigmoid(x, FAST: tl.constexpr):
    if FAST:
        return 0.5 * _tanh(0.5 * x, FAST) + 0.5
    return tl.sigmoid(x)


@triton.jit
def _gates_of(z, BM: tl.constexpr, BC: tl.constexpr):
    """Take a tile `(BM, 4 * BC)` apart: i, j, f, o, each `(BM, BC)`."""
    halves = tl.permute(tl.reshape(z, (BM, BC // 16, 2, 32)), (0, 1, 3, 2))
    first, second = tl.split(halves)
    i, j = tl.split(tl.reshape(first, (BM, BC, 2)))
    f, o = tl.split(tl.reshape(second, (BM, BC, 2)))
    return i, j, f, o


@triton.jit
def _tile_of(i, j, f, o, BM: tl.constexpr, BC: tl.constexpr):
    """The inverse of `_gates_of`."""
    first = tl.reshape(tl.join(i, j), (BM, BC // 16, 32))
    second = tl.reshape(tl.join(f, o), (BM, BC // 16, 32))
    return tl.reshape(tl.permute(tl.join(first, second), (0, 1, 3, 2)), (BM, 4 * BC))


@triton.jit
def _after(PDL: tl.constexpr):
    """Wait for the kernel before, and let the one behind be brought up meanwhile."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit(do_not_specialize=["step"])
def gates_kernel(
    a,  # of (K * 2 * tokens, 2 * P): a token's input and, beside it, its row's output at the step before
    w,  # of (K * 2 * 2 * P, G)
    bias,  # (K, 2, G) float32
    z,  # (K, 2, tokens, G): gets the gates before their functions, if SAVE
    c_in,  # (K, 2, capacity, D) float32
    c_out,  # the same, or where the next step's is
    h,  # (K, 2, capacity, D)
    starts,
    rows,
    time,
    step,
    tokens,
    capacity,
    n_tiles,
    clip,
    P: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    SAVE: tl.constexpr,
    CLIP: tl.constexpr,
    FAST: tl.constexpr,
    PDL: tl.constexpr,
):
    BN: tl.constexpr = 4 * BC
    _after(PDL)
    lane = tl.program_id(1)  # layer and direction
    t = tl.load(time) + step - lane // 2
    n = tl.load(rows + t, mask=t >= 0, other=0)
    first = (tl.program_id(0) % n_tiles) * BM
    if first >= n:
        return
    start = tl.load(starts + t)
    tile = tl.program_id(0) // n_tiles
    wide = lane.to(tl.int64)
    r = first + tl.arange(0, BM)
    inside = (r < n)[:, None]
    columns = tile * BN + tl.arange(0, BN)
    cells = (wide * capacity + r)[:, None] * D + (tile * BC + tl.arange(0, BC))[None, :]
    c = tl.load(c_in + cells, mask=inside, other=0.0)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, 2 * P, BK):
        inputs = a.load([lane * tokens + start + first, k])
        acc = tl.dot(inputs, w.load([lane * (2 * P) + k, tile * BN]), acc, input_precision="ieee")
    acc += tl.load(bias + lane * (4 * D) + columns)[None, :]
    if SAVE:
        place = (wide * tokens + start + r)[:, None] * (4 * D) + columns[None, :]
        tl.store(z + place, acc.to(z.dtype.element_ty), mask=inside)
    i, j, f, o = _gates_of(acc, BM, BC)
    c = _sigmoid(f, FAST) * c + _sigmoid(i, FAST) * _tanh(j, FAST)
    if CLIP:
        c = tl.minimum(tl.maximum(c, -clip), clip)
    tl.store(c_out + cells, c, mask=inside)
    tl.store(h + cells, (_sigmoid(o, FAST) * _tanh(c, FAST)).to(h.dtype.element_ty), mask=inside)


@triton.jit
def _split_sum(acc, inside, partial, counters, r, columns, lane, capacity, P: tl.constexpr, SPLIT: tl.constexpr):
    """Add up the parts of a product that SPLIT programs have; the one that comes last gets the sum and True."""
    place = (lane * capacity + r)[:, None] * P + columns[None, :]
    size = tl.num_programs(2) * P * capacity
    tl.store(partial + tl.program_id(1) * size + place, acc, mask=inside)
    tl.debug_barrier()
    counter = counters + (lane * tl.num_programs(0) + tl.program_id(0))
    last = tl.atomic_add(counter, 1, sem="acq_rel") == SPLIT - 1
    if last:
        tl.store(counter, 0)
        acc = tl.zeros_like(acc)
        for part in tl.static_range(SPLIT):
            acc += tl.load(partial + part * size + place, mask=inside, other=0.0, cache_modifier=".cg")
    return acc, last


@triton.jit(do_not_specialize=["step"])
def project_kernel(
    h,  # of (K * 2 * capacity, D)
    w,  # of (K * 2 * D, P)
    partial,  # (SPLIT, K, 2, capacity, P) float32
    counters,  # (K, 2, tiles) int32, zero before and after
    m,  # (K, 2, capacity, P): the state
    y,  # (K, 2, tokens, P) float32: the layers' outputs
    a,  # (K, 2, tokens, 2 * P): where the next step's and the next layer's tokens get what they start from
    starts,
    rows,
    time,
    step,
    tokens,
    capacity,
    n_tiles,
    clip,
    P: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLIT: tl.constexpr,
    CLIP: tl.constexpr,
    SKIP: tl.constexpr,
    PDL: tl.constexpr,
):
    _after(PDL)
    lane = tl.program_id(2)
    t = tl.load(time) + step - lane // 2
    n = tl.load(rows + t, mask=t >= 0, other=0)
    first = (tl.program_id(0) % n_tiles) * BM
    if first >= n:
        return
    r = first + tl.arange(0, BM)
    column = (tl.program_id(0) // n_tiles) * BN
    columns = column + tl.arange(0, BN)
    inside = (r < n)[:, None]
    begin = tl.program_id(1) * (D // SPLIT)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, D // SPLIT, BK):
        part = h.load([lane * capacity + first, begin + k])
        acc = tl.dot(part, w.load([lane * D + begin + k, column]), acc, input_precision="ieee")
    last = True
    if SPLIT > 1:
        acc, last = _split_sum(acc, inside, partial, counters, r, columns, lane, capacity, P, SPLIT)
    if last:
        if CLIP:
            acc = tl.minimum(tl.maximum(acc, -clip), clip)
        low = acc.to(m.dtype.element_ty)
        tl.store(m + (lane * capacity + r)[:, None] * P + columns[None, :], low, mask=inside)
        token = lane.to(tl.int64) * tokens + r
        following = (token + tl.load(starts + t + 1))[:, None] * (2 * P) + P + columns[None, :]
        tl.store(a + following, low, mask=(r < tl.load(rows + t + 1))[:, None])
        here = (token + tl.load(starts + t))[:, None]
        outputs = y + here * P + columns[None, :]
        if SKIP:
            acc += tl.load(outputs - tl.cast(tokens, tl.int64) * (2 * P), mask=inside & (lane >= 2), other=0.0)
        tl.store(outputs, acc, mask=inside)
        above = a + (here + 2 * tokens) * (2 * P) + columns[None, :]
        tl.store(above, acc.to(a.dtype.element_ty), mask=inside & (lane < tl.num_programs(2) - 2))


@triton.jit(do_not_specialize=["t"])
def gates_backward_kernel(
    dm,  # of (2 * T * B, P)
    w,  # of (2 * D, P): the projection
    z,  # (2, T, B, G): in, the gates before their functions; out, their gradient
    c,  # (T + 1, 2, B, D) float32
    dc,  # (2, B, D) float32: the cell's gradient, from the step behind
    t,
    T,
    B,
    n_tiles,
    clip,
    P: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    CLIP: tl.constexpr,
    FAST: tl.constexpr,
    PDL: tl.constexpr,
):
    _after(PDL)
    tile = tl.program_id(0) // n_tiles
    d = tl.program_id(1)
    first = (tl.program_id(0) % n_tiles) * BM
    r = first + tl.arange(0, BM)
    inside = (r < B)[:, None]
    wide = d.to(tl.int64)
    late = tl.cast(t, tl.int64)
    columns = tile * 4 * BC + tl.arange(0, 4 * BC)
    cell = (tile * BC + tl.arange(0, BC))[None, :]
    gates = z + ((wide * T + t) * B + r)[:, None] * (4 * D) + columns[None, :]
    before = c + ((late * 2 + wide) * B + r)[:, None] * D + cell
    carried = dc + (wide * B + r)[:, None] * D + cell
    dh = tl.zeros((BM, BC), dtype=tl.float32)
    for k in range(0, P, BK):
        dh = tl.dot(dm.load([(d * T + t) * B + first, k]), w.load([d * D + tile * BC, k]).T, dh, input_precision="ieee")
    i, j, f, o = _gates_of(tl.load(gates, mask=inside, other=0.0).to(tl.float32), BM, BC)
    i, j, f, o = _sigmoid(i, FAST), _tanh(j, FAST), _sigmoid(f, FAST), _sigmoid(o, FAST)
    c_now = tl.load(before + 2 * B * D, mask=inside, other=0.0)
    squashed = _tanh(c_now, FAST)
    dc_now = tl.load(carried, mask=inside, other=0.0) + dh * o * (1 - squashed * squashed)
    if CLIP:
        dc_now = tl.where(tl.abs(c_now) < clip, dc_now, 0.0)
    tl.store(carried, dc_now * f, mask=inside)
    c_before = tl.load(before, mask=inside, other=0.0)
    dz = _tile_of(
        dc_now * j * i * (1 - i),
        dc_now * i * (1 - j * j),
        dc_now * c_before * f * (1 - f),
        dh * squashed * o * (1 - o),
        BM,
        BC,
    )
    tl.store(gates, dz.to(z.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["t"])
def project_backward_kernel(
    dz,  # of (2 * T * B, G)
    w,  # of (2 * 2 * P, G): of which the recurrent half
    partial,  # (SPLIT, 2, B, P) float32
    counters,  # (2, tiles) int32, zero before and after
    dy,  # (2, T, B, P) float32
    y,  # (2, T, B, P) float32
    dm,  # (2, T, B, P): written at t - 1
    t,
    T,
    B,
    n_tiles,
    clip,
    P: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLIT: tl.constexpr,
    CLIP: tl.constexpr,
    PDL: tl.constexpr,
):
    G: tl.constexpr = 4 * D
    _after(PDL)
    d = tl.program_id(2)
    first = (tl.program_id(0) % n_tiles) * BM
    r = first + tl.arange(0, BM)
    column = (tl.program_id(0) // n_tiles) * BN
    columns = column + tl.arange(0, BN)
    inside = (r < B)[:, None]
    begin = tl.program_id(1) * (G // SPLIT)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, G // SPLIT, BK):
        part = dz.load([(d * T + t) * B + first, begin + k])
        acc = tl.dot(part, w.load([d * (2 * P) + P + column, begin + k]).T, acc, input_precision="ieee")
    last = True
    if SPLIT > 1:
        acc, last = _split_sum(acc, inside, partial, counters, r, columns, d, B, P, SPLIT)
    if last:
        token = ((d.to(tl.int64) * T + t - 1) * B + r)[:, None] * P + columns[None, :]
        acc += tl.load(dy + token, mask=inside, other=0.0)
        if CLIP:
            acc = tl.where(tl.abs(tl.load(y + token, mask=inside, other=0.0)) < clip, acc, 0.0)
        tl.store(dm + token, acc.to(dm.dtype.element_ty), mask=inside)


SPLITS = 4
"""Programs that share a tile's sum in `project`, at most."""
SPLITS_BACK = 8
"""The same in `project_backward`."""


def n_counters(rows: int, projection: int, layers: int) -> int:
    """Counters that split sums need at most: a tile has 16 rows and 32 columns or more."""
    return -(-rows // 16) * (projection // 32) * 2 * layers


@dataclass(frozen=True)
class Places:
    """Where a step's tokens are, as tables on the device; the step is that of `time` plus a number."""

    starts: Tensor
    """Of each step, int32: the first of its tokens."""
    rows: Tensor
    """How many they are."""
    time: Tensor
    """`(1,)` int32."""


@dataclass(frozen=True)
class Tile:
    """How a product is cut up: in powers of 2, and no coarser than its size can be divided."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    split: int = 1
    """Programs that share a tile's sum."""


def gates_tile(rows: int, dtype: torch.dtype) -> Tile:
    """For so many rows; the columns are cells. Measured on an H200."""
    if dtype == torch.float32:
        return Tile(16 if rows <= 16 else 32, 16, 32, 4, 2)
    if rows <= 64:
        return Tile(max(16, triton.next_power_of_2(rows)), 32, 64, 4, 3)
    return Tile(128, 32, 64, 8 if rows <= 128 else 4, 3)


def project_tile(rows: int, dtype: torch.dtype) -> Tile:
    """For so many rows."""
    if dtype == torch.float32:
        return Tile(16 if rows <= 16 else 32, 32, 32, 4, 2, 4)
    if rows <= 64:
        return Tile(max(16, triton.next_power_of_2(rows)), 64, 128, 4, 3, 4)
    if rows <= 256:
        return Tile(128, 32, 128, 4, 3, 2) if rows <= 128 else Tile(64, 64, 128, 4, 3)
    return Tile(64, 128, 128, 4, 3) if rows <= 512 else Tile(128, 128, 64, 8, 4)


def gates_backward_tile(rows: int, dtype: torch.dtype) -> Tile:
    """For so many rows; the columns are cells."""
    if dtype == torch.float32:
        return Tile(16 if rows <= 16 else 32, 16, 32, 4, 2)
    return Tile(16 if rows <= 16 else 32, 64, 256, 4, 2)


def project_backward_tile(rows: int, dtype: torch.dtype) -> Tile:
    """For so many rows."""
    if dtype == torch.float32:
        return Tile(16 if rows <= 16 else 32, 32, 32, 4, 2, 8)
    if rows <= 64:
        return Tile(max(16, triton.next_power_of_2(rows)), 64, 128, 4, 3, 8)
    if rows <= 256:
        return Tile(64, 128, 64, 4, 4, 4)
    return Tile(128, 128, 64, 8, 4, 4 if rows <= 512 else 2)


def gates(
    a: Tensor,
    w: Tensor,
    bias: Tensor,
    z: Tensor | None,
    c_in: Tensor,
    c_out: Tensor,
    h: Tensor,
    places: Places,
    step: int,
    rows: int,
    layers: int,
    *,
    clip: float | None,
    tile: Tile | None = None,
) -> None:
    """Take a step of some layers, each one behind the layer below. Shapes: see `gates_kernel`.

    Args:
        a: what goes into the product.
        w: the weights.
        bias: with the forget gate's own.
        z: gets the gates before their functions, if given.
        c_in: cells before the step.
        c_out: cells behind it; the same tensor, if need be.
        h: gets the outputs before their projection.
        places: where the tokens are.
        step: added to the time of `places`.
        rows: at most.
        layers: how many, of K.
        clip: the bound of a cell.
        tile: how the product is cut up, if not as `gates_tile` says.
    """
    P, (*_, capacity, D) = w.shape[-2] // 2, h.shape
    tile = tile or gates_tile(rows, a.dtype)
    tiles, depth = triton.cdiv(rows, tile.rows), gcd(tile.depth, P)
    gates_kernel[(tiles * (D // tile.columns), 2 * layers)](
        _blocks(a, tile.rows, depth),
        _blocks(w, depth, 4 * tile.columns),
        bias,
        z if z is not None else h,
        c_in,
        c_out,
        h,
        places.starts,
        places.rows,
        places.time,
        step,
        a.shape[-2],
        capacity,
        tiles,
        clip or 0.0,
        P=P,
        D=D,
        BM=tile.rows,
        BC=tile.columns,
        BK=depth,
        SAVE=z is not None,
        CLIP=clip is not None,
        FAST=_fast(a),
        **_launch(tile, a),
    )


def project(
    h: Tensor,
    w: Tensor,
    partial: Tensor,
    counters: Tensor,
    m: Tensor,
    y: Tensor,
    a: Tensor,
    places: Places,
    step: int,
    rows: int,
    layers: int,
    *,
    clip: float | None,
    skip: bool = False,
    tile: Tile | None = None,
) -> None:
    """Project a step's `h`: to the state, its tokens' outputs, and the inputs of the next step and of the next layer.

    If `skip`, a layer's output has that of the layer below added. Shapes: see `project_kernel`.
    """
    *_, capacity, P = m.shape
    D = h.shape[-1]
    tile = tile or project_tile(rows, m.dtype)
    tiles, columns, depth = triton.cdiv(rows, tile.rows), gcd(tile.columns, P), gcd(tile.depth, D // tile.split)
    assert tile.split <= len(partial)
    assert tile.split == 1 or tiles * (P // columns) * 2 * layers <= len(counters)
    project_kernel[(tiles * (P // columns), tile.split, 2 * layers)](
        _blocks(h, tile.rows, depth),
        _blocks(w, depth, columns),
        partial,
        counters,
        m,
        y,
        a,
        places.starts,
        places.rows,
        places.time,
        step,
        y.shape[-2],
        capacity,
        tiles,
        clip or 0.0,
        P=P,
        D=D,
        BM=tile.rows,
        BN=columns,
        BK=depth,
        SPLIT=tile.split,
        CLIP=clip is not None,
        SKIP=skip and layers > 1,
        **_launch(tile, m),
    )


def gates_backward(
    dm: Tensor,
    w: Tensor,
    z: Tensor,
    c: Tensor,
    dc: Tensor,
    t: int,
    *,
    clip: float | None,
    tile: Tile | None = None,
) -> None:
    """The gradient of step t's gates, in place of what `gates` saved in `z`. Shapes: see `gates_backward_kernel`."""
    _, T, B, P = dm.shape
    D = dc.shape[2]
    tile = tile or gates_backward_tile(B, dm.dtype)
    tiles, depth = triton.cdiv(B, tile.rows), gcd(tile.depth, P)
    gates_backward_kernel[(tiles * (D // tile.columns), 2)](
        _blocks(dm, tile.rows, depth),
        _blocks(w, tile.columns, depth),
        z,
        c,
        dc,
        t,
        T,
        B,
        tiles,
        clip or 0.0,
        P=P,
        D=D,
        BM=tile.rows,
        BC=tile.columns,
        BK=depth,
        CLIP=clip is not None,
        FAST=_fast(dm),
        **_launch(tile, dm),
    )


def project_backward(
    dz: Tensor,
    w: Tensor,
    partial: Tensor,
    counters: Tensor,
    dy: Tensor,
    y: Tensor,
    dm: Tensor,
    t: int,
    *,
    clip: float | None,
    tile: Tile | None = None,
) -> None:
    """The gradient of step t - 1's output, before its clip, from step t's gates and the layer above."""
    _, T, B, P = dm.shape
    G = dz.shape[3]
    tile = tile or project_backward_tile(B, dm.dtype)
    tiles, columns, depth = triton.cdiv(B, tile.rows), gcd(tile.columns, P), gcd(tile.depth, G // tile.split)
    assert tile.split <= len(partial)
    assert tile.split == 1 or tiles * (P // columns) * 2 <= len(counters)
    project_backward_kernel[(tiles * (P // columns), tile.split, 2)](
        _blocks(dz, tile.rows, depth),
        _blocks(w, columns, depth),
        partial,
        counters,
        dy,
        y,
        dm,
        t,
        T,
        B,
        tiles,
        clip or 0.0,
        P=P,
        D=G // 4,
        BM=tile.rows,
        BN=columns,
        BK=depth,
        SPLIT=tile.split,
        CLIP=clip is not None,
        **_launch(tile, dm),
    )


def _blocks(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A tensor as the table of its last dimension's rows, of which kernels take blocks."""
    return TensorDescriptor.from_tensor(matrix.flatten(0, -2), [rows, columns])


def _launch(tile: Tile, like: Tensor) -> dict[str, Any]:
    early = like.is_cuda and torch.cuda.get_device_capability(like.device) >= (9, 0)
    options = {"launch_pdl": True} if early else {}
    return {"PDL": early, "num_warps": tile.warps, "num_stages": tile.stages, **options}


def _fast(like: Tensor) -> bool:
    """Whether the GPU's own tanh, good to 11 bits, will do: not for float32, and a CPU that plays GPU has none."""
    return like.dtype == torch.bfloat16 and like.is_cuda
