"""LSTMs of task models on a GPU: all time steps of a layer in one launch.

cuDNN launches several kernels for each step, so that a batch of short steps waits for the host: 15,000 launches for one
step of training on paragraphs of SQuAD. Here a program has some rows of one direction, and goes through time by itself.

Up to 128 cells (64 where there is less room), it keeps state and recurrent weights on its multiprocessor (`small_*`);
beyond that, it reads the weights from the second cache at each step, a tile at a time (`tiled_*`), and what it hands on
to itself goes through memory.

Recurrent products are of float16, which has as many digits as the TF32 that cuDNN takes for float32; sums, gates and
cells are float32. Gradients may be small beyond float16, and are scaled by the largest that comes in.

Shapes: B rows, T steps, S sides (1 or 2 directions), 4 gates (i, f, g, o), H cells, P cells with padding.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_ROWS = 16  # of a program: as many as a tensor core's product has
_SMALL = 128  # cells whose weights fit on a multiprocessor
_ROOM = 136 * 1024  # bytes of shared memory that these take
_SMALLER = 64  # cells that fit without
_TILE = 64  # cells of a tile
_TOP = 0.25  # what gradients are scaled to, far from float16's 65,504


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _half(x):
    """To float16, and no further than it reaches."""
    return tl.minimum(tl.maximum(x, -60000.0), 60000.0).to(tl.float16)


@triton.jit
def _length(lengths, row, B, T):
    """Steps of each row; more than there are would reach into the row behind it."""
    return tl.minimum(tl.load(lengths + row, mask=row < B, other=0), T)


@triton.jit(do_not_specialize=["B", "T"])
def small_forward(
    z,  # (B, T, S, 4, H): the input's part of the gates
    w,  # (S, 4, P from, P to) float16
    lengths,  # (B,) int32
    y,  # (B, T, S, H) float32
    gates,  # (B, T, S, 4, H) float32, if SAVE: in float16, an open gate would have no slope
    cells,  # (B, T, S, H) float32, if SAVE
    B,
    T,
    S: tl.constexpr,
    H: tl.constexpr,
    P: tl.constexpr,
    BM: tl.constexpr,
    SAVE: tl.constexpr,
):
    d = tl.program_id(1)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    length = _length(lengths, row, B, T)
    cell = tl.arange(0, P)
    source = w + d * (4 * P * P) + cell[:, None] * P + cell[None, :]
    w_i = tl.load(source)
    w_f = tl.load(source + P * P)
    w_g = tl.load(source + 2 * P * P)
    w_o = tl.load(source + 3 * P * P)
    h = tl.zeros((BM, P), dtype=tl.float16)
    c = tl.zeros((BM, P), dtype=tl.float32)
    for step in range(T):
        now = (step < length)[:, None] & (cell < H)[None, :]
        t = tl.where(d == 0, step, length - 1 - step)
        token = (row.to(tl.int64) * T + t) * S + d
        four = token[:, None] * (4 * H) + cell[None, :]
        one = token[:, None] * H + cell[None, :]
        z_i = tl.load(z + four, mask=now, other=0.0).to(tl.float32)
        z_f = tl.load(z + four + H, mask=now, other=0.0).to(tl.float32)
        z_g = tl.load(z + four + 2 * H, mask=now, other=0.0).to(tl.float32)
        z_o = tl.load(z + four + 3 * H, mask=now, other=0.0).to(tl.float32)
        i = tl.sigmoid(tl.dot(h, w_i, z_i))
        f = tl.sigmoid(tl.dot(h, w_f, z_f))
        g = _tanh(tl.dot(h, w_g, z_g))
        o = tl.sigmoid(tl.dot(h, w_o, z_o))
        c = f * c + i * g
        full = o * _tanh(c)
        h = full.to(tl.float16)
        tl.store(y + one, full, mask=now)
        if SAVE:
            tl.store(gates + four, i, mask=now)
            tl.store(gates + four + H, f, mask=now)
            tl.store(gates + four + 2 * H, g, mask=now)
            tl.store(gates + four + 3 * H, o, mask=now)
            tl.store(cells + one, c, mask=now)


@triton.jit
def _slopes(dy, gates, cells, dh, dc, four, one, before, now, later, up, H: tl.constexpr):
    """Scaled gradients of the gates before their functions, and of the cell before, from those of a step's output."""
    i = tl.load(gates + four, mask=now, other=0.0)
    f = tl.load(gates + four + H, mask=now, other=0.0)
    g = tl.load(gates + four + 2 * H, mask=now, other=0.0)
    o = tl.load(gates + four + 3 * H, mask=now, other=0.0)
    squashed = _tanh(tl.load(cells + one, mask=now, other=0.0))
    c_before = tl.load(cells + before, mask=now & later, other=0.0)
    dh += tl.load(dy + one, mask=now, other=0.0).to(tl.float32) * up
    dc += dh * o * (1 - squashed * squashed)
    return (
        dc * g * i * (1 - i),
        dc * c_before * f * (1 - f),
        dc * i * (1 - g * g),
        dh * squashed * o * (1 - o),
        dc * f,
    )


@triton.jit(do_not_specialize=["B", "T"])
def small_backward(
    dy,  # (B, T, S, H)
    w,  # (S, 4, P to, P from) float16
    lengths,  # (B,) int32
    gates,  # (B, T, S, 4, H) float32
    cells,  # (B, T, S, H) float32
    scale,  # (1,) float32
    dz,  # (B, T, S, 4, H): zero
    B,
    T,
    S: tl.constexpr,
    H: tl.constexpr,
    P: tl.constexpr,
    BM: tl.constexpr,
):
    d = tl.program_id(1)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    length = _length(lengths, row, B, T)
    cell = tl.arange(0, P)
    source = w + d * (4 * P * P) + cell[:, None] * P + cell[None, :]
    w_i = tl.load(source)
    w_f = tl.load(source + P * P)
    w_g = tl.load(source + 2 * P * P)
    w_o = tl.load(source + 3 * P * P)
    up = tl.load(scale)
    down = 1 / up
    dh = tl.zeros((BM, P), dtype=tl.float32)
    dc = tl.zeros((BM, P), dtype=tl.float32)
    for back in range(T):
        step = T - 1 - back
        now = (step < length)[:, None] & (cell < H)[None, :]
        t = tl.where(d == 0, step, length - 1 - step)
        token = (row.to(tl.int64) * T + t) * S + d
        four = token[:, None] * (4 * H) + cell[None, :]
        one = token[:, None] * H + cell[None, :]
        before = one + tl.where(d == 0, -S * H, S * H)
        d_i, d_f, d_g, d_o, dc = _slopes(dy, gates, cells, dh, dc, four, one, before, now, step > 0, up, H)
        tl.store(dz + four, (d_i * down).to(dz.dtype.element_ty), mask=now)
        tl.store(dz + four + H, (d_f * down).to(dz.dtype.element_ty), mask=now)
        tl.store(dz + four + 2 * H, (d_g * down).to(dz.dtype.element_ty), mask=now)
        tl.store(dz + four + 3 * H, (d_o * down).to(dz.dtype.element_ty), mask=now)
        dh = tl.dot(_half(d_i), w_i)
        dh = tl.dot(_half(d_f), w_f, dh)
        dh = tl.dot(_half(d_g), w_g, dh)
        dh = tl.dot(_half(d_o), w_o, dh)


@triton.jit(do_not_specialize=["B", "T"])
def tiled_forward(
    z,  # as in `small_forward`
    w,
    lengths,
    y,
    gates,
    cells,  # always
    B,
    T,
    S: tl.constexpr,
    H: tl.constexpr,
    P: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SAVE: tl.constexpr,
):
    d = tl.program_id(1)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    length = _length(lengths, row, B, T)
    lane = tl.arange(0, BN)
    for step in range(T):
        alive = (step < length)[:, None]
        t = tl.where(d == 0, step, length - 1 - step)
        token = (row.to(tl.int64) * T + t) * S + d
        last = token + tl.where(d == 0, -S, S)
        for tile in range(P // BN):
            cell = tile * BN + lane
            now = alive & (cell < H)[None, :]
            four = token[:, None] * (4 * H) + cell[None, :]
            one = token[:, None] * H + cell[None, :]
            a_i = tl.load(z + four, mask=now, other=0.0).to(tl.float32)
            a_f = tl.load(z + four + H, mask=now, other=0.0).to(tl.float32)
            a_g = tl.load(z + four + 2 * H, mask=now, other=0.0).to(tl.float32)
            a_o = tl.load(z + four + 3 * H, mask=now, other=0.0).to(tl.float32)
            for part in range(P // BN):
                other = part * BN + lane
                known = alive & (step > 0) & (other < H)[None, :]
                h = tl.load(y + last[:, None] * H + other[None, :], mask=known, other=0.0).to(tl.float16)
                source = w + (d * 4 * P + other)[:, None] * P + cell[None, :]
                a_i = tl.dot(h, tl.load(source), a_i)
                a_f = tl.dot(h, tl.load(source + P * P), a_f)
                a_g = tl.dot(h, tl.load(source + 2 * P * P), a_g)
                a_o = tl.dot(h, tl.load(source + 3 * P * P), a_o)
            i, f, g, o = tl.sigmoid(a_i), tl.sigmoid(a_f), _tanh(a_g), tl.sigmoid(a_o)
            c = tl.load(cells + last[:, None] * H + cell[None, :], mask=now & (step > 0), other=0.0)
            c = f * c + i * g
            tl.store(cells + one, c, mask=now)
            tl.store(y + one, o * _tanh(c), mask=now)
            if SAVE:
                tl.store(gates + four, i, mask=now)
                tl.store(gates + four + H, f, mask=now)
                tl.store(gates + four + 2 * H, g, mask=now)
                tl.store(gates + four + 3 * H, o, mask=now)
        tl.debug_barrier()  # the next step reads what all threads have written


@triton.jit(do_not_specialize=["B", "T"])
def tiled_backward(
    dy,  # as in `small_backward`
    w,
    lengths,
    gates,
    cells,
    scale,
    dz,
    dh,  # (B, S, P) float32: zero; scaled, as is the next
    dc,  # (B, S, P) float32: zero
    B,
    T,
    S: tl.constexpr,
    H: tl.constexpr,
    P: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    d = tl.program_id(1)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    length = _length(lengths, row, B, T)
    lane = tl.arange(0, BN)
    up = tl.load(scale)
    down = 1 / up
    for back in range(T):
        step = T - 1 - back
        alive = (step < length)[:, None]
        t = tl.where(d == 0, step, length - 1 - step)
        token = (row.to(tl.int64) * T + t) * S + d
        for tile in range(P // BN):
            cell = tile * BN + lane
            now = alive & (cell < H)[None, :]
            four = token[:, None] * (4 * H) + cell[None, :]
            one = token[:, None] * H + cell[None, :]
            before = one + tl.where(d == 0, -S * H, S * H)
            place = (row * S + d)[:, None] * P + cell[None, :]
            dh_now = tl.load(dh + place, mask=now, other=0.0)
            dc_now = tl.load(dc + place, mask=now, other=0.0)
            d_i, d_f, d_g, d_o, dc_now = _slopes(
                dy, gates, cells, dh_now, dc_now, four, one, before, now, step > 0, up, H
            )
            tl.store(dc + place, dc_now, mask=now)
            tl.store(dz + four, (d_i * down).to(dz.dtype.element_ty), mask=now)
            tl.store(dz + four + H, (d_f * down).to(dz.dtype.element_ty), mask=now)
            tl.store(dz + four + 2 * H, (d_g * down).to(dz.dtype.element_ty), mask=now)
            tl.store(dz + four + 3 * H, (d_o * down).to(dz.dtype.element_ty), mask=now)
        tl.debug_barrier()
        for tile in range(P // BN):
            cell = tile * BN + lane
            sums = tl.zeros((BM, BN), dtype=tl.float32)
            for part in range(P // BN):
                other = part * BN + lane
                four = token[:, None] * (4 * H) + other[None, :]
                known = alive & (other < H)[None, :]
                source = w + (d * 4 * P + other)[:, None] * P + cell[None, :]
                sums = tl.dot(_half(tl.load(dz + four, mask=known, other=0.0) * up), tl.load(source), sums)
                sums = tl.dot(_half(tl.load(dz + four + H, mask=known, other=0.0) * up), tl.load(source + P * P), sums)
                sums = tl.dot(
                    _half(tl.load(dz + four + 2 * H, mask=known, other=0.0) * up), tl.load(source + 2 * P * P), sums
                )
                sums = tl.dot(
                    _half(tl.load(dz + four + 3 * H, mask=known, other=0.0) * up), tl.load(source + 3 * P * P), sums
                )
            place = (row * S + d)[:, None] * P + cell[None, :]
            tl.store(dh + place, sums, mask=(row < B)[:, None])
        tl.debug_barrier()


class _Recurrence(torch.autograd.Function):
    """From the input's part of the gates to the outputs."""

    @staticmethod
    def forward(ctx: Any, z_BTS4H: Tensor, w_S4HH: Tensor, lengths_B: Tensor) -> Tensor:
        n, steps, sides, _, hidden = z_BTS4H.shape
        save, fitting = any(ctx.needs_input_grad), _fitting(z_BTS4H.device)
        sizes = _sizes(hidden, fitting)
        z = z_BTS4H.contiguous()
        y = z.new_zeros((n, steps, sides, hidden), dtype=torch.float32)
        gates = z.new_empty(z.shape if save else 1, dtype=torch.float32)
        cells = torch.empty_like(y)
        padding = sizes["P"] - hidden
        w_S4PP = F.pad(w_S4HH, (0, padding, 0, padding)).to(torch.float16)  # to, from
        if y.numel():
            kernel = small_forward if hidden <= fitting else tiled_forward
            turned = w_S4PP.transpose(2, 3).contiguous()
            _launch(kernel, [z, turned, lengths_B, y, gates, cells], y.shape, SAVE=save, **sizes)
        ctx.save_for_backward(y, w_S4PP, lengths_B, gates, cells)
        ctx.dtypes = z_BTS4H.dtype, w_S4HH.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        y, w_S4PP, lengths, gates, cells = ctx.saved_tensors
        n, _, sides, hidden = y.shape
        dtype, weight_dtype = ctx.dtypes
        fitting = _fitting(y.device)
        sizes = _sizes(hidden, fitting)
        dz = gates.new_zeros(gates.shape, dtype=dtype)
        dy = dy.contiguous()
        if y.numel():
            scale = _TOP / dy.abs().amax().float().clamp(min=1e-30).reshape(1)
            tensors, kernel = [dy, w_S4PP, lengths, gates, cells, scale, dz], small_backward
            if hidden > fitting:
                tensors += y.new_zeros(2, n, sides, sizes["P"]).unbind()
                kernel = tiled_backward
            _launch(kernel, tensors, y.shape, **sizes)
        # What a step got from the one before it in its direction; beyond a row's end all is zero.
        pairs = [(dz[:, 1:, 0], y[:, :-1, 0]), (dz[:, :-1, 1:], y[:, 1:, 1:])][:sides]
        dw = [ours.flatten(2).flatten(0, 1).T.float() @ before.flatten(2).flatten(0, 1) for ours, before in pairs]
        return dz, torch.stack(dw).view(sides, 4, hidden, hidden).to(weight_dtype), None


def _launch(kernel: Any, tensors: list[Tensor], shape_BTSH: torch.Size, **sizes: int) -> None:
    rows, steps, sides, _ = shape_BTSH
    with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]  # Triton launches on the current one
        kernel[triton.cdiv(rows, _ROWS), sides](*tensors, rows, steps, S=sides, **sizes)


@cache
def _fitting(device: torch.device) -> int:
    """How many cells' weights fit on a multiprocessor: that of a GPU for games has less room."""
    if device.type != "cuda":
        return _SMALL
    about: Any = torch.cuda.get_device_properties(device)  # whose types leave out what is asked for
    return _SMALL if about.shared_memory_per_block_optin >= _ROOM else _SMALLER


def _sizes(hidden: int, fitting: int) -> dict[str, int]:
    if hidden > fitting:
        padded = -(-hidden // _TILE) * _TILE
        return {"H": hidden, "P": padded, "BM": _ROWS, "BN": _TILE, "num_warps": 4, "num_stages": 3}
    padded = max(16, triton.next_power_of_2(hidden))
    return {"H": hidden, "P": padded, "BM": _ROWS, "num_warps": padded // 16, "num_stages": 1}


def lstm_rows(lstm: nn.LSTM, x_BTI: Tensor, lengths_B: Tensor) -> Tensor:
    """What a layer of an LSTM makes of rows: `(B, T, S * H)` in its weights' precision, zero behind a row's end.

    Args:
        lstm: one layer, in one direction or both; its weights are used, not itself.
        x_BTI: rows on a GPU.
        lengths_B: int32, on the same.
    """
    sides = ("", "_reverse")[: 1 + lstm.bidirectional]
    weight = torch.cat([getattr(lstm, f"weight_ih_l0{side}") for side in sides])
    bias = torch.cat([getattr(lstm, f"bias_ih_l0{side}") + getattr(lstm, f"bias_hh_l0{side}") for side in sides])
    recurrent = torch.stack([getattr(lstm, f"weight_hh_l0{side}") for side in sides])
    n, steps, _ = x_BTI.shape
    hidden = lstm.hidden_size
    z_BTS4H = F.linear(x_BTI, weight, bias).view(n, steps, len(sides), 4, hidden)
    w_S4HH = recurrent.view(len(sides), 4, hidden, hidden)
    y_BTSH: Tensor = _Recurrence.apply(z_BTS4H, w_S4HH, lengths_B)  # type: ignore[no-untyped-call]  # of PyTorch
    return y_BTSH.view(n, steps, len(sides) * hidden).to(weight.dtype)
